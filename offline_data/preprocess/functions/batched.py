"""A function of blocks of rows, called with one block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.episodes.fields import join_key
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.calling import called
from offline_data.preprocess.functions.per_row import CPU
from offline_data.preprocess.functions.randomness import own_randomness, seed_all
from offline_data.preprocess.functions.results import (
    Schema,
    conform,
    described,
    leaves_of,
    schema_of,
    to_array,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from offline_data.preprocess.functions.calling import Place
    from offline_data.preprocess.functions.results import Leaves
    from offline_data.preprocess.functions.ted import Table


def run_block(
    fn: Callable[[Any], Any],
    table: Table,
    number: int,
    place: Place,
    seed: int,
    schema: Schema | None = None,
) -> Table:
    """Call `fn` with all rows of a table as one TensorDict.

    Args:
        fn: The function; may write into what it gets.
        table: `[n, …]` columns, n at least 1; overwritten where `fn` writes.
        number: What random numbers of the block depend on, beside `seed`.
        place: Says where the block comes from.
        seed: Of all blocks.
        schema: What the result is held to; None: whatever can be stored.

    Returns:
        `[n, …]` columns, which may share memory with `table`, and with what `fn` keeps.

    Raises:
        StepError: `fn` failed, or returned what cannot be stored, or another number of rows.

    Example:
        >>> import numpy as np
        >>> table = {("x",): np.array([1.0, 3.0])}
        >>> run_block(lambda td: {"x": td["x"] - td["x"].mean()}, table, 0, lambda: "here", 0)
        {('x',): array([-1.,  1.])}
    """
    rows = len(next(iter(table.values())))
    tree = tree_of({key: slot for slot, key in enumerate(table)})
    inputs = [torch.from_numpy(values) for values in table.values()]
    with own_randomness(), torch.no_grad():
        seed_all(seed, number)
        block = assemble(tree, inputs, torch.Size((rows,)), CPU)
        leaves = leaves_of(called(fn, block, place), place)
    _check_rows(leaves, rows, place)
    expected = schema or schema_of(leaves, place, rows)
    conform(expected, described(leaves, rows), place)
    return {key: to_array(key, leaves[key], place) for key in expected}


def _check_rows(leaves: Leaves, rows: int, place: Place) -> None:
    for key, value in leaves.items():
        if value.ndim < 1 or len(value) != rows:
            raise StepError(
                f"The function returned {join_key(key)!r} as {list(value.shape)} for {place()}; "
                f"expected {rows} rows",
                hint="without batched=N a function gets one row at a time",
            )
