"""The order of an epoch as a function of (seed, epoch), computed in pieces, not stored."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

PIECE = 1 << 15  # positions computed and cached at once; smaller sets are shuffled as a whole

_ROUNDS = 6


class EpochOrder:
    """A permutation of `[0, count)`; position `p` of the epoch is number `order[p]`.

    The same arguments give the same order in every process and on every machine: only raw bits
    of numpy's PCG64 are used, which are guaranteed not to change. Up to `PIECE` numbers every
    permutation is equally likely; above that it is a Feistel network over a grid of
    `rows x columns >= count` cells, with about `12·√count` random numbers in memory.
    """

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        self.count = count
        bits = np.random.PCG64(np.random.SeedSequence((seed, epoch)))
        if count <= PIECE:
            self._number, self._piece = 0, np.argsort(bits.random_raw(count), kind="stable")
        else:
            self._number, self._piece = -1, np.zeros(0, np.int64)
        self._network = _Network(count, bits)

    def between(self, start: int, stop: int) -> Numbers:
        """Return the numbers at positions `[start, stop)`, a new array."""
        pieces = [
            self._piece_at(number)[max(start - number * PIECE, 0) : stop - number * PIECE]
            for number in range(start // PIECE, -(-stop // PIECE))
        ]
        return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)

    def _piece_at(self, number: int) -> Numbers:
        if self._number != number:
            positions = np.arange(number * PIECE, min((number + 1) * PIECE, self.count))
            self._piece = self._network.permute(positions)
            self._number = number
        return self._piece


class _Network:
    """A keyed bijection of `[0, count)`.

    ```
    cell  = row · columns + column
    round : row    += table[column]  (mod rows)       undone by subtracting: a bijection,
            column += table[row]     (mod columns)    whatever the tables hold
    ```

    The grid has fewer than `rows` extra cells; a number that lands in one is permuted again until
    it is below `count` (cycle walking), which is still a bijection.
    """

    def __init__(self, count: int, bits: np.random.PCG64) -> None:
        self._count = count
        self._rows = math.isqrt(count - 1) + 1
        self._columns = -(-count // self._rows)
        self._tables = [
            (_table(bits, self._columns, self._rows), _table(bits, self._rows, self._columns))
            for _ in range(_ROUNDS // 2)
        ]

    def permute(self, numbers: Numbers) -> Numbers:
        out = self._once(numbers)
        while (outside := np.flatnonzero(out >= self._count)).size:
            out[outside] = self._once(out[outside])
        return out

    def _once(self, numbers: Numbers) -> Numbers:
        row, column = np.divmod(numbers, self._columns)
        for by_column, by_row in self._tables:
            row = _add(row, by_column.take(column), self._rows)
            column = _add(column, by_row.take(row), self._columns)
        return row * self._columns + column


def _table(bits: np.random.PCG64, size: int, below: int) -> Numbers:
    # The remainder's bias is below / 2^63: negligible at these sizes.
    raw: NDArray[np.uint64] = np.asarray(bits.random_raw(size), np.uint64) >> np.uint64(1)
    numbers: Numbers = (raw % np.uint64(below)).astype(np.int64)
    return numbers


def _add(left: Numbers, right: Numbers, modulus: int) -> Numbers:
    """Add modulo `modulus`; both sides are below it."""
    total = left + right
    less = total - modulus
    # Faster than a division: below zero wraps to a huge unsigned number, so the minimum is the sum.
    return np.minimum(total.view(np.uint64), less.view(np.uint64)).view(np.int64)
