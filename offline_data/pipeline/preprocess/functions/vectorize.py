"""Running a function of one row on many rows with `torch.vmap`, checked against single rows.

Under `vmap` a function sees one row while its operations run on all of them. Control flow that
depends on values, or on the number of rows, raises. So the result for a row cannot depend on other
rows, as it could in a function that is simply given a block.

Results of a block are equal up to floating-point rounding: sums, matrix products and elementary
functions may be evaluated in another order for many rows than for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from offline_data.episode import Key
from offline_data.episode.fields import join_key
from offline_data.pipeline.preprocess.functions.rows import (
    CPU,
    leaves_of,
    same_states,
    states,
    to_array,
)
from offline_data.pipeline.preprocess.functions.ted import equal_rows
from offline_data.rows.gather.assemble import assemble, tree_of

if TYPE_CHECKING:
    from offline_data.pipeline.preprocess.functions.ted import Made, Table

BLOCK = 32 << 20  # bytes of rows that are given to `torch.vmap` at once

VALUES = 128  # of all features, compared in every block at least

LEAST_ROWS = 8  # compared in every block; the rows that a plan probes come before them

TOLERANCE: Mapping[str, float] = {"f2": 2.0**-8, "f4": 2.0**-16, "f8": 2.0**-40}
"""Largest difference relative to the size of values: 4, 128 and 4096 units in the last place.

The size is the larger of the two values plus the median, over the compared rows, of the largest
value of the feature: when terms cancel, their rounding errors remain.
"""


class NotVectorized(Exception):  # noqa: N818 - a finding, not an error
    """A function cannot be vectorised, or gives other results; the message is the reason."""


def run_vmap(fn: Callable[[Any], Any], table: Table) -> Made:
    """Run `fn` on all rows of a table at once with `torch.vmap`.

    Takes and returns `[n, …]` columns, n at least 1; None for unchanged ones. Writes of `fn` go to
    `table`, whose memory the result may share. Raises `NotVectorized` if it is not possible.

    Example:
        >>> table = {("x",): np.array([[1.0, 2.0], [3.0, 4.0]])}
        >>> run_vmap(lambda td: {"y": td["x"][0] - td["x"][1]}, table)
        {('y',): array([-1., -1.])}
    """
    tree, no_rows = tree_of({key: slot for slot, key in enumerate(table)}), torch.Size(())
    keys: list[Key] = []

    def on_leaves(*leaves: Tensor) -> tuple[Tensor, ...]:
        found = leaves_of(fn(assemble(tree, leaves, no_rows, CPU)), _a_row)
        keys[:] = found
        return tuple(found.values())

    inputs = {key: torch.from_numpy(values) for key, values in table.items()}
    mode, before = _ForeachByCalls(), states()
    try:
        with torch.no_grad(), mode:
            out = torch.vmap(on_leaves, randomness="error")(*inputs.values())
        made = {key: to_array(key, value, _a_row) for key, value in zip(keys, out, strict=True)}
    except (Exception, SystemExit) as error:
        raise NotVectorized(mode.refused or _reason(error)) from error
    if not same_states(before, states()):
        raise NotVectorized("it draws random numbers")
    if mode.refused:  # and the function caught the error
        raise NotVectorized(mode.refused)
    same = {
        key
        for key, value in zip(keys, out, strict=True)
        if (given := inputs.get(key)) is not None
        and given._version == 0
        and value.data_ptr() == given.data_ptr()
        and (value.dtype, value.shape, value.stride()) == (given.dtype, given.shape, given.stride())
    }
    return {key: None if key in same else values for key, values in made.items()}


def compare(rows: Table, vectorized: Table, at: NDArray[np.int64]) -> None:
    """Compare results of `run_vmap` and `run_rows`: floats up to rounding, all others exactly.

    NaN equals NaN, infinities must be equal; see `TOLERANCE`. The `[m, …]` columns of `rows` are
    those of rows `at` of the `[n, …]` columns of `vectorized`. Raises `NotVectorized`.
    """
    if rows.keys() != vectorized.keys():
        raise NotVectorized("it returns other features for many rows than for one")
    for key, wanted in rows.items():
        found = vectorized[key][at]
        if (wanted.dtype, wanted.shape) != (found.dtype, found.shape):
            raise NotVectorized(
                f"{join_key(key)!r} has another dtype or shape for many rows at once"
            )
        if not (equal_rows(wanted, found).all() or _equal_but_for_rounding(wanted, found)):
            raise NotVectorized(f"{join_key(key)!r} has another value for many rows at once")


def checked_rows(numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Choose `count` (at least 2) rows of a block, ascending: the first, the last, and others.

    They depend only on the number of the block's first row; `numbers` are its `[n]` row numbers.
    """
    rows = len(numbers)
    if count >= rows:
        return np.arange(rows)
    drawn = np.random.default_rng(int(numbers[0])).choice(rows, count - 2, replace=False)
    return np.unique([0, rows - 1, *drawn])


