"""Slices that were drawn ahead, and rows that are written before they are handed out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.buffer import ReplayBuffer
from offline_data.buffers.samplers import (
    PrioritizedSliceSampler,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.buffers.storage import LazyTensorStorage
from offline_data.errors import UsageError

SAMPLERS = [
    SliceSampler(slice_len=4, seed=0),
    SliceSamplerWithoutReplacement(slice_len=4, seed=0),
    PrioritizedSliceSampler(20, 0.7, 0.5, slice_len=4, seed=0),
]


def steps(first: int, count: int, *, length: int = 5) -> TensorDict:
    """Make transitions numbered from `first`, in trajectories of `length`."""
    number = torch.arange(first, first + count)
    done = (number % length == length - 1)[:, None]
    return TensorDict({"number": number, "next": {"done": done}}, batch_size=[count])


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda one: type(one).__name__)
def test_a_slice_is_never_of_two_trajectories(sampler: Any) -> None:
    """The ring is written over in the middle of slices that wait to be handed out."""
    buffer = ReplayBuffer(LazyTensorStorage(20), sampler=sampler, batch_size=8, prefetch=3)
    buffer.extend(steps(0, 20))
    written = 20
    for count in (1, 2, 3, 7, 1, 5, 2, 20, 3):
        buffer.sample()
        buffer.extend(steps(written, count))
        written += count
        for _ in range(2):
            slices = buffer.sample()["number"].reshape(-1, 4)
            assert (slices.diff(dim=1) == 1).all()
            assert (slices // 5 == slices[:, :1] // 5).all()


def test_where_no_slice_is_left_that_is_said_and_more_rows_help() -> None:
    buffer = ReplayBuffer(
        LazyTensorStorage(8), sampler=SliceSampler(slice_len=4), batch_size=4, prefetch=2
    )
    buffer.extend(steps(0, 8, length=8))
    buffer.sample()
    buffer.extend(steps(0, 8, length=1))
    with pytest.raises(UsageError, match="No episode has 4"):
        buffer.sample()
    buffer.extend(steps(0, 8, length=8))
    assert buffer.sample()["number"].diff().tolist() == [1, 1, 1]
