"""Which rows of a storage a view has: pieces of episodes laid end to end, or a list of rows."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.samplers.base import Runs

_WORDS_PER_PIECE = 4
"""Numbers that a piece takes; a row of a list takes one."""


@dataclass(frozen=True, eq=False)
class Pieces:
    """Pieces of a storage's rows, each inside one run, one after the other.

    ```
    storage    0  1  2 | 3 | 4  5  6  7 | 8  9       three runs of it, of which the view has
    view                     0  1  2  3   4  5       first = [4, 8], lengths = [4, 2]
    ```

    Example:
        >>> view = Pieces(torch.tensor([4, 8]), torch.tensor([4, 2]))
        >>> view.count, view.at(torch.tensor([0, 3, 5])).tolist()
        (6, [4, 7, 9])
    """

    first: Tensor
    """The storage's row that each piece begins with, int64 `[P]`, in the order of the view."""
    lengths: Tensor
    """Rows of each piece, int64 `[P]`, at least one."""

    def __reduce__(self) -> tuple[object, ...]:
        """Leave behind what can be computed again."""
        return Pieces, (self.first, self.lengths)

    @cached_property
    def starts(self) -> Tensor:
        """The view's row that each piece begins with, and the count of all, int64 `[P + 1]`."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])

    @cached_property
    def count(self) -> int:
        """Rows of the view."""
        return int(self.starts[-1])

    @cached_property
    def _shift(self) -> Tensor:
        return self.first - self.starts[:-1]

    def at(self, numbers: Tensor) -> Tensor:
        """Turn rows of the view, int64 `[B]`, into the storage's; raises `IndexError`."""
        # One start too many stands behind the last piece: what is outside has no shift.
        piece = torch.searchsorted(self.starts, numbers, right=True) - 1
        return numbers + self._shift.index_select(0, piece)

    def left_out(self, rows: Tensor) -> Tensor:
        """Return the view's rows, ascending, that are among `rows`, ascending, of the storage."""
        low = torch.searchsorted(rows, self.first)
        high = torch.searchsorted(rows, self.first + self.lengths)
        found = high - low
        return rows[laid_out(low, found)] - self._shift.repeat_interleave(found)

    def final(self, runs: Runs) -> Tensor | None:
        """Return `Runs.final` of the pieces: what follows a piece inside a run is known."""
        if runs.final is None:
            return None
        run = runs.of(self.first)
        inside = self.first + self.lengths < runs.starts[run] + runs.lengths[run]
        return inside | runs.final[run]

    def digest(self) -> str:
        """Tell these rows from others: equal for equal pieces."""
        return _digest(self.first, self.lengths)

    def cut(self, runs: Runs) -> Pieces:  # noqa: ARG002 - they are cut there already
        """Return the pieces; see `RowList.cut`."""
        return self


@dataclass(frozen=True, eq=False)
class RowList:
    """Rows of a storage in any order."""

    rows: Tensor
    """The storage's row of each row of the view, int64 `[n]`."""

    @property
    def count(self) -> int:
        """Rows of the view."""
        return len(self.rows)

    def at(self, numbers: Tensor) -> Tensor:
        """Turn rows of the view, int64 `[B]`, into the storage's; raises `IndexError`."""
        return self.rows.index_select(0, numbers)

    def left_out(self, rows: Tensor) -> Tensor:
        """Return the view's rows, ascending, that are among `rows` of the storage."""
        return torch.isin(self.rows, rows).nonzero()[:, 0]

    def digest(self) -> str:
        """Tell these rows from others: equal for an equal list."""
        return _digest(self.rows)

    def cut(self, runs: Runs) -> Pieces:
        """Return the same rows as pieces: cut where the next row does not follow, or a run ends."""
        if not len(self.rows):
            return Pieces(self.rows, self.rows)
        begins = runs.starts[runs.of(self.rows)] == self.rows
        begins[0] = True
        begins[1:] |= self.rows[1:] != self.rows[:-1] + 1
        at = begins.nonzero()[:, 0]
        return Pieces(self.rows[at], torch.diff(at, append=torch.tensor([len(self.rows)])))


RowMap: TypeAlias = Pieces | RowList
"""Rows of a view in the form that takes less memory."""


def _digest(*numbers: Tensor) -> str:
    found = hashlib.sha256()
    for array in numbers:
        found.update(array.contiguous().numpy().data)
    return found.hexdigest()


def laid_out(first: Tensor, lengths: Tensor) -> Tensor:
    """Return `first[0]`, `first[0] + 1`, …, `first[1]`, …: ranges end to end, int64 `[sum]`.

    Example:
        >>> laid_out(torch.tensor([4, 0]), torch.tensor([2, 3])).tolist()
        [4, 5, 0, 1, 2]
    """
    before = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) + (first - before).repeat_interleave(lengths)


def smallest(rows: RowMap, runs: Runs) -> RowMap:
    """Return the same rows in the form that takes less memory, of the storage's `runs`."""
    pieces = rows.cut(runs)
    if len(pieces.first) * _WORDS_PER_PIECE <= pieces.count:
        return pieces
    return rows if isinstance(rows, RowList) else RowList(laid_out(rows.first, rows.lengths))


def of_runs(rows: RowMap, runs: Runs, wanted: Tensor) -> RowMap:
    """Return the rows that are in the runs `wanted`, int64 `[k]`, run by run in that order."""
    pieces = rows.cut(runs)
    run, order = runs.of(pieces.first).sort(stable=True)
    low = torch.searchsorted(run, wanted)
    found = torch.searchsorted(run, wanted, right=True) - low
    picked = order[laid_out(low, found)]
    return smallest(Pieces(pieces.first[picked], pieces.lengths[picked]), runs)


def between(rows: RowMap, runs: Runs, start: int, stop: int) -> RowMap:
    """Return the view's rows `[start, stop)`."""
    if isinstance(rows, RowList):
        return smallest(RowList(rows.rows[start:stop].clone()), runs)
    low = torch.clamp(rows.starts[:-1], min=start)
    lengths = torch.clamp(rows.starts[1:], max=stop) - low
    kept = lengths > 0
    first = (low + rows.first - rows.starts[:-1])[kept]
    return smallest(Pieces(first, lengths[kept]), runs)
