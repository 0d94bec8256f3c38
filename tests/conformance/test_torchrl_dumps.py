"""`loads` of folders that TorchRL's `dumps` wrote: what TorchRL's own `loads` reads, or a sentence."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

import offline_data as ours
from offline_data.base.errors import IntegrityError, OfflineDataError, UsageError
from tests.conformance.test_torchrl_samplers import _trees  # noqa: F401 - a fixture
from tests.fuzz.cases import generator, instead, spoil_file
from tests.fuzz.mutations import spoil_json_file
from tests.slow import every, slow_but

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs


SIZE = 10


def rows(count: int, first: int = 0) -> TensorDict:
    number = torch.arange(first, first + count)
    done = (number % 4 == 3)[:, None]
    after = {"reward": number[:, None].float() / 3, "done": done, "observation": number.double()}
    return TensorDict(
        {"action": number.to(torch.bfloat16), "k/x y": number[:, None].int(), "next": after},
        [count],
    )


def make(
    package: Any, sampler: Any = None, storage: str = "LazyTensorStorage", **options: Any
) -> Any:
    name, *arguments = sampler or ("RandomSampler",)
    made = getattr(package, name)(*arguments[:-1], **(arguments or [{}])[-1])
    rows_in = getattr(package, storage)(options.pop("size", SIZE), **options.pop("of_storage", {}))
    kind = getattr(package, options.pop("buffer", "TensorDictReplayBuffer"))
    return kind(storage=rows_in, sampler=made, batch_size=4, **options)


def same_rows(mine: Any, other: Any) -> None:
    found, expected = mine[:], other[:]
    assert found.batch_size == expected.batch_size
    for key in rows(1).keys(include_nested=True, leaves_only=True):
        assert found[key].dtype == expected[key].dtype
        assert found[key].equal(expected[key]), key


SLICE = {"slice_len": 2, "end_key": ("next", "done")}
SAMPLERS: dict[str, tuple[Any, ...]] = {
    "random": ("RandomSampler", {}),
    "epochs": ("SamplerWithoutReplacement", {}),
    "slices": ("SliceSampler", SLICE),
    "slice epochs": ("SliceSamplerWithoutReplacement", SLICE),
    "prioritized": ("PrioritizedSampler", SIZE, 0.7, 0.5, {}),
    "prioritized slices": ("PrioritizedSliceSampler", SIZE, 0.7, 0.5, SLICE),
    "alpha 0": ("PrioritizedSampler", SIZE, 0.0, 0.5, {}),
}


@pytest.mark.parametrize(
    ("sampler", "written", "storage"),
    every(
        4,
        SAMPLERS,
        [(7,), (7, 6), (10,), (10, 10, 3)],
        ["LazyTensorStorage", "LazyMemmapStorage"],
    ),
)
def test_what_torchrl_saved(
    sampler: str, written: tuple[int, ...], storage: str, tmp_path: Path
) -> None:
    theirs_rb = make(theirs, SAMPLERS[sampler], storage)
    first = 0
    for count in written:
        theirs_rb.extend(rows(count, first))
        first += count
    theirs_rb.dumps(tmp_path / "dump")
    again, mine = make(theirs, SAMPLERS[sampler], storage), make(ours, SAMPLERS[sampler], storage)
    mine.extend(rows(5, 50))
    again.extend(rows(5, 50))
    again.loads(tmp_path / "dump")
    mine.loads(tmp_path / "dump")
    same_rows(mine, again)
    assert (mine.writer.cursor, mine.write_count) == (again.writer._cursor, again.write_count)
    shutil.rmtree(tmp_path / "dump")  # nothing of it is needed afterwards
    assert mine.sample()["action"].shape == (4,)
    again.extend(rows(4, first))
    mine.extend(rows(4, first))
    same_rows(mine, again)
    if "slices" in sampler or sampler == "slice epochs":  # no slice runs over the cursor
        for _ in range(20):
            batch = mine.sample()["next", "observation"].reshape(-1, 2)
            assert (batch[:, 1] - batch[:, 0]).eq(1).all()


def weights(sampler: Any) -> Any:
    """Return the weights of all rows of TorchRL's sampler, and of ours."""
    tree = getattr(sampler, "_sum_tree", None)
    if tree is not None:
        return torch.tensor([float(tree[row]) for row in range(SIZE)])
    return sampler.state_dict()["priorities"].add(sampler.eps).pow(sampler.alpha)


