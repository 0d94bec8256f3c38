"""Which rows of a growing storage follow each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from offline_data.base.errors import IntegrityError
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.mixtures.dataset_mixture import DatasetMixture
from offline_data.rows.derived import frame_stack, n_step
from offline_data.rows.samplers import RandomSampler, SliceSampler
from offline_data.torchrl.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer
from offline_data.torchrl.writers import RoundRobinWriter
from tests import oracles_derived as oracle

LENGTHS = (9, 1, 13, 12, 5)
STATE = ("observation", "state")
KINDS = [LazyTensorStorage, LazyMemmapStorage, ListStorage]

kinds = pytest.mark.parametrize("kind", KINDS)


def runs_in(storage: Any) -> list[list[int]]:
    runs = storage.runs()
    rows = torch.arange(len(storage))
    rows = rows if runs.order is None else runs.order.rows(rows)
    return [part.tolist() for part in rows.split(runs.lengths.tolist())]


def bounds_in(buffer: Any) -> list[tuple[int, int]]:
    return [(rows[0], rows[-1] + 1) for rows in runs_in(buffer.storage)]


def flagged(done: list[int], **more: Any) -> TensorDict:
    flags = torch.tensor(done, dtype=torch.bool)[:, None]
    return TensorDict({"next": {"done": flags}, **more}, batch_size=[len(done)])


def filled(rows: Any, kind: Any = LazyTensorStorage) -> Any:
    storage = kind(9)
    storage.set(slice(0, len(rows)), rows)
    return storage


def naive(ends: list[list[bool]], size: int) -> list[list[int]]:
    """Cut the last `size` steps of each environment into episodes, in order of time."""
    runs: list[list[int]] = []
    for column, flags in enumerate(zip(*ends, strict=True)):
        ended = True
        for step in range(max(len(ends) - size, 0), len(ends)):
            if ended:
                runs.append([])
            runs[-1].append(step % size * len(ends[0]) + column)
            ended = flags[step]
    return runs


@settings(max_examples=200, deadline=None)
@given(data=st.data(), size=st.integers(1, 9), width=st.integers(1, 3))
def test_runs_of_a_ring_are_those_of_a_naive_loop(data: Any, size: int, width: int) -> None:
    def ring() -> tuple[Any, Any]:
        storage = LazyTensorStorage(size * width, ndim=1 if width == 1 else 2)
        writer = RoundRobinWriter()
        writer.register_storage(storage)
        return storage, writer

    storage, writer = ring()
    steps: list[list[bool]] = []
    step = st.lists(st.booleans(), min_size=width, max_size=width)
    for ends in data.draw(st.lists(st.lists(step, min_size=1, max_size=14), max_size=8)):
        flags = torch.tensor(ends)[..., None] if width > 1 else torch.tensor(ends)
        writer.extend(TensorDict({"next": {"done": flags}}, flags.shape[:-1]))
        steps += ends
        assert sorted(runs_in(storage)) == sorted(naive(steps, size))
        if data.draw(st.booleans()):
            (after, following), state = ring(), storage.state_dict()
            after.load_state_dict(state)
            following.load_state_dict(writer.state_dict())
            storage, writer = after, following


def test_older_states_and_other_capacities_do_not_join_the_ends() -> None:
    storage = LazyTensorStorage(4)
    storage.set(slice(0, 4), flagged([0, 0, 0, 0]))
    storage.set(slice(0, 2), flagged([0, 0]))
    assert runs_in(storage) == [[2, 3, 0, 1]]
    state = storage.state_dict()
    larger = LazyTensorStorage(5)
    larger.load_state_dict(state)
    assert runs_in(larger) == [[0, 1], [2, 3]]
    del state["links"]["steps"]
    storage.load_state_dict(state)
    assert runs_in(storage) == [[0, 1], [2, 3]]


@kinds
@pytest.mark.parametrize("key", [("collector", "traj_ids"), "traj_ids", "episode"])
def test_numbers_of_trajectories_cut_where_no_flag_does(kind: Any, key: Any) -> None:
    rows = flagged([0, 0, 0, 0, 1, 0])
    rows.set(key, torch.tensor([4, 4, 7, 7, 7, 7]))
    assert runs_in(filled(rows, kind)) == [[0, 1], [2, 3, 4], [5]]
    assert runs_in(filled(rows.select(key), kind)) == [[0, 1], [2, 3, 4, 5]]


@kinds
def test_flags_end_trajectories(kind: Any) -> None:
    flags = {"terminated": torch.tensor([[False], [True], [False], [False]])}
    rows = TensorDict({"next": flags}, [4])
    assert runs_in(filled(rows, kind)) == [[0, 1], [2, 3]]
    rows["next", "truncated"] = torch.tensor([[True], [False], [False], [False]])
    assert runs_in(filled(rows, kind)) == [[0], [1], [2, 3]]
    parts = torch.tensor([[[0], [0]], [[0], [1]], [[0], [0]]], dtype=torch.bool)
    assert runs_in(filled(TensorDict({"next": {"done": parts}}, [3]), kind)) == [[0, 1], [2]]


@kinds
def test_rows_without_marks_and_whole_trajectories_are_runs_of_their_own(kind: Any) -> None:
    alone = [[0], [1], [2]]
    assert runs_in(filled(TensorDict({"action": torch.arange(3)}, [3]), kind)) == alone
    done = torch.zeros(3, 5, 1, dtype=torch.bool)
    assert runs_in(filled(TensorDict({"next": {"done": done}}, [3, 5]), kind)) == alone
    if kind is not LazyMemmapStorage:
        assert runs_in(filled(torch.arange(3), kind)) == alone


@kinds
def test_of_several_leaves_those_that_are_there_count(kind: Any) -> None:
    storage = filled(flagged([0, 0, 1]), kind)
    flags = ("next", "done")
    for named in ({"traj_key": "missing", "end_key": flags}, {"end_keys": ["lost", flags]}):
        drawn, _ = SliceSampler(slice_len=3, **named).sample(storage, 3)
        assert drawn.tolist() == [0, 1, 2]


def test_runs_follow_writes_and_changed_values() -> None:
    storage = filled(flagged([0, 1, 0]))
    assert storage.runs() is storage.runs()
    storage.set(3, flagged([0])[0])
    assert runs_in(storage) == [[0, 1], [2, 3]]
    storage[0:2] = flagged([1, 0])  # values change, and rows stay where they were in time
    assert runs_in(storage) == [[0], [1, 2, 3]]
    storage.set(torch.tensor([1, 2]), flagged([0, 0]), linked=False)
    storage.set(slice(4, 6), flagged([0, 0]), linked=False)
    storage.set(slice(6, 8), flagged([0, 0]))
    assert runs_in(storage) == [[0], [1], [2], [3], [4], [5], [6, 7]]


def test_a_state_of_other_rows_is_refused() -> None:
    state = filled(flagged([0, 0, 0])).state_dict()
    state["links"]["after"] = state["links"]["after"][:2]
    with pytest.raises(IntegrityError, match=r"after is .*\[2\]; expected .*\[3\]"):
        LazyTensorStorage(9).load_state_dict(state)


@pytest.fixture
def ds(toys: Callable[..., Path]) -> Dataset:
    return Dataset(toys(LENGTHS), 16, sampler=RandomSampler(seed=0))


@kinds
def test_rows_of_a_random_batch_follow_each_other_as_in_the_dataset(ds: Dataset, kind: Any) -> None:
    derived = [n_step(3, 0.5), frame_stack(2, [STATE])]
    buffer = TensorDictReplayBuffer(storage=kind(100), derived=derived)
    drawn = [ds.sample(32), ds.sample(17), ds[[3, 4, 5, 7, 8, 9]]]
    for batch in drawn:
        buffer.extend(batch)
    whole: Any = torch.cat([batch.exclude("index") for batch in drawn])
    rows = torch.cat([batch["index"] for batch in drawn]).tolist()
    episodes = whole["episode"].tolist()
    cuts = [
        at
        for at in range(len(rows))
        if not at or rows[at] != rows[at - 1] + 1 or episodes[at] != episodes[at - 1]
    ]
    bounds = list(zip(cuts, [*cuts[1:], len(rows)], strict=True))
    assert bounds_in(buffer) == bounds
    got = buffer[:]
    reward = whole["next", "reward"].numpy()
    terminated, truncated = (whole["next", name].numpy() for name in ("terminated", "truncated"))
    want = oracle.n_step(
        reward, terminated, truncated, bounds, [True] * len(bounds), n=3, gamma=0.5
    )
    assert got["steps_to_next_obs"].tolist() == want.steps.tolist()
    np.testing.assert_allclose(got["next", "reward"][:, 0], want.reward, rtol=1e-12)
    frames = oracle.frame_stack(whole[STATE].numpy(), bounds, k=2)
    np.testing.assert_array_equal(got[STATE], frames)


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_a_copy_in_chunks_has_the_same_episodes(ds: Dataset, chunk: int) -> None:
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(40))
    ends = np.cumsum(LENGTHS).tolist()
    for begin in range(0, 40, chunk):
        if begin == 28:  # in the middle of an episode
            other = TensorDictReplayBuffer(storage=LazyTensorStorage(40))
            other.load_state_dict(buffer.state_dict())
            buffer = other
        if chunk == 1:
            buffer.add(ds[begin])
        else:
            buffer.extend(ds[begin : begin + chunk])
    assert bounds_in(buffer) == list(zip([0, *ends[:-1]], ends, strict=True))


def test_rows_that_are_no_batch_follow_what_was_written(ds: Dataset) -> None:
    plain = TensorDictReplayBuffer(storage=LazyTensorStorage(40))
    plain.extend(ds[10:14].exclude("index"))
    plain.extend(ds[14:16].exclude("index"))
    plain.extend(ds[16:18])
    plain.extend(ds[18:20].exclude("index"))
    assert bounds_in(plain) == [(0, 6), (6, 8), (8, 10)]


def test_rows_of_a_mixture(ds: Dataset) -> None:
    """Row 11 of one member does not follow row 10 of another."""
    mixture = DatasetMixture(ds, Dataset(ds.data_path), batch_size=4)
    batch = mixture.sample(4)
    batch["index"] = torch.tensor([10, 11, 12, 13])
    batch["source"] = torch.tensor([0, 1, 1, 0])
    batch["episode"] = torch.full((4,), 2)
    batch["next"] = ds[10:14]["next"]
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(batch)
    assert bounds_in(buffer) == [(0, 1), (1, 3), (3, 4)]
