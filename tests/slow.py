"""Tables of which a few cases are run by default, so that a defect shows before the slow run has them all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest


def slow_but(quick: Callable[..., object], *tables: Iterable[Any]) -> list[Any]:
    """Return a table, or all combinations of several; its cases are slow unless they are `quick`.

    Ids are those of stacked `parametrize`, the first table being nearest to the function, for values
    that are text, numbers or flags.

    Example:
        >>> [len(case.marks) for case in slow_but(lambda name: name == "a", ["a", "b"])]
        [0, 1]
    """
    return [
        pytest.param(*case, marks=() if quick(*case) else pytest.mark.slow)
        for case in product(*tables)
    ]


def every_second(*tables: Iterable[Any]) -> list[Any]:
    """Return all combinations of tables, in turns quick and slow; each value is in a quick one.

    Example:
        >>> [len(case.marks) for case in every_second(["a", "b"], [0, 1])]
        [0, 1, 1, 0]
    """
    return every(2, *tables)


def every(count: int, *tables: Iterable[Any]) -> list[Any]:
    """Return all combinations of tables, of which one in `count` is quick; each value is in a quick one.

    The tables but one have, one less each, `count - 1` values or more together.

    Example:
        >>> [len(case.marks) for case in every(3, ["a", "b", "c"], [0, 1, 2])]
        [0, 1, 1, 1, 1, 0, 1, 0, 1]
    """
    rows = [[*table] for table in tables]
    return slow_but(
        lambda *case: sum(row.index(one) for row, one in zip(rows, case, strict=True)) % count == 0,
        *rows,
    )