def rows_to_check(made: Table) -> int:
    """Return how many rows have `VALUES` values, and at least `LEAST_ROWS`."""
    width = sum(values[:1].size for values in made.values())
    return max(LEAST_ROWS, -(-VALUES // max(1, width)))


def block_rows(table: Table) -> int:
    """Return the rows of a block; depends only on the bytes of a row."""
    return max(1, BLOCK // max(1, sum(values[:1].nbytes for values in table.values())))


class _ForeachByCalls(TorchFunctionMode):
    """Replaces `torch._foreach_…` of tensordict, for which `vmap` has no rule, by single calls."""

    refused = ""  # reason of the first call that raised

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        each, name = "_foreach_", getattr(func, "__name__", "")
        try:
            if not name.startswith(each):
                return func(*args, **(kwargs or {}))
            base = name[len(each) :]
            call = getattr(torch, base, None) or getattr(torch.Tensor, base)
            call = torch.linalg.vector_norm if base == "norm" else call
            count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
            return [
                call(*(_nth(arg, i) for arg in args), **{k: _nth(v, i) for k, v in kwargs.items()})
                for kwargs in [kwargs or {}]
                for i in range(count)
            ]
        except Exception as error:  # the function may catch it and continue
            self.refused = self.refused or _reason(error)
            raise


def _nth(value: Any, i: int) -> Any:
    return value[i] if isinstance(value, (list, tuple)) else value


_REASONS = (  # words in torch's messages, and what they mean
    (("control flow", ".item()", "data-dependent"), "it looks at values to decide what to do"),
    (("dynamic", "equal size", "masked_select"), "the shape of a result depends on values"),
    (("randomness",), "it draws random numbers"),
    (("data pointer", "storage", "numpy"), "it leaves torch, for example for numpy"),
)


def _reason(error: BaseException) -> str:
    text = str(error)
    for words, reason in _REASONS:
        if any(word in text for word in words):
            return reason
    first = text.strip().split("\n")[0].split(". ")[0]
    return f"torch.vmap refuses it: {type(error).__name__}: {first[:120]}"


def _equal_but_for_rounding(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype.kind not in "fc":
        return False
    one, other = (values.reshape(len(values), -1) for values in (one, other))
    finite = np.isfinite(one)
    if not np.array_equal(one[~finite], other[~finite], equal_nan=True):
        return False
    if not np.isfinite(other[finite]).all():
        return False
    left, right = (np.where(finite, v, 0).astype(np.result_type(v, "f8")) for v in (one, other))
    size = np.maximum(np.abs(left), np.abs(right))
    scale = np.median(size.max(axis=1))
    name = one.real.dtype.str[1:]
    if name == "f8":  # float64 values that float32 holds exactly were computed in float32
        with np.errstate(over="ignore"):
            coarse = one.astype("c8" if one.dtype.kind == "c" else "f4")
        name = "f4" if np.array_equal(one, coarse, equal_nan=True) else name
    return bool((np.abs(left - right) <= TOLERANCE[name] * (size + scale)).all())


def _a_row() -> str:
    return "a row"
