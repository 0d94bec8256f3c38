"""Folders that TorchRL wrote: every leaf of every row is what was put in, or a sentence says why not."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, OfflineDataError
from offline_data.formats.registry import source_accepting
from offline_data.formats.torchrl.source import TorchRL
from offline_data.store.library import entry_at
from offline_data.store.reader import DatasetReader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.conformance.test_torchrl_dumps import change
from tests.toys.buffers import BOX, Step, assert_episode, cut, play, ted
from tests.toys.stored import convert_and_open, read_shards

torch = pytest.importorskip("torch")
torchrl = pytest.importorskip("torchrl.data")
tensordict = pytest.importorskip("tensordict")

ACTIONS = spaces.Discrete(3)


def write(
    path: Path, rows: Any, storage: str = "LazyTensorStorage", *, size: int = 100, batch: int = 11
) -> Path:
    """Write rows by a buffer in batches, and dump it."""
    buffer = torchrl.TensorDictReplayBuffer(storage=getattr(torchrl, storage)(size))
    for first in range(0, len(rows), batch):
        buffer.extend(rows[first : first + batch])
    buffer.dumps(path)
    return path


def stored(path: Path, settings: Settings) -> DatasetReader:
    assert source_accepting(path).name == "torchrl"
    return convert_and_open(path, settings, force=True)


def check(reader: DatasetReader, episodes: list[list[Step]]) -> None:
    assert reader.episode_count == len(episodes)
    for number, episode in enumerate(episodes):
        assert_episode(reader.episode_batch(number, number + 1), episode, BOX, final=True)


class TestDump(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write(tmp_path / "x", ted(play(BOX, ACTIONS, 77, 1)), size=40)
        return SourceCase(TorchRL(), TorchRL().release_of(path, "x"), path)


class TestTensorDict(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        steps = [step for episode in cut(play(BOX, ACTIONS, 40, 1))[:-1] for step in episode]
        ted(steps).memmap(tmp_path / "x")
        return SourceCase(TorchRL(), TorchRL().release_of(tmp_path / "x", "x"), tmp_path / "x")


@pytest.mark.parametrize("storage", ["LazyTensorStorage", "LazyMemmapStorage"])
@pytest.mark.parametrize(("size", "count"), [(50, 30), (50, 50), (20, 77), (20, 40)])
def test_a_buffer(storage: str, size: int, count: int, tmp_path: Path, settings: Settings) -> None:
    steps = play(BOX, ACTIONS, count, 1)
    reader = stored(write(tmp_path / "x", ted(steps), storage, size=size), settings)
    check(reader, cut(steps[-min(count, size) :]))
    notes = " ".join(reader.manifest.notes)
    assert ("its oldest episodes" in notes) == (count > size)


def test_trajectories(tmp_path: Path, settings: Settings) -> None:
    played = [play(BOX, ACTIONS, 40, seed) for seed in (1, 2)]
    ids = [np.cumsum([0, *(step[3] for step in steps)])[:-1] * 2 for steps in played]
    parts = [
        ted(steps[first : first + 4], (numbers[first : first + 4] + lane).tolist())
        for first in range(0, 40, 4)
        for lane, (steps, numbers) in enumerate(zip(played, ids, strict=True))
    ]
    reader = stored(write(tmp_path / "x", torch.cat(parts), size=50), settings)
    # The newest 50 rows of two environments, four by turns.
    kept = [played[0][-24:], played[1][-26:]]
    episodes = [episode for steps in kept for episode in cut(steps)]
    first = {episode[0][2]: episode for episode in episodes}
    assert reader.episode_count == len(episodes)
    for number in range(reader.episode_count):
        batch = reader.episode_batch(number, number + 1)
        episode = first.pop(batch.steps["next", "reward"][0, 0])
        assert_episode(batch, episode, BOX, final=True)


def test_every_kind_of_leaf(tmp_path: Path, settings: Settings) -> None:
    rows = ted(play(BOX, ACTIONS, 30, 1))
    row = torch.arange(1, 31)
    numbers = {
        "uint8": row.to(torch.uint8)[:, None, None].expand(30, 4, 5).contiguous(),
        "int16": -row.to(torch.int16),
        "half": row.half() / 8,
        "double": row.double()[:, None] / 3,
        "complex": row.to(torch.complex64) * 1j,
        "bool": row % 3 == 0,
        "empty": torch.zeros(30, 0),
        "a b.c": row.int(),
    }
    rows["policy"] = tensordict.TensorDict(numbers, [30])
    rows["next", "cost"] = row.float()
    rows["text"] = [f"row {number}" for number in range(30)]
    rows["small"] = row.to(torch.bfloat16)
    path = write(tmp_path / "x", rows, batch=30)
    (batch,) = read_shards(TorchRL(), TorchRL().release_of(path, "x"))
    for name, values in numbers.items():
        found = batch.steps["policy", name]
        assert found.dtype == values.numpy().dtype, name
        assert np.array_equal(found, values.numpy()), name
    assert batch.steps["next", "cost"].tolist() == row.tolist()
    assert batch.steps["text",].tolist() == [f"row {number}" for number in range(30)]
    reader = stored(path, settings)
    table = reader.transitions_at(np.arange(30))
    for name, values in numbers.items():
        assert np.array_equal(table["policy", name], values.numpy()), name
    text = reader.as_text(("text",), table["text",])
    assert text.tolist() == [f"row {number}" for number in range(30)]
    (dropped,) = reader.manifest.dropped_leaves
    assert (dropped.key, dropped.reason) == ("small", "It is bfloat16, which numpy lacks.")


def test_a_tensordict_of_whole_episodes(tmp_path: Path, settings: Settings) -> None:
    episodes = cut(play(BOX, ACTIONS, 40, 1))
    whole = [step for episode in episodes[:-1] for step in episode]
    ted(whole).memmap(tmp_path / "x")
    check(stored(tmp_path / "x", settings), episodes[:-1])
    ted([*whole, episodes[-1][0]]).memmap(tmp_path / "cut")
    with pytest.raises(FormatError, match=f"Row {len(whole)} ends an episode without an end flag"):
        stored(tmp_path / "cut", settings)
    ted([step for step in whole if not step[3]] + whole).memmap(tmp_path / "gaps")
    with pytest.raises(FormatError, match="without an end flag"):
        stored(tmp_path / "gaps", settings)
    scratch = torchrl.LazyMemmapStorage(100, scratch_dir=tmp_path / "scratch")
    torchrl.ReplayBuffer(storage=scratch).extend(ted(whole))
    with pytest.raises(FormatError, match="Row 99 ends an episode without an end flag"):
        stored(tmp_path / "scratch", settings)


@pytest.mark.filterwarnings("ignore:last_cursor is None")
def test_an_immutable_buffer(tmp_path: Path, settings: Settings) -> None:
    episodes = cut(play(BOX, ACTIONS, 40, 1))[:-1]
    storage = torchrl.TensorStorage(ted([step for episode in episodes for step in episode]))
    writer = torchrl.ImmutableDatasetWriter()
    torchrl.ReplayBuffer(storage=storage, writer=writer).dumps(tmp_path / "x")
    check(stored(tmp_path / "x", settings), episodes)


def test_buffers_that_have_no_episodes(tmp_path: Path, settings: Settings) -> None:
    rows = ted(play(BOX, ACTIONS, 40, 1))
    best = torchrl.TensorDictReplayBuffer(
        storage=torchrl.LazyTensorStorage(20),
        writer=torchrl.TensorDictMaxValueWriter(rank_key=("next", "reward")),
    )
    best.extend(rows)
    best.dumps(tmp_path / "best")
    tensors = torchrl.ReplayBuffer(storage=torchrl.LazyTensorStorage(20))
    tensors.extend(torch.zeros(5, 2))
    tensors.dumps(tmp_path / "tensors")
    square = torchrl.ReplayBuffer(storage=torchrl.LazyTensorStorage(40, ndim=2))
    square.extend(rows.reshape(8, 5))
    square.dumps(tmp_path / "square")
    write(tmp_path / "other", rows.select("observation"))
    write(tmp_path / "shuffled", rows[torch.randperm(40)])
    for name, said in {
        "best": "The order of episodes is lost: .* TensorDictMaxValueWriter",
        "tensors": "expected a TensorDict",
        "square": "expected a tensordict of one dimension",
        "other": "transitions as TED: it has index, observation",
        "shuffled": "The order of episodes is lost: in",
    }.items():
        with pytest.raises(FormatError, match=said):
            stored(tmp_path / name, settings)


META, STORAGE, WRITER = "storage/meta.json", "storage/storage_metadata.json", "writer/metadata.json"


def link(path: Path) -> None:
    path.rename(path.parent.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent.parent / "elsewhere")


def fields(**values: Any) -> Callable[[Path], None]:
    return lambda path: change(path, **values)


def leaf(**values: Any) -> Callable[[Path], None]:
    return fields(**{f"action.{name}": value for name, value in values.items()})


HOSTILE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "short": ("storage/action.memmap", lambda path: os.truncate(path, 319)),
    "gone": ("storage/next/reward.memmap", Path.unlink),
    "link": ("storage/action.memmap", link),
    "folder link": ("storage/next", link),
    "no bool": ("storage/next/done.memmap", lambda path: path.write_bytes(b"\2" * 40)),
    "dtype": (META, leaf(dtype="torch.quint8")),
    "object": (META, leaf(dtype="torch.object")),
    "numpy": (META, leaf(dtype="int64")),
    "wider": (META, leaf(dtype="torch.complex128")),
    "huge": (META, leaf(shape=[2**62, 2**62])),
    "huge empty": (META, leaf(shape=[2**62, 2**62, 0])),
    "negative": (META, leaf(shape=[-40])),
    "many dimensions": (META, leaf(shape=[40, *[1] * 100])),
    "scalar": (META, leaf(shape=[])),
    "fewer": (META, leaf(shape=[39])),
    "up": (META, fields(**{"../writer": {"type": "TensorDict"}})),
    "up file": (META, fields(**{"../action": {"shape": [40], "dtype": "torch.int8"}})),
    "class": (META, fields(_type="<class 'subprocess.Popen'>")),
    "root shape": (META, fields(shape=[2**60])),
    "text": (META, fields(_type="<class 'tensordict.tensorclass.NonTensorStack'>", data=["a"])),
    "cut": (META, lambda path: os.truncate(path, 40)),
    "list": (META, lambda path: path.write_text("[]")),
    "len": (STORAGE, fields(len=41)),
    "len 0": (STORAGE, fields(len=0)),
    "len text": (STORAGE, fields(len="40")),
    "no storage": (STORAGE, Path.unlink),
    "cursor": (WRITER, fields(cursor=41)),
    "cursor -1": (WRITER, fields(cursor=-1)),
    "no writer": (WRITER, Path.unlink),
    "consumed": ("buffer_metadata.json", fields(consume_after_n_samples=2)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders(name: str, tmp_path: Path, settings: Settings) -> None:
    path = write(tmp_path / "x", ted(play(BOX, ACTIONS, 77, 1)), size=40)
    where, spoil = HOSTILE[name]
    spoil(path / where)
    with pytest.raises(FormatError) as caught:
        convert_and_open(path, settings)
    assert len(str(caught.value)) < 700
    assert not [*settings.root.rglob("manifest.json")]


def test_pickled_values_are_dropped(tmp_path: Path, settings: Settings) -> None:
    path = write(tmp_path / "x", ted(play(BOX, ACTIONS, 40, 1)), size=40)
    meta = json.loads((path / META).read_text())
    (path / META).write_text(json.dumps({**meta, "code": {"type": "NonTensorStack"}}))
    (path / "storage/code").mkdir()
    kind = "<class 'tensordict.tensorclass.NonTensorStack'>"
    (path / "storage/code/meta.json").write_text(json.dumps({"_type": kind, "data": "pickle.pkl"}))
    (path / "storage/code/pickle.pkl").write_bytes(b"cos\nsystem\n.")
    reader = stored(path, settings)
    assert reader.transitions == 40
    (dropped,) = reader.manifest.dropped_leaves
    assert dropped.key == "code"
    assert entry_at(reader.path).manifest.counts["transitions"] == 40


def test_the_folder_of_a_storage_is_part_of_a_dump(tmp_path: Path) -> None:
    path = write(tmp_path / "x", ted(play(BOX, ACTIONS, 40, 1)))
    with pytest.raises(OfflineDataError, match="Cannot tell what"):
        source_accepting(path / "storage")
