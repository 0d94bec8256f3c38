"""Slices over the end of a ring buffer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.base.errors import UsageError
from offline_data.rows.derived import n_step, return_to_go, timestep
from offline_data.rows.samplers import (
    PrioritizedSliceSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from offline_data.torchrl.tensordict_buffer import TensorDictReplayBuffer

SAMPLERS = {
    "slices": lambda **o: SliceSampler(seed=0, **o),
    "starts": lambda **o: SliceSampler(seed=0, over="starts", **o),
    "by flag": lambda **o: SliceSampler(seed=0, end_key=("next", "done"), **o),
    "by number": lambda **o: SliceSampler(seed=0, traj_key="number", **o),
    "each once": lambda **o: SliceSamplerWithoutReplacement(seed=0, **o),
    "prioritized": lambda **o: PrioritizedSliceSampler(200, 1.0, 1.0, seed=0, **o),
}

samplers = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


def steps(start: int, stop: int) -> TensorDict:
    """Steps of episodes of 33 and 17, in turn."""
    time = torch.arange(start, stop)
    done = (time % 50 == 32) | (time % 50 == 49)
    number = time // 50 * 2 + (time % 50 > 32)
    return TensorDict(
        {"time": time, "number": number, "next": {"done": done[:, None], "reward": time.float()}},
        [stop - start],
    )


def ring(sampler: Any, kind: Any = LazyTensorStorage, **options: Any) -> Any:
    """Steps 34 to 99, with row 0 at step 66: episodes 34–49, 50–82 (over the end), 83–99."""
    buffer = TensorDictReplayBuffer(storage=kind(66), sampler=sampler, **options)
    buffer.extend(steps(0, 50))
    buffer.extend(steps(50, 100))
    return buffer


@samplers
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_a_slice_continues_from_the_last_row_to_the_first(make: Any, kind: Any) -> None:
    buffer = ring(make(slice_len=32), kind, batch_size=64)
    seen = set()
    for _ in range(20):
        for piece in buffer.sample().split(32):
            first = int(piece["time"][0])
            seen.add(first)
            assert piece["time"].tolist() == list(range(first, first + 32))
            assert piece["index"].tolist() == [time % 66 for time in range(first, first + 32)]
            assert piece["next", "truncated"].nonzero().tolist() == [[31, 0]]
    assert seen == {50, 51}


@samplers
def test_a_slice_does_not_cross_the_cursor(make: Any) -> None:
    for length, starts in ((33, {50}), (17, {*range(50, 67), 83}), (16, {34})):
        buffer = ring(make(slice_len=length), batch_size=length)
        found = {int(buffer.sample()["time"][0]) for _ in range(300)}
        assert found >= starts if length == 16 else found == starts
    with pytest.raises(UsageError, match="No episode has 34 steps"):
        ring(make(slice_len=34), batch_size=34).sample()


def test_short_and_padded_slices() -> None:
    buffer = ring(SliceSamplerWithoutReplacement(slice_len=40, strict_length=False), batch_size=120)
    assert buffer.sample()["time"].sort()[0].tolist() == [*range(34, 100)]
    sampler = PrioritizedSliceSampler(66, 1.0, 1.0, slice_len=4, span=(0, 3), seed=0)
    buffer = ring(sampler, batch_size=4)
    buffer.update_priority(torch.arange(66), 0.0)
    sampler.extend(torch.tensor([65]))  # the only row with a priority
    assert buffer.sample()["time"].tolist() == [65, 66, 67, 68]
    zeros = SliceSampler(slice_len=20, pad="zero", over="starts", seed=0)
    batch = ring(zeros, batch_size=2000).sample()
    for piece in batch.split(20):
        count, first = int(piece["collector", "mask"].sum()), int(piece["time"][0])
        end = 50 if first < 50 else 83 if first < 83 else 100
        assert count == min(end - first, 20)
        assert piece["time"].tolist() == [*range(first, first + count), *[0] * (20 - count)]


@samplers
def test_environments_continue_each_on_its_own(make: Any) -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(132, ndim=2), sampler=make(slice_len=16), batch_size=160
    )
    later: Any = steps(0, 100)
    later["next", "done"] = later["next", "done"].roll(-20, 0)  # other episodes
    later["number"] = later["number"].roll(-20, 0)
    for part in (slice(0, 50), slice(50, 100)):
        buffer.extend(torch.stack([steps(0, 100)[part], later[part]]))
    seen = set()
    for _ in range(30):
        for piece in buffer.sample().split(16):
            first, column = int(piece["time"][0]), int(piece["index"][0]) % 2
            seen.add((first, column))
            assert piece["time"].tolist() == list(range(first, first + 16))
            assert piece["index"].tolist() == [
                (time % 66) * 2 + column for time in range(first, first + 16)
            ]
            assert len(set(piece["number"].tolist())) == 1
    over = {first for first, _ in seen if first < 66 <= first + 15}
    assert over
    assert all((first, 1) not in seen for first in range(48, 63))  # ends at 62


def test_derived_leaves_continue_over_the_end() -> None:
    derived = [n_step(3, 1.0), timestep(), return_to_go()]
    batch = ring(None, derived=derived)[[64, 65, 0, 15, 16, 33, 34]]
    assert batch["time"].tolist() == [64, 65, 66, 81, 82, 99, 34]
    assert batch["timestep"].tolist() == [14, 15, 16, 31, 32, 16, 0]
    assert batch["steps_to_next_obs"].tolist() == [3, 3, 3, 2, 1, 1, 3]
    want = [3 * 64 + 3, 3 * 65 + 3, 3 * 66 + 3, 81 + 82, 82, 99, 3 * 34 + 3]
    assert batch["next", "reward"].tolist() == want
    ends = [83, 83, 83, 83, 83, 100, 50]
    rows = zip(batch["time"].tolist(), ends, strict=True)
    assert batch["return_to_go"].tolist() == [float(sum(range(a, b))) for a, b in rows]


def test_a_write_ends_what_continued() -> None:
    buffer = ring(SliceSampler(slice_len=32, seed=0), batch_size=32, prefetch=3)
    assert buffer.sample()["time"][0] in (50, 51)
    buffer.extend(steps(100, 118))  # now 52 is the oldest
    with pytest.raises(UsageError, match="No episode has 32 steps; the longest of 3 has 31"):
        buffer.sample()
    both: Any = ReplayBuffer(storage=LazyTensorStorage(4), sampler=SliceSampler(slice_len=2))
    both.extend(steps(0, 4))
    starts = {int(both.sample(2)["time"][0]) for _ in range(60)}
    assert starts == {0, 1, 2}  # the newest row is not followed by the oldest


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float64])
def test_ends_of_slices_are_marked_in_flags_of_any_type(dtype: torch.dtype) -> None:
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(60), sampler=SliceSampler(slice_len=5, seed=0), batch_size=20
    )
    rows = steps(0, 60)
    rows["next", "done"] = rows["next", "done"].to(dtype)
    buffer.extend(rows)
    done = buffer.sample()["next", "done"]
    assert done.dtype == dtype
    assert (done.reshape(4, 5)[:, -1] == 1).all()
