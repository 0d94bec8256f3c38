"""Programs written for TorchRL's replay buffers, with the import changed."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict, tensorclass
from torch.utils import _pytree as pytree

import offline_data
from offline_data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    OfflineToOnlineReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSliceSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
    open_dataset,
    prefill_replay_buffer,
)
from offline_data.base.errors import ImmutableError, UsageError
from offline_data.testing.toy import toy_batch, write_toy

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs
    from torchrl.envs.transforms import CatFrames


TENSORS = [LazyTensorStorage, LazyMemmapStorage]
COUNT = 5

Batch = Any


def tensor(start: int, count: int) -> Batch:
    return torch.arange(start, start + count)[:, None] * torch.ones(3)


def tree(start: int, count: int) -> Batch:
    code = torch.arange(start, start + count)
    return {"a": code, "b": {"c": [code[:, None] * 2.0, (code > 2,)]}, 30: code.double()}


def pair(start: int, count: int) -> Batch:
    return torch.arange(start, start + count), torch.arange(start, start + count) / 4


def row_of(batch: Batch, row: Any) -> Batch:
    return pytree.tree_map(lambda leaf: leaf[row], batch)


def assert_trees(found: Batch, expected: Batch) -> None:
    mine, shape = pytree.tree_flatten(found)
    other, other_shape = pytree.tree_flatten(expected)
    assert shape == other_shape
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)


@pytest.mark.parametrize("storage", TENSORS)
@pytest.mark.parametrize("make", [tensor, tree, pair])
def test_rows_that_are_no_tensordicts(
    storage: Any, make: Callable[[int, int], Batch], tmp_path: Path
) -> None:
    """A ring of 5 written 4, 1 and 3 rows at a time has what a list would have."""
    buffer = ReplayBuffer(storage=storage(COUNT), batch_size=4)
    assert buffer.extend(make(0, 4)).tolist() == [0, 1, 2, 3]
    assert buffer.add(row_of(make(4, 1), 0)) == 4
    assert buffer.extend(make(5, 3)).tolist() == [0, 1, 2]
    expected = pytree.tree_map(lambda one, two: torch.cat([one, two]), make(5, 3), make(3, 2))
    assert_trees(buffer[:], expected)
    assert_trees(buffer[-1], row_of(make(4, 1), 0))
    assert_trees(buffer[[[3, 0], [1, 1]]], row_of(expected, torch.tensor([[3, 0], [1, 1]])))
    batch, info = buffer.sample(return_info=True)
    assert_trees(batch, row_of(expected, info["index"]))
    buffer[1:3] = make(90, 2)
    assert_trees(row_of(buffer[:], slice(1, 3)), make(90, 2))
    buffer.dumps(tmp_path / "saved")
    other = ReplayBuffer(storage=storage(COUNT), batch_size=4)
    other.loads(tmp_path / "saved")
    copy = pickle.loads(pickle.dumps(buffer))  # noqa: S301
    assert_trees(other[:], buffer[:])
    assert_trees(copy[:], buffer[:])
    with pytest.raises(UsageError, match="The rows"):
        buffer.extend({"other": torch.arange(2)})
    rows = [row_of(make(7, 2), 0), row_of(make(7, 2), 1)]
    assert len(buffer.extend(rows)) == 2


def test_a_list_of_rows_that_cannot_be_stacked_is_a_runtime_error() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(8))
    with pytest.raises(RuntimeError, match="Stacking the elements of the list"):
        buffer.extend([torch.rand(4), torch.rand(1)])
    with pytest.raises(UsageError, match="feature a is object"):
        buffer.extend({"a": object()})


@pytest.mark.parametrize("storage", TENSORS)
def test_text_is_kept_beside_tensors(storage: Any, tmp_path: Path) -> None:
    buffer: Any = TensorDictReplayBuffer(storage=storage(4), batch_size=64)
    buffer.extend(TensorDict(code=torch.arange(2), deep={"text": "go"}, batch_size=[2]))
    buffer.add(TensorDict(code=torch.tensor(2), deep={"text": "stop"}))
    texts = ["go", "go", "stop"]
    assert list(buffer[:]["deep", "text"]) == texts
    assert buffer[-1]["deep", "text"] == "stop"
    batch = buffer.sample()
    assert list(batch["deep", "text"]) == [texts[code] for code in batch["code"]]
    buffer.dumps(tmp_path / "saved")
    other = TensorDictReplayBuffer(storage=storage(4))
    other.loads(tmp_path / "saved")
    assert list(other[:]["deep", "text"]) == texts
    assert list(pickle.loads(pickle.dumps(buffer))[:]["deep", "text"]) == texts  # noqa: S301
    with pytest.raises(UsageError, match="is a tensor; stored rows have text"):
        buffer.add(TensorDict(code=torch.tensor(2), deep={"text": torch.tensor(1)}))
    with pytest.raises(UsageError, match="code is text"):
        buffer.add(TensorDict(code="two", deep={"text": "stop"}))


def abreast(start: int, steps: int, envs: int = 3, length: int = 4) -> TensorDict:
    """Rows `[envs, steps]` whose `code` is 100 * environment + step."""
    time = torch.arange(start, start + steps)
    code = time + 100 * torch.arange(envs)[:, None]
    done = ((time + torch.arange(envs)[:, None]) % length == length - 1)[..., None]
    return TensorDict({"code": code, "next": {"done": done}}, [envs, steps])


@pytest.mark.parametrize("storage", TENSORS)
def test_environments_side_by_side(storage: Any, tmp_path: Path) -> None:
    """`ndim=2`: written `[E, T]`, read `[E, T]`, sampled `[B]`; a ring along T."""
    buffer: Any = TensorDictReplayBuffer(storage=storage(16, ndim=2), batch_size=32)
    assert buffer.dim_extend == 1
    rows = buffer.extend(abreast(0, 4))
    assert rows.shape == (3, 4)
    assert (len(buffer), buffer.storage.max_size) == (12, 18)  # 16 rows, rounded up to steps of 3
    assert buffer[:]["code"].equal(abreast(0, 4)["code"])
    assert buffer[1, 2:]["code"].tolist() == [102, 103]
    assert buffer[:, -1]["code"].tolist() == [3, 103, 203]
    assert buffer.storage[0]["code"].tolist() == [0, 100, 200]
    batch = buffer.sample()
    assert batch.shape == (32,)
    assert set(batch["code"].tolist()) <= set(abreast(0, 4)["code"].reshape(-1).tolist())
    assert len(set(batch["code"].tolist())) > 6
    assert rows[1, 2] == batch["index"][0] if batch["code"][0] == 102 else True
    buffer.extend(abreast(4, 3))
    assert len(buffer) == 18
    assert buffer[0]["code"].tolist() == [6, 1, 2, 3, 4, 5]
    buffer[0, 3:4] = abreast(50, 1)[0]
    assert buffer[0]["code"].tolist() == [6, 1, 2, 50, 4, 5]
    buffer[:, 1:3] = abreast(60, 2)[0]
    assert buffer[:, 1:3]["code"].tolist() == [[60, 61]] * 3
    buffer.add(abreast(7, 1)[:, 0])
    assert buffer[:, 1]["code"].tolist() == [7, 107, 207]
    buffer.dumps(tmp_path / "saved")
    other = TensorDictReplayBuffer(storage=storage(16, ndim=2), batch_size=32)
    other.loads(tmp_path / "saved")
    assert other[:]["code"].equal(buffer[:]["code"])
    assert (len(other), other.extend(abreast(8, 1)).tolist()) == (18, [[6], [7], [8]])
    with pytest.raises(ValueError, match="single rows"):
        ReplayBuffer(storage=storage(16, ndim=2), writer=TensorDictMaxValueWriter())
    with pytest.raises(UsageError, match="dim_extend"):
        ReplayBuffer(storage=storage(16), dim_extend=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SliceSampler(slice_len=3),
        lambda: SliceSamplerWithoutReplacement(slice_len=3, seed=0),
        lambda: PrioritizedSliceSampler(100, alpha=1.0, beta=1.0, slice_len=3),
    ],
)
def test_slices_are_of_one_environment(make: Callable[[], Any]) -> None:
    buffer: Any = TensorDictReplayBuffer(
        storage=LazyTensorStorage(90, ndim=2), sampler=make(), batch_size=12
    )
    buffer.extend(abreast(0, 20))
    seen = set()
    for _ in range(40):
        codes = buffer.sample()["code"].reshape(-1, 3)
        assert (codes.diff(dim=1) == 1).all()
        step, env = codes % 100, codes // 100
        # an episode ends where step + environment is 3 modulo 4
        assert ((step + env) // 4 == ((step + env) // 4)[:, :1]).all()
        seen |= set(env.reshape(-1).tolist())
    assert seen == {0, 1, 2}


def test_priorities_of_environments_side_by_side() -> None:
    buffer: Any = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(16, ndim=2), batch_size=8, priority_key="p"
    )
    rows = buffer.extend(abreast(0, 4).set("p", torch.ones(3, 4)))
    buffer.update_priority(rows, torch.zeros(3, 4))
    buffer.update_priority(rows[2, 1], 5.0)
    batch = buffer.sample(64)
    assert (batch["code"] == 201).float().mean() > 0.9
    batch["p"] = torch.zeros(64)
    buffer.update_tensordict_priority(batch)
    buffer.update_priority(rows[0, 3], 9.0)
    assert (buffer.sample(64)["code"] == 3).float().mean() > 0.9


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize("empty", [False, True])
def test_what_cannot_be_sampled_is_a_runtime_error(storage: Any, empty: bool) -> None:
    buffer = ReplayBuffer(storage=storage(3), batch_size=2 if empty else None)
    if not empty:
        buffer.extend(torch.arange(3.0))
    with pytest.raises(RuntimeError):
        buffer.sample()
    with pytest.raises(ValueError, match="batch_size" if not empty else "empty"):
        next(iter(buffer)) if empty else buffer.sample()


def test_rows_without_a_rank_and_epochs_without_a_size() -> None:
    for data in (torch.arange(3), {"a": torch.arange(3)}):
        buffer = ReplayBuffer(storage=LazyTensorStorage(3), writer=TensorDictMaxValueWriter())
        with pytest.raises(RuntimeError, match="tensor collection"):
            buffer.extend(data)
    with pytest.raises(ValueError, match="drop_last"):
        ReplayBuffer(storage=ListStorage(3), sampler=SamplerWithoutReplacement(drop_last=True))


@pytest.mark.parametrize("kind", ["ReplayBuffer", "TensorDictReplayBuffer"])
@pytest.mark.parametrize("writer", ["RoundRobinWriter", "TensorDictRoundRobinWriter"])
def test_the_leaf_index_is_where_torchrl_has_it(kind: str, writer: str) -> None:
    found = []
    for package in (theirs, offline_data):
        buffer = getattr(package, kind)(
            storage=package.LazyTensorStorage(4),
            writer=getattr(package, writer)(),
            batch_size=2,
        )
        buffer.extend(TensorDict({"a": torch.arange(4)}, [4]))
        batch, info = buffer.sample(return_info=True)
        found.append("index" in batch.keys())  # noqa: SIM118
        assert set(batch["a"].tolist()) == set(torch.as_tensor(info["index"]).tolist())
    assert found[0] == found[1]


def test_leaves_by_name_and_in_place() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(10), sampler=SliceSampler(slice_len=2))
    done = torch.zeros(6, 1, dtype=torch.bool)
    rows = TensorDict({"a": torch.arange(6.0), "b": torch.ones(6), ("next", "done"): done}, [6])
    buffer.extend(rows)
    buffer.set_at_("a", torch.tensor([90.0, 91.0]), torch.tensor([2, 5]))
    assert buffer["a"].tolist() == [0, 1, 90, 3, 4, 91]
    buffer.set_("b", torch.full((6,), 7.0))
    buffer.update_(TensorDict({"a": torch.zeros(6)}, [6]))
    assert (buffer["a"].sum(), buffer["b"].sum()) == (0, 42)
    assert buffer.storage.runs().starts.tolist() == [0]
    buffer.set_at_(("next", "done"), torch.ones(1, 1, dtype=torch.bool), [2])
    assert buffer["next", "done"][:, 0].tolist() == [False, False, True, False, False, False]
    assert buffer.storage.runs().starts.tolist() == [0, 3]
    with pytest.raises(UsageError, match="no feature c"):
        buffer.set_("c", torch.ones(6))
    with pytest.raises(UsageError, match="The rows"):
        buffer[0] = TensorDict({"a": torch.tensor(1.0)})
    with pytest.raises(UsageError, match="The rows"):
        buffer[0] = rows[0].clone().set("c", torch.tensor(1))
    assert buffer.stats()["size"] == 6


def test_hooks_store_each_observation_once(tmp_path: Path) -> None:
    after = {"observation": torch.arange(1.0, 7)[:, None], "done": torch.zeros(6, 1).bool()}
    after["done"][[2, 5]] = True
    root = {"observation": torch.arange(6.0)[:, None], "done": torch.zeros(6, 1).bool()}
    rows = TensorDict({**root, "next": after}, [6])
    for size in (6, 9):
        buffer: Any = TensorDictReplayBuffer(storage=LazyTensorStorage(size))
        hook = offline_data.TED2Flat()
        buffer.register_save_hook(hook)
        buffer.extend(rows)
        buffer.dumps(tmp_path / f"{size}")
        assert (hook.shift, hook.is_full) == ((0, True) if size == 6 else (6, False))
        other = TensorDictReplayBuffer(storage=LazyTensorStorage(size))
        other.register_load_hook(offline_data.Flat2TED())
        other.loads(tmp_path / f"{size}")
        for key in rows.keys(include_nested=True, leaves_only=True):
            assert other[:][key].equal(rows[key]), key


def test_samplers_and_writers_are_saved(tmp_path: Path) -> None:
    storage = LazyTensorStorage(10)
    buffer = ReplayBuffer(storage=storage, sampler=SamplerWithoutReplacement(seed=3), batch_size=4)
    buffer.extend(torch.arange(10))
    buffer.sample()
    buffer.sampler.dumps(tmp_path / "sampler")
    buffer.writer.dump(tmp_path / "writer")
    buffer.save(tmp_path / "all")
    rest = [batch.tolist() for batch in buffer]
    sampler, writer = SamplerWithoutReplacement(), RoundRobinWriter()
    sampler.load(tmp_path / "sampler")
    writer.loads(tmp_path / "writer")
    assert (writer.cursor, writer.write_count) == (0, 10)
    other = ReplayBuffer(storage=storage, sampler=sampler, batch_size=4)
    assert [batch.tolist() for batch in other] == rest
    third = ReplayBuffer(
        storage=LazyTensorStorage(10), sampler=SamplerWithoutReplacement(), batch_size=4
    )
    third.load(tmp_path / "all")
    assert [batch.tolist() for batch in third] == rest


def test_names_and_nested_batch_sizes_are_kept() -> None:
    for storage in TENSORS:
        buffer: Any = TensorDictReplayBuffer(storage=storage(4), batch_size=3)
        inner = TensorDict({"x": torch.rand(2, 5, 7)}, [2, 5, 7])
        buffer.extend(TensorDict({"in": inner}, [2, 5], names=[None, "time"]))
        batch = buffer.sample()
        assert batch.names == [None, "time"]
        assert batch["in"].batch_size == (3, 5, 7)


def test_a_storage_of_given_tensors_on_a_device_and_files_that_go() -> None:
    storage = TensorStorage(TensorDict({"a": torch.arange(3)}, [3]), device="meta")
    assert storage.device == torch.device("meta")
    mapped = LazyMemmapStorage(4)
    mapped.set(0, torch.ones(2))
    folder = mapped.scratch_dir
    assert folder is not None
    assert folder.exists()
    assert mapped.cleanup()
    assert not folder.exists()
    assert not mapped.cleanup()


def test_slices_may_span_the_ends_of_an_episode() -> None:
    """Every start from `span` steps before an episode on is drawn; what is outside is cut off."""
    rows = TensorDict({"eps": torch.tensor([0] * 5 + [1] * 2)}, [7])
    expected = {(0, 0), (0, 1), (0, 2), (1, 3), (2, 4), (3, 4), (4, 4), (5, 5), (5, 6), (6, 6)}
    found = set()
    buffer: Any = TensorDictReplayBuffer(
        storage=LazyTensorStorage(7),
        sampler=SliceSampler(num_slices=1, traj_key="eps", span=True, seed=0),
        batch_size=3,
    )
    buffer.extend(rows)
    for _ in range(300):
        batch = buffer.sample()
        assert len(batch["eps"].unique()) == 1
        found.add((int(batch["index"][0]), int(batch["index"][-1])))
        assert batch["next", "truncated"][:, 0].tolist() == [False] * (len(batch) - 1) + [True]
    assert found == expected
    assert (buffer.sampler.traj_key, buffer.sampler.end_key) == ("eps", None)
    right = SliceSampler(slice_len=3, traj_key="eps", span=(False, 1), strict_length=True)
    buffer.set_sampler(right)
    firsts = {tuple(buffer.sample()["index"].tolist()) for _ in range(100)}
    assert firsts == {(0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4), (5, 6)}


PARTS: list[Any] = [
    (theirs.RandomSampler(), "RandomSampler"),
    (theirs.SamplerWithoutReplacement(drop_last=True, shuffle=False), "SamplerWithoutReplacement"),
    (theirs.SliceSampler(slice_len=2, traj_key="episode"), "SliceSampler"),
    (theirs.SliceSampler(slice_len=2), "SliceSampler"),
    (theirs.SliceSamplerWithoutReplacement(num_slices=2), "SliceSamplerWithoutReplacement"),
]


@pytest.mark.parametrize(("sampler", "kind"), PARTS, ids=lambda part: type(part).__name__)
def test_samplers_of_torchrl_are_taken_by_their_meaning(
    sampler: Any, kind: str, tmp_path: Path
) -> None:
    write_toy(tmp_path / "toy", [toy_batch([6, 4])])
    dataset = open_dataset(tmp_path / "toy", 4, sampler=sampler, writer=theirs.RoundRobinWriter())
    assert type(dataset.sampler).__name__ == kind
    assert dataset.sample().shape == (4,)
    with pytest.raises(ImmutableError):
        dataset.extend(dataset[:2])
    growing: Any = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20),
        sampler=sampler,
        writer=theirs.TensorDictMaxValueWriter(rank_key="action", reduction="max"),
        batch_size=4,
    )
    assert (growing.writer.rank_key, growing.writer.reduction) == (("action",), "max")
    for name in ("drop_last", "shuffle", "slice_len", "num_slices", "strict_length"):
        assert getattr(growing.sampler, name, None) == getattr(sampler, name, None)


def test_a_sampler_of_torchrls_own_kind_is_refused() -> None:
    class Mine(theirs.RandomSampler):  # type: ignore[misc]
        """Something else."""

    with pytest.raises(UsageError, match="not a sampler"):
        ReplayBuffer(storage=LazyTensorStorage(3), sampler=Mine())


@pytest.mark.filterwarnings("ignore:The last dimension of the tensordict:UserWarning")
def test_frames_that_a_transform_of_torchrl_stacks() -> None:
    frames = CatFrames(
        N=3, dim=-1, in_keys=["pixels"], out_keys=["stack"], reset_key="_reset", done_key="done"
    )
    transform, sampler = frames.make_rb_transform_and_sampler(
        batch_size=4, traj_key=("collector", "traj_ids"), strict_length=False
    )
    ids = {"traj_ids": torch.zeros(20, dtype=torch.int64)}
    after = {"pixels": torch.arange(1.0, 21)[:, None], "done": torch.zeros(20, 1).bool()}
    rows = TensorDict(
        {
            "pixels": torch.arange(20.0)[:, None],
            "collector": ids,
            "next": after,
            "done": torch.zeros(20, 1).bool(),
        },
        [20],
    )
    buffer: Any = TensorDictReplayBuffer(
        storage=LazyTensorStorage(20), sampler=sampler, transform=transform, batch_size=4
    )
    buffer.extend(rows)
    batch = buffer.sample()
    assert batch["stack"].shape == (4, 3)
    assert (batch["stack"].diff(dim=-1) == 1).all()


def test_prioritized_buffers_draw_what_matters() -> None:
    plain = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=ListStorage(10), batch_size=64)
    rows = plain.extend([torch.tensor(float(row)) for row in range(10)])
    plain.update_priority(rows, torch.eye(10)[3] * 1000)
    batch, info = plain.sample(return_info=True)
    assert (batch == 3).float().mean() > 0.9
    assert info["priority_weight"].shape == (64,)
    buffer: Any = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(10), batch_size=64, priority_key="p"
    )
    buffer.extend(TensorDict({"a": torch.arange(10), "p": torch.eye(10)[7] * 1000}, [10]))
    assert (buffer.sample(include_info=True)["a"] == 7).float().mean() > 0.9
    with pytest.raises(UsageError, match="sync"):
        PrioritizedReplayBuffer(alpha=1.0, beta=1.0, sync=False)


def test_offline_rows_beside_those_of_ones_own(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([6, 4])])
    dataset = open_dataset(tmp_path / "toy", 4)
    both = OfflineToOnlineReplayBuffer(dataset, online_capacity=8, offline_fraction=0.25)
    assert both.sample(8)["action"].shape[0] == 8  # all of the dataset: nothing was written
    online = dataset[:3].exclude("index")
    online["action"].fill_(-5)
    both.extend(online)
    for _ in range(5):
        ones_own = (both.sample(8)["action"].reshape(8, -1) == -5).all(1)
        assert ones_own.tolist() == [False] * 2 + [True] * 6
    both.anneal(1, 2)
    assert (both.offline_fraction, len(both)) == (0.125, 13)
    both.anneal(9, 2)
    assert (both.sample(4)["action"] == -5).all()
    buffer = prefill_replay_buffer(
        TensorDictReplayBuffer(storage=LazyTensorStorage(20)), dataset, n_samples=7, chunk_size=3
    )
    assert buffer[:]["action"].equal(dataset[:7]["action"])
    with pytest.raises(UsageError, match="either"):
        OfflineToOnlineReplayBuffer(dataset)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["offline_data", "torchrl.data"])
def test_torchrl_knows_the_prefix_after_the_import(first: str, tmp_path: Path) -> None:
    """In both orders, `torchrl.data.datasets.load_dataset("offline_data:…")` calls this package."""
    write_toy(tmp_path / "local" / "toy" / "r1", [toy_batch([6, 4])], dataset="local:toy@r1")
    program = (
        f"import warnings; warnings.simplefilter('ignore'); import {first}, offline_data\n"
        "from torchrl.data.datasets import load_dataset\n"
        "import torchrl.data as theirs\n"
        f"rb = load_dataset('offline_data:local:toy', batch_size=4, root={str(tmp_path)!r})\n"
        "both = theirs.OfflineToOnlineReplayBuffer('offline_data:local:toy', batch_size=4, "
        f"online_capacity=5, root={str(tmp_path)!r})\n"
        "print(type(rb).__module__.partition('.')[0], rb.sample().shape, both.sample().shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.stdout == "torchrl torch.Size([4]) torch.Size([4])\n", done.stderr


def test_a_dataset_takes_any_writer_and_is_never_written(tmp_path: Path) -> None:
    write_toy(tmp_path / "local" / "toy" / "r1", [toy_batch([6, 4])], dataset="local:toy@r1")
    dataset = offline_data.load_dataset(
        dataset_id="local:toy", batch_size=4, root=tmp_path, writer=RoundRobinWriter()
    )
    with pytest.raises(ImmutableError):
        dataset.add(dataset[0])
    with pytest.raises(UsageError, match="one id"):
        offline_data.load_dataset()
    assert isinstance(dataset.sampler, RandomSampler)


def test_info_has_the_flags_of_slices() -> None:
    """Also where batches have no such leaves, and for the rows' own `terminated`."""
    done = (torch.arange(20) % 5 == 4)[:, None]
    rows = TensorDict({"a": torch.arange(20), ("some", "done"): done}, [20])
    for with_flag in (False, True):
        if with_flag:
            rows["some", "terminated"] = done
        for sampler in (
            SliceSampler(
                slice_len=3, end_key=("some", "done"), truncated_key=("some", "truncated")
            ),
            PrioritizedSliceSampler(
                20,
                1.0,
                1.0,
                slice_len=3,
                end_key=("some", "done"),
                truncated_key=("some", "truncated"),
            ),
        ):
            buffer = ReplayBuffer(storage=LazyTensorStorage(20), sampler=sampler, batch_size=6)
            buffer.extend(rows)
            batch, info = buffer.sample(return_info=True)
            last = torch.tensor([False, False, True] * 2)[:, None]
            assert info["some", "truncated"].equal(last)
            assert info["some", "done"].equal(last | done[batch["a"]])
            assert info["some", "terminated"].equal(done[batch["a"]] & with_flag)