def test_priorities_and_exponents(tmp_path: Path) -> None:
    saved = make(theirs, ("PrioritizedSampler", SIZE, 0.7, 0.5, {}))
    saved.extend(rows(7))
    saved.update_priority(torch.arange(3), torch.tensor([0.0, 4.0, 2.5]))
    saved.dumps(tmp_path / "dump")
    mine = make(ours, ("PrioritizedSampler", SIZE, 0.1, 0.9, 1e-3, {}))
    mine.loads(tmp_path / "dump")
    sampler = mine.sampler
    assert (sampler.alpha, sampler.beta, sampler.eps) == (0.7, 0.5, 1e-8)
    assert weights(sampler)[:7].allclose(weights(saved.sampler)[:7])
    assert sampler.default_priority == float(saved.sampler.default_priority) == 4.0
    for buffer in (saved, mine):
        buffer.extend(rows(1, 7))
    assert weights(sampler)[:8].allclose(weights(saved.sampler)[:8])
    drawn = torch.cat([mine.sample(100)["index"] for _ in range(40)]).bincount(minlength=8)
    expected = weights(saved.sampler)[:8] / weights(saved.sampler)[:8].sum() * 4000
    assert (drawn - expected).abs().max() < 200


def test_a_growing_sampler_of_another_capacity(tmp_path: Path) -> None:
    saved = make(theirs, ("PrioritizedSampler", SIZE, 0.7, 0.5, {}))
    saved.extend(rows(7))
    saved.dumps(tmp_path / "dump")
    for capacity in (None, 7, 40):
        mine = make(ours, ("PrioritizedSampler", capacity, 0.7, 0.5, {}))
        mine.loads(tmp_path / "dump")
        assert mine.sample()["index"].max() < 7
    with pytest.raises(UsageError, match="max_capacity is 6"):
        make(ours, ("PrioritizedSampler", 6, 0.7, 0.5, {})).loads(tmp_path / "dump")


@pytest.mark.parametrize("key", ["action", ("next", "reward")])
def test_the_best_rows(key: Any, tmp_path: Path) -> None:
    def best(package: Any, key: Any = key) -> Any:
        return make(package, size=4, writer=package.TensorDictMaxValueWriter(rank_key=key))

    saved, mine = best(theirs), best(ours)
    saved.extend(rows(7)[torch.tensor([5, 1, 6, 2, 4, 0, 3])])
    saved.dumps(tmp_path / "dump")
    mine.loads(tmp_path / "dump")
    same_rows(mine, saved)
    for buffer in (saved, mine):
        buffer.extend(rows(3, 4))
    assert sorted(mine[:]["action"].tolist()) == sorted(saved[:]["action"].tolist())
    with pytest.raises(UsageError, match="ranks rows by"):
        best(ours, "other").loads(tmp_path / "dump")
    with pytest.raises(UsageError, match="is of a TensorDictMaxValueWriter"):
        make(ours, size=4).loads(tmp_path / "dump")


def test_several_environments(tmp_path: Path) -> None:
    def steps(count: int) -> TensorDict:
        return TensorDict({"a": torch.arange(count * 3).reshape(count, 3)}, [count, 3])

    def two(package: Any) -> Any:
        return make(package, of_storage={"ndim": 2}, buffer="ReplayBuffer", dim_extend=0)

    saved, again, mine = two(theirs), two(theirs), two(ours)
    saved.extend(steps(3))
    saved.extend(steps(2))
    saved.dumps(tmp_path / "dump")
    again.loads(tmp_path / "dump")
    mine.loads(tmp_path / "dump")
    for _ in range(2):
        assert mine[:]["a"].equal(again[:]["a"])
        assert mine.write_count == again.write_count * 3
        again.extend(steps(2) + 100)
        mine.extend(steps(2) + 100)


def test_tensors_and_texts(tmp_path: Path) -> None:
    saved = make(theirs, buffer="ReplayBuffer")
    saved.extend(torch.arange(14).reshape(7, 2))
    saved.dumps(tmp_path / "tensor")
    mine = make(ours, buffer="ReplayBuffer")
    mine.loads(tmp_path / "tensor")
    assert mine[:].equal(saved[:])
    saved = make(theirs)
    texts = [f"text {number}" for number in range(7)]
    saved.extend(rows(7).set("text", texts))
    saved.dumps(tmp_path / "text")
    mine = make(ours)
    mine.loads(tmp_path / "text")
    assert mine[:]["text"] == texts


def test_the_generator_and_hooks(tmp_path: Path) -> None:
    saved = make(theirs, generator=torch.Generator().manual_seed(3))
    saved.extend(rows(7))
    saved.sample()
    saved.dumps(tmp_path / "dump")
    mine = make(ours)
    mine.storage.register_load_hook(lambda data: data.set("action", data["action"] * 2))
    mine.loads(tmp_path / "dump")
    assert mine.sample()["action"].equal(saved.sample()["action"] * 2)


