"""Casts that give every value back, compared with Python's own numbers."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from offline_data.base.exact import changes, exact, first_changed, holds
from offline_data.store.layout import DTYPES

EDGES = [
    *(sign * (2**bits + more) for bits in (7, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64)
      for more in (-1, 0, 1) for sign in (1, -1)),
    0, 0.5, 1e5, 1e300, float("inf"), float("-inf"), float("nan"), 1j,
]  # fmt: skip


def as_dtype(value: Any, dtype: str) -> Any:
    """Return a value as an array of one, None if the dtype has no such value; by Python's comparison."""
    kind = np.dtype(dtype)
    if isinstance(value, float) and value.is_integer() and kind.kind in "iu":
        value = int(value)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        if not isinstance(value, int) or not limits.min <= value <= limits.max:
            return None
        return np.array([value], kind)
    if kind.kind == "b":
        return np.array([bool(value)]) if value in {0, 1} else None
    try:
        with np.errstate(over="ignore"):
            found = np.array([value], complex if isinstance(value, complex) else kind).astype(kind)
    except (OverflowError, TypeError):
        return None
    back = found[0].item()
    return found if back == value or (back != back and value != value) else None  # noqa: PLR0124


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize(("dtype", "wide"), [*itertools.product(DTYPES, DTYPES)])
def test_every_pair_of_dtypes(dtype: str, wide: str) -> None:
    values = [value for value in EDGES if as_dtype(value, dtype) is not None]
    kept = [as_dtype(value, wide) is not None for value in values]
    assert holds(wide, dtype) <= all(kept)
    column = np.concatenate([as_dtype(value, dtype) for value in values])
    with np.errstate(all="ignore"):
        cast = (column.real if np.dtype(wide).kind != "c" else column).astype(wide)
    assert changes(column, cast).tolist() == [not one for one in kept]
    found = exact(column, wide)
    assert (found is not None) == all(kept)
    assert (first_changed(column, wide) is None) == all(kept)


def test_text_is_not_a_number() -> None:
    assert exact(np.array(["1"], object), "int64") is None
