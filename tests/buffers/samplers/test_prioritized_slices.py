from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.samplers import PrioritizedSampler, PrioritizedSliceSampler
from offline_data.buffers.samplers.slices import MASK
from offline_data.errors import UsageError
from offline_data.testing.toy import toy_batch, write_toy
from tests.buffers.samplers.conftest import Episodes

pytestmark = pytest.mark.usefixtures("tree")
Follows = Callable[[ArrayLike, ArrayLike], bool]
LENGTHS = [6, 2, 3, 5]


def made(capacity: int = 16, **options: Any) -> PrioritizedSliceSampler:
    """Row `i` has priority `i + 1`."""
    sampler = PrioritizedSliceSampler(capacity, 1.0, 0.5, 0.0, torch.float64, seed=0, **options)
    sampler.update_priority(torch.arange(capacity), torch.arange(1.0, capacity + 1))
    return sampler


@pytest.mark.parametrize("strict", [True, False])
def test_priorities_choose_the_starts(follows: Follows, strict: bool) -> None:
    sampler = made(slice_len=3, strict_length=strict)
    starts = np.isin(np.arange(16), [0, 1, 2, 3, 8, 11, 12, 13] + ([] if strict else [6]))
    rows, leaves = sampler.sample(Episodes(LENGTHS), 60_000)
    first = leaves["is_init"][:, 0]
    seen = rows[first]
    assert len(seen) == 20_000
    assert follows(np.bincount(seen, minlength=16), starts * np.arange(1.0, 17))
    weight = leaves["priority_weight"]
    np.testing.assert_allclose(weight[first], (seen.double() + 1) ** -0.5, rtol=1e-12)
    begins = first.nonzero()[:, 0]
    lengths = torch.diff(begins, append=torch.tensor([len(rows)]))
    assert torch.equal(weight, weight[first].repeat_interleave(lengths))
    assert torch.equal(
        rows, seen.repeat_interleave(lengths) + torch.cat([*map(torch.arange, lengths)])
    )
    assert lengths[seen == 6].tolist() == [2] * int((seen == 6).sum())
    assert set(lengths[seen != 6].tolist()) == {3}


def test_weights_are_relative_to_rows_that_can_be_drawn() -> None:
    """TorchRL takes the least of all rows, here row 9's, from which no slice begins."""
    sampler = made(slice_len=3)
    sampler.update_priority(torch.tensor([0, 9]), torch.tensor([2.0, 0.01]))
    rows, leaves = sampler.sample(Episodes(LENGTHS), 3000)
    assert float(leaves["priority_weight"].max()) == 1
    assert set(rows[leaves["priority_weight"] == 1].tolist()) <= {0, 1, 2, 3}


def test_other_lengths_other_starts() -> None:
    sampler, storage = made(num_slices=200), Episodes(LENGTHS)
    for length, expected in ((5, {0, 1, 11}), (6, {0}), (2, {*range(5), 6, 8, 9, *range(11, 15)})):
        for _ in range(2):
            rows, _ = sampler.sample(storage, 200 * length)
            assert set(rows.reshape(200, length)[:, 0].tolist()) == expected


def test_rows_that_no_slice_begins_with_keep_their_priority() -> None:
    sampler, storage = made(capacity=20, num_slices=1), Episodes(LENGTHS)
    sampler.sample(storage, 6)
    storage.append(4)
    sampler.update_priority(torch.tensor([19]), 1e15)
    sampler.sample(storage, 6)
    assert sampler.sample(storage, 1)[0].tolist() == [19]


def test_padding() -> None:
    sampler = made(slice_len=3, strict_length=False, pad_output=True)
    sampler.update_priority(6, 1e15)
    rows, leaves = sampler.sample(Episodes(LENGTHS), 6)
    assert rows.tolist() == [6, 7, 7] * 2
    assert leaves[MASK].tolist() == [True, True, False] * 2
    assert leaves["priority_weight"].shape == (6,)


def test_it_goes_on_where_it_was() -> None:
    storage = Episodes(LENGTHS)
    sampler = made(slice_len=2)
    sampler.sample(storage, 20)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    other = PrioritizedSliceSampler(16, 0.2, 0.0, dtype=torch.float64, slice_len=2, seed=5)
    other.load_state_dict(sampler.state_dict())
    for _ in range(5):
        rows, leaves = sampler.sample(storage, 20)
        for going in (copy, other):
            found, found_leaves = going.sample(storage, 20)
            assert torch.equal(found, rows)
            assert torch.equal(found_leaves["priority_weight"], leaves["priority_weight"])
        for one in (sampler, copy, other):
            one.update_priority(rows, rows + 0.5)


def test_what_cannot_be_meant_says_so() -> None:
    with pytest.raises(UsageError, match="leave over out"):
        made(slice_len=2, over="starts")
    with pytest.raises(UsageError, match="Give either"):
        made()
    with pytest.raises(UsageError, match="has 17 transitions"):
        made(slice_len=2).sample(Episodes([17]), 2)
    assert isinstance(made(slice_len=2, traj_key="episode", cache_values=True), PrioritizedSampler)


def test_batches_of_a_dataset(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([5, 1, 3])])
    sampler = PrioritizedSliceSampler(9, 1.0, 1.0, slice_len=3, seed=0)
    ds = BaseDatasetExperienceReplay(tmp_path / "toy", 60, sampler=sampler)
    ds.update_priority(torch.tensor([2]), 1e6)
    batch = ds.sample().reshape(20, 3)
    assert (batch["action"][:, :, 0] == torch.tensor([-1003.0, -1004, -1005])).all()
    assert batch["next", "truncated"][:, :, 0].tolist() == [[False, False, True]] * 20
    assert batch["next", "terminated"][:, :, 0].tolist() == [[False, False, True]] * 20