def test_an_interrupted_epoch_begins_anew(tmp_path: Path) -> None:
    saved, mine = (make(package, SAMPLERS["epochs"]) for package in (theirs, ours))
    saved.extend(rows(8))
    saved.sample()
    saved.dumps(tmp_path / "dump")
    with pytest.warns(UserWarning, match="with 4 of 8 left to draw: a new epoch begins"):
        mine.loads(tmp_path / "dump")
    assert sorted(row for batch in mine for row in batch["index"].tolist()) == [*range(8)]
    last = make(ours, ("SamplerWithoutReplacement", {"drop_last": True}))
    with pytest.raises(UsageError, match="drop_last=False; this sampler True"):
        last.loads(tmp_path / "dump")


def test_dumping_twice_leaves_longer_files(tmp_path: Path) -> None:
    saved, mine = (make(package, SAMPLERS["epochs"]) for package in (theirs, ours))
    saved.extend(rows(10))
    for _ in range(2):
        saved.sample()
        saved.dumps(tmp_path / "dump")
    with pytest.warns(UserWarning, match="with 2 of 10 left"):
        mine.loads(tmp_path / "dump")
    same_rows(mine, saved)


def test_other_parts_are_refused(tmp_path: Path, toys: Callable[..., Path]) -> None:
    for name, sampler in SAMPLERS.items():
        saved = make(theirs, sampler)
        saved.extend(rows(7))
        saved.dumps(tmp_path / name)
    for name, other in [
        *(("random", "epochs"), ("epochs", "random"), ("prioritized", "epochs")),
        *(("random", "prioritized"), ("prioritized", "random"), ("epochs", "prioritized")),
    ]:
        with pytest.raises(UsageError, match="sampler"):
            make(ours, SAMPLERS[other]).loads(tmp_path / name)
    with pytest.raises(UsageError, match="has 7 rows; this storage has space for 6"):
        make(ours, size=6).loads(tmp_path / "random")
    with pytest.raises(UsageError, match="has a ListStorage; expected a LazyTensorStorage"):
        make(ours, storage="ListStorage").loads(tmp_path / "random")
    with pytest.raises(UsageError, match="has a DatasetStorage; expected"):
        ours.open_dataset(toys([3]), 2).loads(tmp_path / "random")
    other = make(ours)
    other.extend(rows(3).rename_key_("action", "another"))
    with pytest.raises(UsageError, match="lack another and also have action"):
        other.loads(tmp_path / "random")


def change(path: Path, **values: Any) -> None:
    """Set values of a file of JSON; a name `action.…` is a field of the leaf."""
    content = json.loads(path.read_text())
    for name, value in values.items():
        leaf, _, field = name.partition("action.")
        if field:
            content["action"][field] = value
        else:
            content[leaf] = value
    path.write_text(json.dumps(content))


def deep(path: Path) -> None:
    for _ in range(80):
        meta = {"next": {"type": "TensorDict"}, "shape": [10], "_type": TENSORDICT}
        path.mkdir(exist_ok=True)
        (path / "meta.json").write_text(json.dumps(meta))
        path /= "next"


