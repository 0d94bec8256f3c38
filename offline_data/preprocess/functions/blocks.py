"""Blocks of rows: how many rows, which of them are compared, where they come from, where they go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.preprocess.functions.vectorized import Made
from offline_data.preprocess.functions.views import VIEWS, On

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.ted import Table
    from offline_data.preprocess.piece import Piece

BLOCK = 8 << 20
"""Bytes of rows that are handed to `torch.vmap` at once."""


class Places:
    """Says where rows come from that are counted from some row of a piece on."""

    def __init__(
        self, piece: Piece, on: On, begin: int = 0, at: NDArray[np.int64] | None = None
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


class Gathered:
    """What blocks of a table became, laid end to end; columns that no block changed are not copied.

    Args:
        table: `[n, …]` columns that the blocks are of.
        rows: n.

    Example:
        >>> table = {("a",): np.arange(2), ("b",): np.arange(2)}
        >>> gathered = Gathered(table, 2)
        >>> gathered.put(
        ...     slice(0, 2), Made({**table, ("b",): np.array([5, 7])}, frozenset([("a",)]))
        ... )
        >>> gathered.made().leaves["b",].tolist(), gathered.made().leaves["a",] is table["a",]
        ([5, 7], True)
    """

    def __init__(self, table: Table, rows: int) -> None:
        self._table, self._rows = table, rows
        self._columns: Table = {}
        self._order: list[Key] = []
        self._untouched: set[Key] = set()

    def put(self, part: slice, made: Made) -> None:
        """Take what became of the next block; its memory may be used again afterwards."""
        if not self._order:
            self._order, self._untouched = list(made.leaves), set(made.untouched)
        for key in self._untouched - made.untouched:  # left out so far
            self._fill(slice(0, part.start), key, self._table[key][: part.start])
        self._untouched &= made.untouched
        for key in self._order:
            if key not in self._untouched:
                self._fill(part, key, made.leaves[key])

    def made(self) -> Made:
        """Return all rows."""
        columns = {**self._table, **self._columns}
        return Made({key: columns[key] for key in self._order}, frozenset(self._untouched))

    def _fill(self, part: slice, key: Key, values: NDArray[Any]) -> None:
        if key not in self._columns:
            self._columns[key] = np.empty((self._rows, *values.shape[1:]), values.dtype)
        self._columns[key][part] = values


def block_rows(table: Table) -> int:
    """Return how many rows of a table make a block; depends on their width alone."""
    width = sum(values[:1].nbytes for values in table.values())
    return max(1, BLOCK // max(1, width))


def parts(rows: int, size: int) -> Iterator[slice]:
    """Cut rows into blocks of a size."""
    return (slice(begin, min(begin + size, rows)) for begin in range(0, rows, size))


def checked_rows(numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Choose first and last row of a block, and others that depend on nothing but where it begins.

    Args:
        numbers: `[n]` numbers of its rows.
        count: How many to choose, at least 2; fewer where there are fewer.

    Returns:
        Rows of the block, ascending.

    Example:
        >>> checked_rows(np.arange(3), 9).tolist()
        [0, 1, 2]
    """
    rows = len(numbers)
    if count >= rows:
        return np.arange(rows)
    drawn = np.random.default_rng(int(numbers[0])).choice(rows, count - 2, replace=False)
    return np.unique([0, rows - 1, *drawn])
