"""Finding out how a function of one row can be run: on many at once, or one after the other.

What is looked for on the rows of the probe holds for all rows: a function that can be vectorised
does the same things whatever the values are. Only how results are rounded depends on values; so
functions that add up or approximate are held to single rows again and again while they run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from offline_data.preprocess.functions.digest import digest_of
from offline_data.preprocess.functions.rounding import Rounding
from offline_data.preprocess.functions.vectorized import NotVectorized, compare, run_vmap
from offline_data.preprocess.functions.watching import watched

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from offline_data.preprocess.functions.ted import Table
    from offline_data.preprocess.functions.vectorized import Made

A = TypeVar("A")
B = TypeVar("B")

CHECKED = 4
"""Rows of every block that are compared with what the function gives for each alone."""

_VALUES = 512
"""Values of every changed leaf that are compared in every block where some may be rounded otherwise.

Where they are at all, it is at least one in fifty.
"""

_AGAIN = 4
"""Rows for which a function is called a second time, to see whether it gives the same."""


@dataclass(frozen=True)
class Found:
    """How a function is to be run, and what is to be said of it."""

    run: Literal["rows", "vmap"]
    why: str
    """Why row by row."""
    checked: int
    """Rows of every block that are compared."""


def tried(
    fn: Callable[[Any], Any],
    first: Callable[[], A],
    again: Callable[[], B],
    same: Callable[[A, B], bool],
) -> tuple[A, str]:
    """Run a function on a probe, and see whether what it gives depends on how often it is called.

    That it keeps something from its first call is nothing, unless it is data.

    Args:
        fn: The function.
        first: Runs it.
        again: Runs it on the same rows, or on some of them, a second time.
        same: Tells whether both gave the same.

    Returns:
        What `first` gives, and why that depends on earlier calls: empty if it does not.

    Raises:
        StepError: What `first` and `again` raise.
    """
    data = digest_of(fn, data_alone=True)
    made = first()
    kept, before = digest_of(fn, data_alone=True) != data, digest_of(fn)
    if not same(made, again()):
        return made, "it gives something else when it is called again"
    changes = kept or digest_of(fn) != before
    return made, "it changes what it refers to" if changes else ""


def are_same(rows: Table, again: Table, at: NDArray[np.int64]) -> bool:
    """Tell whether chosen rows of a table are those of another one, to the bit."""
    try:
        compare(again, rows, at)
    except NotVectorized:
        return False
    return True


def some(rows: int) -> NDArray[np.int64]:
    """Choose a few rows, the last first, on which a function is called a second time.

    Example:
        >>> some(9).tolist(), some(1).tolist()
        ([8, 5, 2, 0], [0])
    """
    return np.unique(np.linspace(0, rows - 1, min(rows, _AGAIN)).astype(np.int64))[::-1]


def fastest(fn: Callable[[Any], Any], table: Table, rows: Table) -> Found:
    """Find out whether a function can be run on many rows at once.

    Args:
        fn: The function.
        table: `[n, …]` columns of the rows on which it is tried; may be overwritten.
        rows: `[n, …]` what it gave for each row alone.
    """
    try:
        return Found("vmap", "", _prove(fn, table, rows))
    except NotVectorized as reason:
        return Found("rows", str(reason), CHECKED)


def _prove(fn: Callable[[Any], Any], table: Table, rows: Table) -> int:
    """Return how many rows of each block are to be compared; raises `NotVectorized`."""
    rounding, calls = Rounding(), list[str]()

    def seen(data: Any) -> Any:
        with watched(calls):
            return fn(data)

    with rounding:
        made = run_vmap(seen, table)
    if calls:
        raise NotVectorized(calls[0])
    if rounding.unequal:
        name = min(rounding.unequal)
        raise NotVectorized(f"torch's {name!r} gives something else for rare values of many rows")
    compare(rows, made.leaves, np.arange(len(next(iter(rows.values())))))
    return _needed(made) if rounding.found else CHECKED


def _needed(made: Made) -> int:
    """Return in how many rows there are enough values of the narrowest leaf that has changed."""
    changed = [
        values[:1].size
        for key, values in made.leaves.items()
        if key not in made.untouched and values.dtype.kind in "fc"
    ]
    return max(CHECKED, -(-_VALUES // max(1, min(changed, default=_VALUES))))
