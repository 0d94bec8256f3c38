from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from offline_data.buffers.samplers import (
    RandomSampler,
    RowSet,
    Runs,
    Sampler,
    SamplerWithoutReplacement,
)
from offline_data.errors import UsageError


class Rows:
    """A storage of which some rows are not valid."""

    def __init__(self, total: int, left_out: tuple[int, ...] = ()) -> None:
        self.total, self.left_out = total, np.array(left_out, dtype=np.int64)

    def __len__(self) -> int:
        return self.total

    def rows(self, *, valid_only: bool) -> RowSet:
        return RowSet(self.total, self.left_out if valid_only else self.left_out[:0])

    def runs(self) -> Runs:
        return Runs(torch.zeros(1, dtype=torch.int64), torch.tensor([self.total]))


@pytest.mark.parametrize("left_out", [(), (0,), (9,), (0, 1, 2), (3, 4, 8), (0, 4, 9)])
def test_row_set_leaves_out_exactly_those(left_out: tuple[int, ...]) -> None:
    rows = RowSet(10, np.array(left_out, dtype=np.int64))
    expected = sorted(set(range(10)) - set(left_out))
    assert rows.count == len(expected)
    assert rows.at(torch.arange(rows.count)).tolist() == expected


def draw(sampler: Sampler, storage: Rows, size: int, times: int = 1) -> list[int]:
    return [row for _ in range(times) for row in sampler.sample(storage, size)[0].tolist()]


def test_random_draws_every_valid_row_and_no_other() -> None:
    storage = Rows(10, (3, 9))
    found = draw(RandomSampler(seed=0), storage, 2000)
    assert set(found) == {0, 1, 2, 4, 5, 6, 7, 8}
    counts = np.bincount(found)[[0, 1, 2, 4, 5, 6, 7, 8]]
    assert counts.min() > 180  # 250 expected, deviation 15
    assert set(draw(RandomSampler(seed=0, valid_only=False), storage, 2000)) == set(range(10))


def test_random_never_runs_out() -> None:
    sampler = RandomSampler(seed=0)
    draw(sampler, Rows(4), 3, times=5)
    assert not sampler.ran_out


def test_random_seed_and_torch_seed() -> None:
    storage = Rows(10**6)
    assert draw(RandomSampler(seed=1), storage, 5) == draw(RandomSampler(seed=1), storage, 5)
    assert draw(RandomSampler(seed=1), storage, 5) != draw(RandomSampler(seed=2), storage, 5)
    torch.manual_seed(0)
    first = draw(RandomSampler(), storage, 5)
    torch.manual_seed(0)
    assert draw(RandomSampler(), storage, 5) == first


@pytest.mark.parametrize("sampler", [RandomSampler(seed=4), SamplerWithoutReplacement(seed=4)])
def test_samplers_go_on_where_they_were(sampler: Sampler) -> None:
    storage = Rows(100)
    draw(sampler, storage, 7, times=3)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    other = type(sampler)(seed=9)  # type: ignore[call-arg]
    other.load_state_dict(sampler.state_dict())
    rest = draw(sampler, storage, 7, times=20)
    assert draw(copy, storage, 7, times=20) == rest
    assert draw(other, storage, 7, times=20) == rest


def test_replacement_false_is_the_other_sampler() -> None:
    made: Sampler = RandomSampler(replacement=False, drop_last=True, seed=3)  # type: ignore[call-arg]
    assert isinstance(made, SamplerWithoutReplacement)
    assert made.drop_last
    assert made.seed == 3


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_valid_row_once_an_epoch(drop_last: bool, shuffle: bool) -> None:
    storage = Rows(11, (2, 7))
    sampler = SamplerWithoutReplacement(drop_last, shuffle, seed=0)
    for epoch in range(3):
        seen: list[int] = []
        sizes = []
        while True:
            rows, _ = sampler.sample(storage, 4)
            seen += rows.tolist()
            sizes.append(len(rows))
            if sampler.ran_out:
                break
        assert sizes == ([4, 4] if drop_last else [4, 4, 1])
        assert len(set(seen)) == len(seen)
        assert set(seen) <= {0, 1, 3, 4, 5, 6, 8, 9, 10}
        assert sampler.epoch == epoch + 1
        if not shuffle:
            assert seen == [0, 1, 3, 4, 5, 6, 8, 9, 10][: len(seen)]


def test_epochs_differ_and_follow_from_the_seed() -> None:
    storage = Rows(50)
    orders = [draw(SamplerWithoutReplacement(seed=s), storage, 50, 2) for s in (1, 1, 2)]
    assert orders[0] == orders[1]
    assert orders[0] != orders[2]
    assert orders[0][:50] != orders[0][50:]
    assert sorted(orders[0][:50]) == sorted(orders[0][50:]) == list(range(50))


def test_seed_is_drawn_from_torch_where_none_is_given() -> None:
    def order() -> list[int]:
        torch.manual_seed(5)
        return draw(SamplerWithoutReplacement(), Rows(50), 50)

    assert order() == order()


def test_a_larger_batch_begins_a_new_epoch_with_drop_last() -> None:
    sampler = SamplerWithoutReplacement(drop_last=True, seed=0)
    storage = Rows(10)
    draw(sampler, storage, 4)
    rows = draw(sampler, storage, 8)
    assert sorted(set(rows)) == sorted(rows)
    assert len(rows) == 8


def test_writing_to_drawn_rows_changes_no_later_draw() -> None:
    one, other = (SamplerWithoutReplacement(seed=0) for _ in range(2))
    storage = Rows(20)
    one.sample(storage, 5)[0].fill_(0)
    other.sample(storage, 5)
    assert draw(one, storage, 15) == draw(other, storage, 15)


def test_what_cannot_be_drawn_says_so() -> None:
    with pytest.raises(UsageError, match="more than the 8 transitions"):
        SamplerWithoutReplacement(drop_last=True).sample(Rows(8), 9)
    for sampler in (RandomSampler(), SamplerWithoutReplacement()):
        with pytest.raises(UsageError, match="None of the 2 transitions") as caught:
            sampler.sample(Rows(2, (0, 1)), 1)
        assert "valid_only=False" in str(caught.value.hint)
    with pytest.raises(UsageError, match="must not be negative"):
        SamplerWithoutReplacement(seed=-1)
