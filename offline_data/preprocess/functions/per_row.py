"""A function called with one row after the other: slow, and what every other way is held to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.preprocess.functions.calling import called
from offline_data.preprocess.functions.randomness import own_randomness, seed_all
from offline_data.preprocess.functions.results import (
    Leaves,
    Schema,
    conform,
    described,
    difference,
    leaves_of,
    not_plain,
    schema_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.calling import Place
    from offline_data.preprocess.functions.ted import Table

NO_ROWS = torch.Size(())
CPU = torch.device("cpu")

_STRIP = 32
"""Rows that are tensors at once: many small ones that live long keep the garbage collector busy."""


def run_rows(
    fn: Callable[[Any], Any],
    table: Table,
    numbers: NDArray[np.int64],
    place: Callable[[int], str],
    seed: int,
    schema: Schema | None = None,
) -> Table:
    """Call `fn` with every row of a table as a TensorDict without batch size.

    Args:
        fn: The function; may write into what it gets.
        table: `[n, …]` columns, n at least 1; overwritten where `fn` writes.
        numbers: `[n]` what each row's random numbers depend on, beside `seed`.
        place: Says where a row comes from.
        seed: Of all rows.
        schema: What results are held to; None: the first one.

    Returns:
        `[n, …]` columns, new.

    Raises:
        StepError: `fn` failed on a row, or returned what cannot be stored, or something else than
            for the first row; names the row.

    Example:
        >>> import numpy as np
        >>> table = {("x",): np.array([1.0, 2.0])}
        >>> run_rows(lambda td: {"y": td["x"] * 2}, table, np.arange(2), str, 0)
        {('y',): array([2., 4.])}
    """
    tree = tree_of({key: slot for slot, key in enumerate(table)})
    out = _Out(schema, len(numbers))
    with own_randomness(), torch.no_grad():
        for begin in range(0, len(numbers), _STRIP):
            part = slice(begin, begin + _STRIP)
            columns = [torch.from_numpy(values[part]).unbind(0) for values in table.values()]
            strip = zip(numbers[part].tolist(), *columns, strict=True)
            for row, (number, *leaves) in enumerate(strip, begin):
                seed_all(seed, number)
                here = _Here(place, row)
                result = called(fn, assemble(tree, leaves, NO_ROWS, CPU), here)
                out.put(row, leaves_of(result, here), here)
    return {key: values.numpy() for key, values in out.columns.items()}


class _Here:
    """A place that is put into words when somebody asks."""

    __slots__ = ("_place", "_row")

    def __init__(self, place: Callable[[int], str], row: int) -> None:
        self._place, self._row = place, row

    def __call__(self) -> str:
        return self._place(self._row)


class _Out:
    """Columns of results: copied at once, for a function may use its memory again."""

    def __init__(self, schema: Schema | None, rows: int) -> None:
        self._schema = schema
        self._rows = rows
        self.columns: dict[Key, Tensor] = {}
        self._slots: list[tuple[Key, torch.dtype, torch.Size]] = []
        self._places: list[tuple[Tensor, ...]] = []

    def put(self, row: int, leaves: Leaves, here: Place) -> None:
        """Take the result of the next row; what is as expected is found so without a schema."""
        if not self._slots:
            self._begin(leaves, here)
        if len(leaves) != len(self._slots):
            raise difference(self._expected, described(leaves), here)
        at = row % _STRIP
        if not at:
            self._places = [c[row : row + _STRIP].unbind(0) for c in self.columns.values()]
        for (key, dtype, shape), places in zip(self._slots, self._places, strict=True):
            leaf = leaves.get(key)
            if leaf is None or leaf.dtype is not dtype or leaf.shape != shape:
                raise difference(self._expected, described(leaves), here)
            try:
                places[at].copy_(leaf)
            except (RuntimeError, NotImplementedError) as error:
                raise not_plain(key, leaf, here) from error

    def _begin(self, leaves: Leaves, here: Place) -> None:
        """Make columns; the order of leaves is that of the first result of all."""
        self._expected = self._schema or schema_of(leaves, here)
        conform(self._expected, described(leaves), here)
        for key in self._expected:
            leaf = leaves[key]
            self.columns[key] = torch.empty((self._rows, *leaf.shape), dtype=leaf.dtype)
            self._slots.append((key, leaf.dtype, leaf.shape))