def link(path: Path) -> None:
    moved = path.parent.parent / "elsewhere"
    path.rename(moved)
    path.symlink_to(moved)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def streaming(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()
    (path / "streaming_slice.pt").write_bytes(b"cos\nsystem\n.")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


TENSORDICT = "<class 'tensordict._td.TensorDict'>"
META, ACTION = "storage/meta.json", "storage/action.memmap"
HUGE = 10**18
HOSTILE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "short": (ACTION, lambda path: os.truncate(path, 19)),
    "empty": (ACTION, lambda path: os.truncate(path, 0)),
    "gone": (ACTION, Path.unlink),
    "link": (ACTION, link),
    "folder link": ("storage/next", link),
    "storage link": ("storage", link),
    "fifo": (ACTION, fifo),
    "fifo meta": (META, fifo),
    "fifo buffer": ("buffer_metadata.json", fifo),
    "directory": (ACTION, folder),
    "dtype": (META, lambda path: change(path, **{"action.dtype": "torch.quint8"})),
    "no dtype": (META, lambda path: change(path, **{"action.dtype": "os.system"})),
    "dtype list": (META, lambda path: change(path, **{"action.dtype": ["torch.int8"]})),
    "wider": (META, lambda path: change(path, **{"action.dtype": "torch.float64"})),
    "bool": (META, lambda path: change(path, **{"action.dtype": "torch.bool"})),
    "huge": (META, lambda path: change(path, **{"action.shape": [HUGE]})),
    "huge product": (META, lambda path: change(path, **{"action.shape": [2**32, 2**32]})),
    "huge empty": (META, lambda path: change(path, shape=[HUGE], **{"action.shape": [HUGE, 0]})),
    "negative": (META, lambda path: change(path, **{"action.shape": [-10]})),
    "10**400": (META, lambda path: change(path, **{"action.shape": [10**399]})),
    "float shape": (META, lambda path: change(path, **{"action.shape": [10.0]})),
    "other shape": (META, lambda path: change(path, **{"action.shape": [5]})),
    "root shape": (META, lambda path: change(path, shape=[3])),
    "no shape": (META, lambda path: change(path, shape=None)),
    "nested": (META, lambda path: change(path, **{"action.is_nested": True})),
    "up": (META, lambda path: change(path, **{"../../random/x": {"type": "TensorDict"}})),
    "up file": (META, lambda path: change(path, **{"..": {"shape": [10], "dtype": "torch.int8"}})),
    "absolute": (META, lambda path: change(path, **{"/etc": {"type": "TensorDict"}})),
    "nul": (META, lambda path: change(path, **{"\0": {"shape": [10], "dtype": "torch.int8"}})),
    "long": (META, lambda path: change(path, **{"x" * 999: {"shape": [1], "dtype": "torch.int8"}})),
    "class": (META, lambda path: change(path, _type="<class 'subprocess.Popen'>")),
    "type list": (META, lambda path: change(path, _type=[1])),
    "pickle": (
        "storage/next/meta.json",
        lambda path: change(path, _type="<class 'tensordict.tensorclass.NonTensorStack'>", data="pickle.pkl"),
    ),
    "cut": (META, lambda path: os.truncate(path, 40)),
    "no JSON": (META, lambda path: path.write_bytes(b"\x80\x04.")),
    "list": (META, lambda path: path.write_text("[]")),
    "deep JSON": (META, lambda path: path.write_text("[" * 10**5)),
    "deep": ("storage/next", deep),
    "len": ("storage/storage_metadata.json", lambda path: change(path, len=HUGE)),
    "len 11": ("storage/storage_metadata.json", lambda path: change(path, len=11)),
    "len -1": ("storage/storage_metadata.json", lambda path: change(path, len=-1)),
    "pytree": ("storage/storage_metadata.json", lambda path: change(path, is_pytree=True)),
    "tree of tensors": (
        "storage/storage_metadata.json",
        lambda path: change(
            path, is_pytree=True, metadata={"../a": {"shape": [10], "dtype": "torch.int8"}}
        ),
    ),
    "no storage": ("storage/storage_metadata.json", Path.unlink),
    "cursor": ("writer/metadata.json", lambda path: change(path, cursor=10)),
    "cursor text": ("writer/metadata.json", lambda path: change(path, cursor="3")),
    "cursor -1": ("writer/metadata.json", lambda path: change(path, cursor=-1)),
    "written": ("writer/metadata.json", lambda path: change(path, write_count=1e400)),
    "no writer": ("writer/metadata.json", Path.unlink),
    "best": ("writer/metadata.json", lambda path: change(path, rank_key="a")),
    "transforms": ("transform.t", lambda path: path.write_bytes(b"cos\nsystem\n.")),
    "consumed": ("buffer_metadata.json", lambda path: change(path, consume_after_n_samples=3)),
    "batch": ("buffer_metadata.json", lambda path: change(path, batch_size=HUGE)),
    "batch text": ("buffer_metadata.json", lambda path: change(path, batch_size="4")),
    "generator": ("rng_state/rng_state.memmap", lambda path: path.write_bytes(b"\xff" * 5056)),
    "alpha": ("sampler/sampler_metadata.json", lambda path: change(path, _alpha=float("nan"))),
    "alpha -1": ("sampler/sampler_metadata.json", lambda path: change(path, _alpha=-1)),
    "capacity": ("sampler/sampler_metadata.json", lambda path: change(path, _max_capacity=1e18)),
    "half": ("sampler/sampler_metadata.json", lambda path: change(path, _max_capacity=10.5)),
    "highest": ("sampler/sampler_metadata.json", lambda path: change(path, _max_priority=[1e300, 0])),
    "no highest": ("sampler/sampler_metadata.json", lambda path: change(path, _max_priority=None)),
    "version": ("sampler/sampler_metadata.json", lambda path: change(path, _schema_version=9)),
    "weights": ("sampler/sumtree.memmap", lambda path: path.write_bytes(b"\xff" * 80)),
    "few weights": ("sampler/sumtree.memmap", lambda path: os.truncate(path, 79)),
    "streaming": ("sampler", streaming),
}  # fmt: skip
QUICK = {
    "short", "gone", "link", "fifo", "no dtype", "wider", "huge", "up", "class", "pickle", "cut", "deep",
    "len", "tree of tensors", "cursor", "transforms", "batch", "generator", "alpha", "weights", "streaming",
}  # fmt: skip


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    buffer = make(theirs, SAMPLERS["prioritized"], generator=torch.Generator().manual_seed(1))
    buffer.extend(rows(7))
    buffer.extend(rows(6, 7))
    buffer.dumps(tmp_path / "dump")
    return tmp_path / "dump"


