"""A function called with one row after the other: slow, and what every other way is held to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.preprocess.functions.randomness import own_randomness, seed_all
from offline_data.preprocess.functions.results import (
    Schema,
    called,
    conform,
    leaves_of,
    schema_of,
    to_array,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.ted import Table

NO_ROWS = torch.Size(())
CPU = torch.device("cpu")


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
    """
    columns = [torch.from_numpy(values).unbind(0) for values in table.values()]
    tree = tree_of({key: slot for slot, key in enumerate(table)})
    out = _Out(schema, len(numbers))
    with own_randomness(), torch.no_grad():
        for row, (number, *leaves) in enumerate(zip(numbers.tolist(), *columns, strict=True)):
            seed_all(seed, number)
            here = _Here(place, row)
            result = called(fn, assemble(tree, leaves, NO_ROWS, CPU), here)
            out.put(row, leaves_of(result, here), here)
    return {key: to_array(values) for key, values in out.columns.items()}


class _Here:
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
        self._places: dict[Key, tuple[Tensor, ...]] = {}

    def put(self, row: int, leaves: dict[Key, Tensor], here: _Here) -> None:
        found = schema_of(leaves)
        if self._schema is None:
            self._schema = found
        conform(self._schema, found, here)
        if not self.columns:
            order = self._schema  # the order of leaves is that of the first result of all
            self.columns = {key: _empty(self._rows, leaves[key]) for key in order}
            self._places = {key: column.unbind(0) for key, column in self.columns.items()}
        for key, places in self._places.items():
            places[row].copy_(leaves[key])


def _empty(rows: int, like: Tensor) -> Tensor:
    return torch.empty((rows, *like.shape), dtype=like.dtype)
