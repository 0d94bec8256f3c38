"""Blocks of rows: how many rows, which of them are compared, and where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offline_data.preprocess.functions.views import VIEWS, On

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from offline_data.preprocess.functions.ted import Table
    from offline_data.preprocess.piece import Piece

BLOCK = 8 << 20
"""Bytes of rows that are handed to `torch.vmap` at once."""

_CHECKED = 4
"""Rows of every block that are compared with what the function gives for each alone."""


class Places:
    """Says where rows come from that are counted from some row of a piece on."""

    def __init__(
        self, piece: Piece, on: On, begin: int, at: NDArray[np.int64] | None = None
    ) -> None:
        self._piece, self._on, self._begin, self._at = piece, on, begin, at

    def __call__(self, row: int) -> str:
        """Say where a row is."""
        within = row if self._at is None else int(self._at[row])
        return VIEWS[self._on].place(self._piece, self._begin + within)

    def of(self, at: NDArray[np.int64]) -> Places:
        """Return the places of rows that are chosen by `at`."""
        return Places(self._piece, self._on, self._begin, at)

    def block(self, rows: int) -> Callable[[], str]:
        """Say where a block is."""
        return lambda: f"the block of {rows} rows from {self(0)} to {self(rows - 1)}"


def block_rows(table: Table) -> int:
    """Return how many rows of a table make a block; depends on their width alone."""
    width = sum(values[:1].nbytes for values in table.values())
    return max(1, BLOCK // max(1, width))


def checked_rows(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Choose first and last row of a block, and others that depend on nothing but where it begins."""
    count = len(numbers)
    drawn = np.random.default_rng(int(numbers[0])).integers(0, count, max(0, _CHECKED - 2))
    return np.unique([0, count - 1, *drawn])


def joined(parts: list[Table]) -> Table:
    """Lay tables end to end."""
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
