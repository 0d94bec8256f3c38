from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_data.preprocess.functions import vectorize
from offline_data.preprocess.functions.step import Places
from offline_data.preprocess.functions.ted import Made
from offline_data.preprocess.functions.vectorize import Gathered, block_rows, checked_rows, parts
from offline_data.testing.pieces import toy_piece

A, B, C = ("a",), ("b",), ("c",)


def gathered(*untouched: set[Any], size: int = 2) -> tuple[Made, Any]:
    """Put blocks together whose columns are changed by 10 unless they are said to be untouched."""
    rows = size * len(untouched)
    table: Any = {A: np.arange(1, rows + 1), B: np.arange(1, rows + 1) * 0.5}
    out = Gathered(table, rows)
    for part, same in zip(parts(rows, size), untouched, strict=True):
        made = {key: values[part] + (0 if key in same else 10) for key, values in table.items()}
        made[C] = np.stack([made[A], made[A]], axis=1).astype(np.int8)
        out.put(part, Made(made, frozenset(same)))
        for key in {A, B, C} - same:
            made[key].fill(99)  # its memory may be used again
    return out.made(), table


def test_blocks_are_laid_end_to_end() -> None:
    made, _ = gathered(set(), set(), set())
    assert list(made.leaves) == [A, B, C]
    assert made.leaves[A].tolist() == [11, 12, 13, 14, 15, 16]
    assert made.leaves[B].tolist() == [10.5, 11.0, 11.5, 12.0, 12.5, 13.0]
    assert made.leaves[C].tolist() == [[n, n] for n in range(11, 17)]
    assert made.leaves[C].dtype == np.int8
    assert not made.untouched


def test_what_no_block_changed_is_not_copied() -> None:
    made, table = gathered({A}, {A}, {A})
    assert made.leaves[A] is table[A]
    assert made.untouched == {A}
    assert made.leaves[B].tolist() == [10.5, 11.0, 11.5, 12.0, 12.5, 13.0]


def test_what_one_block_changed() -> None:
    """Whichever it is, the others' rows are those of the table."""
    assert gathered({A}, set(), {A})[0].leaves[A].tolist() == [1, 2, 13, 14, 5, 6]
    assert gathered(set(), {A}, {A})[0].leaves[A].tolist() == [11, 12, 3, 4, 5, 6]
    assert gathered({A}, {A}, set())[0].leaves[A].tolist() == [1, 2, 3, 4, 15, 16]
    assert gathered({A, B}, {B}, {A})[0].leaves[B].tolist() == [0.5, 1, 1.5, 2, 12.5, 13]
    assert gathered({A}, set(), {A})[0].untouched == frozenset()


def test_blocks_go_by_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectorize, "BLOCK", 1000)
    assert block_rows({A: np.zeros((7, 10)), B: np.zeros(7, np.int8)}) == 1000 // 81
    assert block_rows({A: np.zeros((7, 1000))}) == 1
    assert block_rows({A: np.zeros((7, 0))}) == 1000
    assert list(parts(5, 2)) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    assert list(parts(4, 4)) == [slice(0, 4)]


def test_rows_that_are_compared() -> None:
    """First and last, others spread, the same for the same block."""
    for begin in (0, 1000, 10**12):
        numbers = np.arange(begin, begin + 5000)
        for count in (2, 4, 171, 512):
            rows = checked_rows(numbers, count)
            assert {0, 4999} <= set(rows.tolist())
            assert count - 2 <= len(rows) <= count
            assert (np.diff(rows) > 0).all()
            assert rows.tolist() == checked_rows(numbers, count).tolist()
    assert abs(checked_rows(np.arange(5000), 512).mean() - 2500) < 200
    assert checked_rows(np.arange(5000), 9).tolist() != checked_rows(np.arange(7, 5007), 9).tolist()
    assert checked_rows(np.array([3]), 4).tolist() == [0]


def test_places() -> None:
    piece = toy_piece([4, 3], first_episode=1)
    assert Places(piece, "transitions", 3)(2) == "row 9 (episode 2, step 1)"
    chosen = Places(piece, "transitions", 3).of(np.array([1, 3]))
    assert chosen(1) == "row 10 (episode 2, step 2)"
    assert Places(piece, "observations", 2)(2) == "the observation after row 7 (episode 1, step 3)"
    assert Places(piece, "transitions", 1).block(3)() == (
        "the block of 3 rows from row 5 (episode 1, step 1) to row 7 (episode 1, step 3)"
    )
