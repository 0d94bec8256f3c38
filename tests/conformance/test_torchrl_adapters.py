"""TorchRL's classes for Atari DQN, Gen-DGRL and Open X over the files that ours convert.

Every leaf of every row is equal, or TorchRL's defect is asserted. What is replaced there only brings
the files: `gsutil`, an HTTP request, and the packages `datasets` and `torchvision`.
"""

from __future__ import annotations

import pickle
import shutil
import sys
import tarfile
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.base.config import Settings
from offline_data.pipeline.ingest import Options, convert
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.store.reader import DatasetReader, open_reader
from tests.pipeline.ingest.here import convert_here
from tests.toys.atari import write_replay_log
from tests.toys.gen_dgrl import toy_files, write_archive
from tests.toys.webdataset import Flavour, write_webdataset

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data.datasets as theirs
    from torchrl.data.datasets import atari_dqn as their_atari
    from torchrl.data.datasets import openx as their_openx

pytestmark = pytest.mark.filterwarnings("ignore")

ENDS = (("next", "terminated"), ("next", "truncated"), ("next", "done"))


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    convert_here(monkeypatch)


def converted(path: Path, settings: Settings, source: str) -> DatasetReader:
    result = convert(path, "mine", settings, Options(), source=source, executor=InProcess())
    return open_reader(result.path)


def assert_equal(td: Any, reader: DatasetReader, keys: dict[Any, Any]) -> None:
    """Compare rows of theirs with all of ours, in this order; `keys` are theirs by ours."""
    mine = reader.transitions_at(np.arange(reader.transitions))
    for key, other in keys.items():
        found = td[other].numpy()
        np.testing.assert_array_equal(found.reshape(mine[key].shape), mine[key], strict=True)


# ---- Atari DQN -------------------------------------------------------------------------------