@tensorclass
class Pair:
    """Rows with attributes."""

    code: torch.Tensor
    image: torch.Tensor


@pytest.mark.parametrize("storage", [*TENSORS, ListStorage])
def test_rows_of_a_tensorclass(storage: Any) -> None:
    buffer: Any = ReplayBuffer(storage=storage(6), batch_size=3)
    kind: Any = Pair
    rows = kind(torch.arange(4), torch.rand(4, 2, 2), batch_size=[4])
    buffer.extend(rows)
    buffer.add(rows[2])
    batch, info = buffer.sample(return_info=True)
    assert isinstance(batch, Pair)
    assert batch.image.equal(rows.image[batch.code])
    assert batch.code.equal(torch.tensor([0, 1, 2, 3, 2])[info["index"]])
    assert isinstance(buffer[:], Pair)
    assert buffer[4].code == 2
    assert buffer["code"].tolist() == [0, 1, 2, 3, 2]

    def look(given: Any) -> Any:
        assert isinstance(given, Pair)
        return given

    buffer.append_transform(look)
    assert isinstance(buffer.sample(), Pair)


def test_a_tensordict_without_leaves_is_room() -> None:
    storage = TensorStorage(TensorDict(batch_size=[5]))
    assert (len(storage), storage.max_size) == (0, 5)
    buffer = ReplayBuffer(storage=storage, batch_size=2)
    buffer.extend(TensorDict({"a": torch.arange(7)}, [7]))
    assert buffer[:]["a"].tolist() == [5, 6, 2, 3, 4]