@pytest.mark.parametrize("name", slow_but(lambda name: name in QUICK, HOSTILE))
def test_hostile_folders_change_nothing(name: str, dump: Path) -> None:
    mine = make(ours, SAMPLERS["prioritized"])
    mine.extend(rows(5, 50))
    mine.loads(dump)  # unchanged, it is read
    assert mine.writer.cursor == 3
    before = mine.state_dict()
    where, spoil = HOSTILE[name]
    spoil(dump / where)
    with pytest.raises(OfflineDataError) as caught:
        mine.loads(dump)
    assert isinstance(caught.value, IntegrityError | UsageError)
    assert str(dump) in caught.value.message
    assert len(caught.value.message) < 700
    after = mine.state_dict()
    assert after["writer"] == before["writer"]
    assert after["storage"]["count"] == 10
    for key, leaf in before["storage"]["content"]["leaves"].items():
        assert after["storage"]["content"]["leaves"][key].equal(leaf)
    assert after["sampler"]["priorities"].equal(before["sampler"]["priorities"])


def spoiled_at_random(seed: int, dump: Path, case: Path, sampler: str) -> str:
    """Load a copy of which a file is changed: all of it or none; returns what happened."""
    random = generator("torchrl dump", seed)
    shutil.copytree(dump, case)
    files = sorted(path for path in case.rglob("*") if path.is_file())
    for path in random.sample(files, random.choice((1, 1, 2))):
        if random.random() < 0.15:
            instead(random, path)
        elif path.suffix == ".json":
            spoil_json_file(random, path)
        else:
            spoil_file(random, path)
    mine, untouched = (make(ours, SAMPLERS[sampler]) for _ in range(2))
    for buffer in (mine, untouched):
        buffer.extend(rows(5, 50))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mine.loads(case)
    except OfflineDataError:
        same_rows(mine, untouched)
        assert mine.writer.state_dict() == untouched.writer.state_dict()
        return "refused"
    try:
        mine.sample()
        mine.extend(mine[:1].exclude("index"))
    except OfflineDataError:
        return "loaded, no batch"
    return "loaded"


@pytest.mark.parametrize(
    "sampler",
    slow_but(lambda one: one == "slices", ["random", "epochs", "slices", "prioritized"]),
)
def test_damage_at_random(sampler: str, tmp_path: Path) -> None:
    buffer = make(theirs, SAMPLERS[sampler], generator=torch.Generator().manual_seed(1))
    buffer.extend(rows(7))
    buffer.extend(rows(6, 7))
    if sampler == "epochs":
        buffer.sample()
    buffer.dumps(tmp_path / "dump")
    count = int(os.environ.get("TORCHRL_DUMPS", "60"))
    found = Counter(
        spoiled_at_random(seed, tmp_path / "dump", tmp_path / f"{seed}", sampler)
        for seed in range(count)
    )
    assert found["loaded"]
    assert found["refused"] > count / 3


def test_nothing_is_unpickled(dump: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (dump / "prefetch.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    for module, name in ((torch, "load"), (__import__("pickle"), "load")):
        monkeypatch.setattr(module, name, pytest.fail)
    mine = make(ours, SAMPLERS["prioritized"])
    mine.loads(dump)
    assert len(mine) == 10


def test_a_buffer_that_was_emptied(tmp_path: Path) -> None:
    saved, mine = make(theirs), make(ours)
    saved.extend(rows(7))
    saved.empty()
    saved.dumps(tmp_path / "dump")
    mine.loads(tmp_path / "dump")
    assert len(mine) == 0
    mine.extend(rows(3))
    assert mine[:]["next", "observation"].tolist() == [0, 1, 2]
