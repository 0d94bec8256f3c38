from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.samplers import SliceSamplerWithoutReplacement
from offline_data.errors import UsageError
from offline_data.testing.toy import toy_batch, write_toy
from tests.buffers.samplers.conftest import Episodes

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=20)


def epoch_of(
    sampler: SliceSamplerWithoutReplacement, storage: Episodes, size: int
) -> list[list[int]]:
    batches: list[list[int]] = []
    while len(batches) < 50:
        batches.append(sampler.sample(storage, size)[0].tolist())
        if sampler.ran_out:
            break
    return batches


@settings(deadline=None)
@given(LENGTHS, st.integers(1, 6), st.integers(1, 5), st.booleans(), st.booleans())
def test_each_episode_that_is_long_enough_once_an_epoch(
    lengths: list[int], slice_len: int, count: int, drop_last: bool, shuffle: bool
) -> None:
    storage = Episodes(lengths)
    firsts = np.cumsum([0, *lengths[:-1]])
    enough = [episode for episode, length in enumerate(lengths) if length >= slice_len]
    if not enough or (drop_last and count > len(enough)):
        return
    sampler = SliceSamplerWithoutReplacement(
        slice_len=slice_len, drop_last=drop_last, shuffle=shuffle, seed=0
    )
    full, rest = divmod(len(enough), count)
    sizes = [count * slice_len] * full + [rest * slice_len] * (rest > 0 and not drop_last)
    for epoch in range(3):
        batches = epoch_of(sampler, storage, count * slice_len)
        assert [len(batch) for batch in batches] == sizes
        slices = np.reshape(sum(batches, []), (-1, slice_len))  # noqa: RUF017 - a few
        seen = np.searchsorted(firsts, slices, side="right") - 1
        assert (seen == seen[:, :1]).all()
        assert (np.diff(slices, axis=1) == 1).all()
        assert len(set(seen[:, 0])) == len(seen)
        assert set(seen[:, 0]) <= set(enough)
        assert drop_last or sorted(seen[:, 0]) == enough
        assert shuffle or seen[:, 0].tolist() == enough[: len(seen)]
        assert (sampler.epoch, sampler.position) == (epoch + 1, 0)


def test_starts_are_uniform_and_so_is_the_order(
    follows: Callable[[ArrayLike, ArrayLike], bool],
) -> None:
    sampler = SliceSamplerWithoutReplacement(num_slices=3, seed=0)
    storage = Episodes([2, 4, 3])
    drawn = np.array([sampler.sample(storage, 6)[0].reshape(3, 2)[:, 0] for _ in range(6000)])
    assert follows(np.bincount(drawn.ravel(), minlength=9), [6, 0, 2, 2, 2, 0, 3, 3, 0])
    order = np.searchsorted([0, 2, 6], drawn, side="right") @ [9, 3, 1]
    assert follows(np.unique(order, return_counts=True)[1], [1] * 6)


def test_an_epoch_follows_from_seed_and_number() -> None:
    storage = Episodes([5] * 50)

    def epochs(seed: int) -> list[list[list[int]]]:
        sampler = SliceSamplerWithoutReplacement(slice_len=2, seed=seed)
        return [epoch_of(sampler, storage, 20) for _ in range(2)]

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)
    assert epochs(1)[0] != epochs(1)[1]
    in_tens = epochs(1)[0]
    other = SliceSamplerWithoutReplacement(slice_len=2, seed=1)
    in_sevens = epoch_of(other, storage, 14)
    assert sum(in_sevens, []) == sum(in_tens, [])  # noqa: RUF017 - whatever the batches


def test_short_episodes_are_taken_whole_where_asked() -> None:
    sampler = SliceSamplerWithoutReplacement(slice_len=3, strict_length=False, shuffle=False)
    rows, leaves = sampler.sample(Episodes([2, 3, 1]), 9)
    assert rows.tolist() == [0, 1, 2, 3, 4, 5]
    assert leaves["next", "truncated"][:, 0].nonzero()[:, 0].tolist() == [1, 4, 5]


def test_it_goes_on_where_it_was() -> None:
    storage = Episodes([7] * 30)
    sampler = SliceSamplerWithoutReplacement(slice_len=2, seed=3)
    for _ in range(7):
        sampler.sample(storage, 10)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    other = SliceSamplerWithoutReplacement(slice_len=2)
    other.load_state_dict(sampler.state_dict())
    for _ in range(12):
        rows = sampler.sample(storage, 10)[0].tolist()
        assert copy.sample(storage, 10)[0].tolist() == rows
        assert other.sample(storage, 10)[0].tolist() == rows
        assert copy.ran_out == other.ran_out == sampler.ran_out


def test_where_no_seed_is_given_it_is_drawn() -> None:
    def drawn() -> list[int]:
        sampler = SliceSamplerWithoutReplacement(slice_len=2)
        return list(sampler.sample(Episodes([9] * 20), 20)[0])

    torch.manual_seed(0)
    first = drawn()
    torch.manual_seed(0)
    assert drawn() == first
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    samplers = [SliceSamplerWithoutReplacement(slice_len=2) for _ in range(2)]
    for sampler, generator in zip(samplers, generators, strict=True):
        sampler.set_rng(generator)
    one, other = (sampler.sample(Episodes([9] * 20), 20)[0].tolist() for sampler in samplers)
    assert one == other


def test_what_cannot_be_meant_says_so() -> None:
    with pytest.raises(UsageError, match="over='starts' has no meaning"):
        SliceSamplerWithoutReplacement(slice_len=2, over="starts")
    with pytest.raises(UsageError, match="must not be negative"):
        SliceSamplerWithoutReplacement(slice_len=2, seed=-1)
    with pytest.raises(UsageError, match="A batch of 3 slices is more than the 2 episodes"):
        SliceSamplerWithoutReplacement(slice_len=2, drop_last=True).sample(Episodes([4, 1, 4]), 6)


def test_iterating_over_a_dataset_is_an_epoch(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([5, 1, 3, 4])])
    sampler = SliceSamplerWithoutReplacement(slice_len=3, seed=0)
    ds = BaseDatasetExperienceReplay(tmp_path / "toy", 6, sampler=sampler)
    for _ in range(2):
        seen = [batch["episode"].reshape(-1, 3)[:, 0].tolist() for batch in ds]
        assert [len(one) for one in seen] == [2, 1]
        assert sorted(seen[0] + seen[1]) == [0, 2, 3]