def test_transforms_are_inserted_where_there_are_some() -> None:
    buffer = ReplayBuffer(storage=LazyTensorStorage(2), batch_size=2)
    buffer.extend(torch.ones(2))
    buffer.insert_transform(0, lambda rows: rows + 1).insert_transform(-1, lambda rows: rows * 5)
    for index in (3, -3):
        with pytest.raises(ValueError, match="none is at"):
            buffer.insert_transform(index, abs)
    assert buffer.sample().tolist() == [6, 6]


def test_what_samplers_of_slices_are() -> None:
    prioritized = PrioritizedSliceSampler(9, 1.0, 1.0, slice_len=2, traj_key="episode")
    assert isinstance(prioritized, SliceSampler)
    assert (prioritized.traj_key, prioritized.strict_length) == ("episode", True)
    with pytest.raises(UsageError, match="replacement"):
        PrioritizedSliceSampler(9, 1.0, 1.0, slice_len=2, replacement=False)
    sampler = SliceSampler(replacement=False, slice_len=2)
    assert isinstance(sampler, SliceSampler)
    assert isinstance(sampler, SamplerWithoutReplacement)


def test_a_fragmented_sampler_of_torchrl_is_refused() -> None:
    sampler = theirs.SliceSampler(slice_len=2, traj_key="t", step_key="s", fragmented=True)
    with pytest.raises(UsageError, match="does not support fragmented=True"):
        TensorDictReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler, batch_size=2)