def test_atari_dqn(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log's rows of zeros, and rows of the round before, are transitions at TorchRL."""
    # some episodes go on in the next checkpoint
    log = write_replay_log(tmp_path / "log", (6, 1, 24, 2, 31, 9, 5, 20, 12, 40, 3))

    def gsutil(command: Any, **_: Any) -> Any:
        words = (command if isinstance(command, list) else command.split())[1:]
        listed = "\n".join(f"gs://x/{file.name}" for file in (tmp_path / "log").iterdir())
        for word in words[words.index("cp") + 1 : -1] if "cp" in words else []:
            name = word.rpartition("/")[2].replace("\\", "")
            shutil.copy(tmp_path / "log" / name, words[-1])
        return SimpleNamespace(stdout=listed.encode())

    monkeypatch.setattr(their_atari, "subprocess", SimpleNamespace(run=gsutil))
    td = theirs.AtariDQNExperienceReplay("Pong/1", 4, root=tmp_path / "theirs")[:]
    reader = converted(tmp_path / "log", settings, "atari_dqn")

    assert len(td) == len(log.written) * log.capacity > reader.transitions
    # their row of each of ours: row r of the log is row r, but the last of a checkpoint lies where
    # it is in the file of the next one
    rows = np.array([n for n, row in enumerate(log.rows) if row is not None])
    at = np.where(rows % log.capacity == log.capacity - 1, rows + log.capacity, rows)
    at = at[rows < log.written[-1][1]]
    other = td[torch.from_numpy(at)]
    keys: dict[Any, Any] = {key: key for key in (("observation",), ("action",), ("next", "reward"))}
    ends = reader.transitions_at(np.arange(reader.transitions))
    assert_equal(other, reader, keys)
    np.testing.assert_array_equal(
        other["next", "terminated"].numpy(), ends["next", "terminated"][:, 0]
    )
    assert not other["next", "truncated"].any()  # and the last episode here goes on
    assert ends["next", "truncated"][:, 0].tolist() == [False] * (len(at) - 1) + [True]

    # its next observation is the next row's of the same file, and zero at a terminal
    after = other["next", "observation"].numpy()
    border = np.isin(at % log.capacity, [log.capacity - 2, log.capacity - 1])
    same = ~ends["next", "done"][:, 0] & ~border
    np.testing.assert_array_equal(after[same], ends["next", "observation"][same])
    assert not after[ends["next", "terminated"][:, 0]].any()
    wrong = border & ~ends["next", "done"][:, 0]
    assert wrong.any()
    assert (after[wrong] != ends["next", "observation"][wrong]).any((1, 2)).all()
    # the rows that are no transitions: zeros before episodes, and the last row of checkpoint 0
    left = td[torch.from_numpy(np.setdiff1d(np.arange(len(td)), at))]
    assert len(left) == len(td) - reader.transitions > 30
    assert not left["action"].any()


# ---- Gen-DGRL --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pickle", "npz"])
def test_gen_dgrl(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """After the last step TorchRL has the next episode's frame; its length is not that of the data."""
    path = write_archive(tmp_path / "bigfish.tar.xz", toy_files((5, 1, 12, 3), kind=kind))
    made = theirs.GenDGRLExperienceReplay
    monkeypatch.setattr(made, "_download_with_progress_bar", lambda _, to: shutil.copy(path, to))
    if kind == "npz":
        with pytest.raises(AttributeError, match="tolist"):
            made("bigfish-level_1_E", 4, root=str(tmp_path))
        return
    td = made("bigfish-level_1_E", 4, root=str(tmp_path))
    reader = converted(path, settings, "gen_dgrl")
    assert len(td) == 100_000  # of which all but 21 are zero
    assert not td[21:]["observation"].any()
    rows = td[:21]
    same: list[Any] = [("observation",), ("action",), ("next", "reward"), *ENDS]
    assert_equal(rows, reader, {key: key for key in same})
    mine = reader.transitions_at(np.arange(21))
    after, done = rows["next", "observation"].numpy(), mine["next", "done"][:, 0]
    np.testing.assert_array_equal(after[~done], mine["next", "observation"][~done])
    first = np.roll(done, 1)
    np.testing.assert_array_equal(after[done][:-1], mine["observation",][first][1:])
    assert not reader.episodes["final_observation",].any()


# ---- Open X ----------------------------------------------------------------------------------


class _Hub:
    """What `datasets.load_dataset` gives of the hub's copy: the pickles, anew each time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[Any]:
        for path in sorted(self._folder.glob("*.tar")):
            with tarfile.open(path) as archive:
                for member in archive:
                    content: Any = archive.extractfile(member)
                    yield {"data.pickle": pickle.load(content)}  # noqa: S301 -- written by the test


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put in the one function each that TorchRL calls of `datasets` (below 4) and `torchvision`."""
    names = ["torchvision", "transforms", "v2", "functional"]
    modules: list[Any] = [ModuleType(".".join(names[: n + 1])) for n in range(4)]
    for module, inner in pairwise(modules):
        setattr(module, inner.__name__.rpartition(".")[2], inner)
    modules[-1].pil_to_tensor = lambda image: torch.from_numpy(np.array(image)).permute(2, 0, 1)
    datasets: Any = ModuleType("datasets")
    datasets.load_dataset = lambda *_, **__: _Hub(tmp_path / "raw")
    for module in [datasets, *modules]:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(their_openx, "_has_datasets", True)
    monkeypatch.setattr(their_openx, "_has_tv", True)


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("streaming", [False, True])
def test_openx(tmp_path: Path, settings: Settings, *, streaming: bool) -> None:
    """After the last step TorchRL has zeros; all else is equal, with images as channels first there."""
    raw = write_webdataset(tmp_path / "raw", "toy", "file", [(3, 1), (4,)])
    options: Any = {"streaming": True} if streaming else {"download": True, "root": tmp_path}
    buffer = theirs.OpenXExperienceReplay("cmu_stretch", shuffle=False, **options)
    td: Any = torch.cat([*iter(buffer)]) if streaming else buffer[:]
    reader = converted(raw, settings, "openx")
    state = ("observation", "state")
    keys: dict[Any, Any] = {
        key: key for key in (state, ("action",), ("discount",), ("next", "reward"), *ENDS)
    }
    assert_equal(td, reader, keys)
    mine = reader.transitions_at(np.arange(reader.transitions))
    images = ("observation", "image")
    np.testing.assert_array_equal(
        td[images].numpy().transpose(0, 2, 3, 1), np.asarray(mine[images])
    )
    done = mine["next", "done"][:, 0]
    for key, order in ((images, (0, 2, 3, 1)), (state, (0, 1))):
        later = ("next", *key)
        after = td[later].numpy().transpose(order)
        np.testing.assert_array_equal(after[~done], np.asarray(mine[later])[~done])
        assert not after[done].any()
    assert not reader.episodes["final_observation",].any()
    episode = np.repeat(np.arange(3), reader.lengths)
    np.testing.assert_array_equal(td["episode"].numpy(), episode * (not streaming))
    texts = [f"put the cup {e}" for e in episode]
    every = reader.episode_batch(0, reader.episode_count)
    assert every.steps["language_instruction",].tolist() == texts
    assert list(td["language_instruction"]) == texts


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("flavour", ["array", "bytes", "pil"])
def test_openx_of_images_in_another_form(tmp_path: Path, flavour: Flavour) -> None:
    """TorchRL takes an image for a dict of its bytes."""
    write_webdataset(tmp_path / "raw", "toy", flavour)
    with pytest.raises((TypeError, IndexError)):
        theirs.OpenXExperienceReplay("cmu_stretch", download=True, root=tmp_path)
