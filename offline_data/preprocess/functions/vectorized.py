"""A function of one row run on many at once by `torch.vmap`, which cannot mix rows.

Under `vmap` a function sees one row; its operations run on all of them. It cannot look at a value
to decide what to do, nor see how many rows there are: both raise. So it cannot take another path
for a row because of another row, which a function that is simply handed a block can. What is left
(random numbers of Python and numpy, operations that round otherwise) is looked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.episodes.fields import join_key
from offline_data.preprocess.functions.per_row import CPU, NO_ROWS
from offline_data.preprocess.functions.randomness import own_randomness, same, states
from offline_data.preprocess.functions.results import leaves_of, to_array
from offline_data.preprocess.functions.ted import equal_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from torch import Tensor

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.ted import Table


class NotVectorized(Exception):  # noqa: N818 - a finding, not an error
    """Why a function cannot be run on many rows at once, or gave something else there."""


def run_vmap(fn: Callable[[Any], Any], table: Table) -> Table:
    """Run `fn` on all rows of a table at once, as if on each alone.

    Args:
        fn: A function of one row.
        table: `[n, …]` columns; overwritten where `fn` writes.

    Returns:
        `[n, …]` columns; may share memory with `table` and with each other.

    Raises:
        NotVectorized: It cannot be run so.
    """
    tree = tree_of({key: slot for slot, key in enumerate(table)})
    keys: list[Key] = []

    def on_leaves(*leaves: Tensor) -> tuple[Tensor, ...]:
        found = leaves_of(fn(assemble(tree, leaves, NO_ROWS, CPU)), lambda: "a row")
        keys[:] = found
        return tuple(found.values())

    inputs = [torch.from_numpy(values) for values in table.values()]
    with own_randomness(), torch.no_grad():
        before = states()
        try:
            out = torch.vmap(on_leaves, randomness="error")(*inputs)
        except Exception as error:
            raise NotVectorized(_reason(error)) from error
        if not same(before, states()):
            raise NotVectorized("it draws random numbers")
    return {key: to_array(value) for key, value in zip(keys, out, strict=True)}


def compare(rows: Table, vectorized: Table, at: np.ndarray[Any, Any]) -> None:
    """Hold what `run_vmap` gave to what `run_rows` gave, to the bit.

    Args:
        rows: `[m, …]` columns.
        vectorized: `[n, …]` columns.
        at: `[m]` which of the `n` rows the first are.

    Raises:
        NotVectorized: Leaves, dtypes, shapes or values differ.
    """
    if rows.keys() != vectorized.keys():
        raise NotVectorized("it returns other leaves for many rows than for one")
    for key, wanted in rows.items():
        found = vectorized[key][at]
        if (wanted.dtype, wanted.shape) != (found.dtype, found.shape):
            raise NotVectorized(f"{join_key(key)!r} has another dtype or shape for many rows")
        if not equal_rows(wanted, found).all():
            raise NotVectorized(f"{join_key(key)!r} has another value for many rows at once")


def _reason(error: Exception) -> str:
    """Say in few words why `vmap` refused."""
    text = str(error)
    if "data-dependent control flow" in text or ".item()" in text:
        return "it looks at values to decide what to do"
    if "randomness" in text:
        return "it draws random numbers"
    if "data pointer" in text or "numpy" in text:
        return "it leaves torch, for example for numpy"
    first = text.strip().split("\n")[0].split(". ")[0]
    return f"torch.vmap refuses it: {type(error).__name__}: {first[:120]}"
