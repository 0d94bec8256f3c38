"""A function of one row run on many at once by `torch.vmap`, which cannot mix rows.

Under `vmap` a function sees one row; its operations run on all of them. It cannot look at a value
to decide what to do, nor see how many rows there are: both raise. So it cannot take another path
for a row because of another row, which a function that is simply handed a block can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.episodes.fields import join_key
from offline_data.preprocess.functions.per_row import CPU, NO_ROWS
from offline_data.preprocess.functions.randomness import own_randomness, same, states
from offline_data.preprocess.functions.results import leaves_of, to_array
from offline_data.preprocess.functions.ted import equal_rows
from offline_data.preprocess.functions.watching import Watch, reason

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.ted import Table


class NotVectorized(Exception):  # noqa: N818 - a finding, not an error
    """Why a function cannot be run on many rows at once, or gave something else there."""


@dataclass(frozen=True)
class Made:
    """What became of the rows of a table."""

    leaves: Table
    """`[n, …]` columns; may share memory with the table, with each other, and with the function."""
    untouched: frozenset[Key] = frozenset()
    """Leaves that are columns of the table, under the same name, into which nobody wrote."""


def run_vmap(fn: Callable[[Any], Any], table: Table) -> Made:
    """Run `fn` on all rows of a table at once, as if on each alone.

    Args:
        fn: A function of one row.
        table: `[n, …]` columns, n at least 1; overwritten where `fn` writes.

    Raises:
        NotVectorized: It cannot be run so, or does what nobody can tell from here.

    Example:
        >>> import numpy as np
        >>> table = {("x",): np.array([[1.0, 2.0], [3.0, 4.0]])}
        >>> run_vmap(lambda td: {"y": td["x"][0] - td["x"][1]}, table).leaves
        {('y',): array([-1., -1.])}
    """
    tree = tree_of({key: slot for slot, key in enumerate(table)})
    keys: list[Key] = []

    def on_leaves(*leaves: Tensor) -> tuple[Tensor, ...]:
        found = leaves_of(fn(assemble(tree, leaves, NO_ROWS, CPU)), _a_row)
        keys[:] = found
        return tuple(found.values())

    inputs = {key: torch.from_numpy(values) for key, values in table.items()}
    watch = Watch()
    with own_randomness(), torch.no_grad():
        before = states()
        try:
            with watch:
                out = torch.vmap(on_leaves, randomness="error")(*inputs.values())
            leaves = {k: to_array(k, v, _a_row) for k, v in zip(keys, out, strict=True)}
        except (Exception, SystemExit) as error:
            raise NotVectorized(watch.found or reason(error)) from error
        if not same(before, states()):
            raise NotVectorized("it draws random numbers")
    if watch.found:
        raise NotVectorized(watch.found)
    untouched = [key for key, value in zip(keys, out, strict=True) if _is_input(key, value, inputs)]
    return Made(leaves, frozenset(untouched))


def compare(rows: Table, vectorized: Table, at: NDArray[np.int64]) -> None:
    """Hold what `run_vmap` gave to what `run_rows` gave, to the bit.

    Args:
        rows: `[m, …]` columns.
        vectorized: `[n, …]` columns.
        at: `[m]` which of the `n` rows the first are.

    Raises:
        NotVectorized: Leaves, dtypes, shapes or values differ.

    Example:
        >>> import numpy as np
        >>> one, many = {("x",): np.array([0.5])}, {("x",): np.array([1.5, 0.25])}
        >>> compare(one, many, np.array([1]))
        Traceback (most recent call last):
            ...
        offline_data.preprocess.functions.vectorized.NotVectorized: 'x' has another value for many...
    """
    if rows.keys() != vectorized.keys():
        raise NotVectorized("it returns other leaves for many rows than for one")
    for key, wanted in rows.items():
        found = vectorized[key][at]
        if (wanted.dtype, wanted.shape) != (found.dtype, found.shape):
            raise NotVectorized(
                f"{join_key(key)!r} has another dtype or shape for many rows at once"
            )
        if not equal_rows(wanted, found).all():
            raise NotVectorized(f"{join_key(key)!r} has another value for many rows at once")


def _a_row() -> str:
    return "a row"


def _is_input(key: Key, value: Tensor, inputs: dict[Key, Tensor]) -> bool:
    """Tell whether a leaf is the input of the same name, and nobody wrote into that."""
    given = inputs.get(key)
    return (
        given is not None
        and value.data_ptr() == given.data_ptr()
        and (value.dtype, value.shape, value.stride()) == (given.dtype, given.shape, given.stride())
        and given._version == 0
    )
