from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offline_data.buffers.mixture.dealing import Exact, PerRow
from offline_data.buffers.mixture.merge import merge, places_of

weights = st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1, max_size=7).filter(
    any
)


def counts(dealing: Exact | PerRow, shares: list[float], size: int) -> list[int]:
    found: list[int] = torch.bincount(
        dealing.deal(tuple(shares), size, None), minlength=len(shares)
    ).tolist()
    assert len(found) == len(shares)
    return found


@given(weights, st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_exact_batches_add_up(shares: list[float], sizes: list[int]) -> None:
    dealing, dealt, total = Exact(), [0] * len(shares), 0
    whole = math.fsum(shares)
    for size in sizes:
        batch = counts(dealing, shares, size)
        assert sum(batch) == size
        dealt = [a + b for a, b in zip(dealt, batch, strict=True)]
        total += size
        for share, number in zip(shares, dealt, strict=True):
            assert abs(number - total * share / whole) < 2
            assert number == 0 or share > 0


@given(weights, st.integers(1, 300))
def test_the_first_exact_batch_is_to_the_nearest_row(shares: list[float], size: int) -> None:
    whole = math.fsum(shares)
    for number, share in zip(counts(Exact(), shares, size), shares, strict=True):
        assert abs(number - size * share / whole) < 1 + 1e-9


def test_proportions_that_divide_are_the_same_in_every_batch() -> None:
    dealing = Exact()
    assert all(counts(dealing, [1.0, 3.0, 4.0], 16) == [2, 6, 8] for _ in range(100))


@given(weights)
def test_nothing_is_drawn_of_a_member_without_weight(shares: list[float]) -> None:
    found = counts(PerRow(), shares, 500)
    assert all(number == 0 for number, share in zip(found, shares, strict=True) if not share)


def test_the_last_member_with_weight_is_not_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    largest = torch.full((3,), 1 - 2.0**-53, dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *_, **__: largest)
    for shares in ((0.1,) * 10, (0.3, 0.3, 0.4, 0.0, 0.0), (1e-9, 1.0, 0.0)):
        last = max(m for m, share in enumerate(shares) if share)
        assert PerRow().deal(shares, 3, None).tolist() == [last] * 3


@given(st.lists(st.integers(0, 4), min_size=1, max_size=50))
def test_rows_go_where_they_were_dealt(members: list[int]) -> None:
    source = torch.tensor(members)
    numbered = [torch.arange(members.count(m)) + 100 * m for m in range(5)]
    parts = [[rows, rows[:, None] * torch.ones(2)] for rows in numbered]
    merged = merge(parts, places_of(source))
    seen = [0] * 5
    for place, member in enumerate(members):
        assert merged[0][place] == 100 * member + seen[member]
        assert merged[1][place].tolist() == [100 * member + seen[member]] * 2
        seen[member] += 1
