"""Rows of batches that are written to a growing buffer follow each other only if they did before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from offline_data.buffers.buffer import TensorDictReplayBuffer
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.derived import action_chunk, frame_stack, n_step, return_to_go
from offline_data.buffers.mixture.mixture import DatasetMixture
from offline_data.buffers.samplers import RandomSampler
from offline_data.buffers.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from offline_data.testing.toy import toy_batch, write_toy
from tests import oracles_derived as oracle

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = (9, 1, 13, 12, 5)
STATE = ("observation", "state")
DERIVED = [n_step(3, 0.5), frame_stack(2, [STATE]), action_chunk(3), return_to_go(0.5)]

kinds = pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage, ListStorage])


@pytest.fixture
def ds(tmp_path: Path) -> BaseDatasetExperienceReplay:
    write_toy(tmp_path / "toy", [toy_batch(LENGTHS)])
    return BaseDatasetExperienceReplay(tmp_path / "toy", 16, sampler=RandomSampler(seed=0))


def bounds_in(buffer: Any) -> list[tuple[int, int]]:
    runs = buffer.storage.runs()
    return [(a, a + n) for a, n in zip(runs.starts.tolist(), runs.lengths.tolist(), strict=True)]


def cut(rows: list[int], episodes: list[int]) -> list[tuple[int, int]]:
    """Cut rows of a dataset where the next one does not follow in the same episode."""
    cuts = [
        place
        for place in range(len(rows))
        if not place or rows[place] != rows[place - 1] + 1 or episodes[place] != episodes[place - 1]
    ]
    return list(zip(cuts, [*cuts[1:], len(rows)], strict=True))


@kinds
def test_a_random_sample(ds: BaseDatasetExperienceReplay, kind: Any) -> None:
    plain = TensorDictReplayBuffer(storage=kind(100))
    derived = TensorDictReplayBuffer(storage=plain.storage, derived=DERIVED)
    drawn = [ds.sample(32), ds.sample(17), ds[[3, 4, 5, 7, 8, 9]]]
    for batch in drawn:
        plain.extend(batch)
    whole: Any = torch.cat([batch.exclude("index") for batch in drawn])
    rows = [row for batch in drawn for row in batch["index"].tolist()]
    bounds = cut(rows, whole["episode"].tolist())
    assert bounds_in(plain) == bounds
    got = derived[:]
    reward = whole["next", "reward"].numpy()
    terminated, truncated = (whole["next", name].numpy() for name in ("terminated", "truncated"))
    known = [True] * len(bounds)
    want = oracle.n_step(reward, terminated, truncated, bounds, known, n=3, gamma=0.5)
    assert got["steps_to_next_obs"].tolist() == want.steps.tolist()
    np.testing.assert_allclose(got["next", "reward"][:, 0], want.reward, rtol=1e-12)
    frames = oracle.frame_stack(whole[STATE].numpy(), bounds, k=2)
    np.testing.assert_array_equal(got[STATE], frames)
    chunk, mask = oracle.action_chunk(whole["action"].numpy(), bounds, k=3)
    np.testing.assert_array_equal(got["action"], chunk)
    np.testing.assert_array_equal(got["chunk_mask"], mask)
    to_go = oracle.return_to_go(reward, bounds, gamma=0.5)
    np.testing.assert_allclose(got["return_to_go"], to_go, rtol=1e-6)


@kinds
@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_a_copy_piece_by_piece_has_the_same_episodes(
    ds: BaseDatasetExperienceReplay, kind: Any, chunk: int
) -> None:
    buffer = TensorDictReplayBuffer(storage=kind(40))
    ends = np.cumsum(LENGTHS).tolist()
    expected = list(zip([0, *ends[:-1]], ends, strict=True))
    for begin in range(0, 40, chunk):
        if begin == 28:  # in the middle of an episode
            other = TensorDictReplayBuffer(storage=kind(40))
            other.load_state_dict(buffer.state_dict())
            buffer = other
        if chunk == 1:
            buffer.add(ds[begin])
        else:
            buffer.extend(ds[begin : begin + chunk])
    assert bounds_in(buffer) == expected


@kinds
def test_pieces_of_a_view(ds: BaseDatasetExperienceReplay, kind: Any) -> None:
    view = ds.subset([10, 11, 12, 14, 15, 30, 31, 3, 4])
    buffer = TensorDictReplayBuffer(storage=kind(40))
    buffer.extend(view[:])
    assert bounds_in(buffer) == [(0, 3), (3, 5), (5, 7), (7, 9)] == bounds_in(view)
    again = TensorDictReplayBuffer(storage=kind(40))
    again.extend(buffer[[0, 1, 3, 4, 8, 0]].exclude("dataset_index"))
    assert bounds_in(again) == [(0, 2), (2, 4), (4, 5), (5, 6)]


def test_rows_of_a_mixture(ds: BaseDatasetExperienceReplay) -> None:
    """Row 11 of one member does not follow row 10 of another."""
    mixture = DatasetMixture(ds, BaseDatasetExperienceReplay(ds.data_path), batch_size=4)
    batch = mixture.sample(4)
    batch["index"] = torch.tensor([10, 11, 12, 13])
    batch["source"] = torch.tensor([0, 1, 1, 0])
    batch["episode"] = torch.full((4,), 2)
    batch["next"] = ds[10:14]["next"]
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(batch)
    assert bounds_in(buffer) == [(0, 1), (1, 3), (3, 4)]


@kinds
def test_rows_that_are_no_batch_follow_as_they_are_written(
    ds: BaseDatasetExperienceReplay, kind: Any
) -> None:
    buffer = TensorDictReplayBuffer(storage=kind(40))
    buffer.extend(ds[10:14].exclude("index"))
    buffer.extend(ds[14:16].exclude("index"))
    assert bounds_in(buffer) == [(0, 6)]
    buffer.extend(ds[16:18])
    buffer.extend(ds[18:20].exclude("index"))
    assert bounds_in(buffer) == [(0, 6), (6, 8), (8, 10)]
