"""A function of one row run on many at once by `torch.vmap`, and held to rows one at a time.

Under `vmap` a function sees one row; its operations run on all of them. It cannot look at a value
to decide what to do, nor see how many rows there are: both raise. So it cannot take another path
for a row because of another row, which a function that is simply handed a block can.

What a block gives is the same up to floating-point rounding: sums, products of matrices and the
approximations of analysis are done in another order for many rows than for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from offline_data.buffers.assemble import assemble, tree_of
from offline_data.episodes.fields import join_key
from offline_data.preprocess.functions.rows import CPU, leaves_of, same_states, states, to_array
from offline_data.preprocess.functions.ted import equal_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.ted import Made, Table

BLOCK = 32 << 20
"""Bytes of rows that are handed to `torch.vmap` at once."""

VALUES = 512
"""Values of all leaves that are compared with rows one at a time in every block, at least."""

LEAST_ROWS = 32
"""Rows of a block that are compared, at least."""

TOLERANCE: Mapping[str, float] = {"f2": 2.0**-8, "f4": 2.0**-16, "f8": 2.0**-40}
"""How far values may be apart, relative to their size: 4, 128 and 4096 units of the last place.

That size is that of the larger of the two values, plus the median over the compared rows of the
largest value of the leaf: where terms cancel, the rounding of the terms stays.
"""


class NotVectorized(Exception):  # noqa: N818 - a finding, not an error
    """Why a function cannot be run on many rows at once, or gave something else there."""


def run_vmap(fn: Callable[[Any], Any], table: Table) -> Made:
    """Run `fn` on all rows of a table at once, as if on each alone.

    Takes and returns `[n, …]` columns, n at least 1: None for those that it was given and nobody
    wrote into. What `fn` writes is in `table`, whose memory the result may share. Raises
    `NotVectorized` where it cannot be run so.

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
    mode, before = _Vmapped(), states()
    try:
        with torch.no_grad(), mode:
            out = torch.vmap(on_leaves, randomness="error")(*inputs.values())
        made = {key: to_array(key, value, _a_row) for key, value in zip(keys, out, strict=True)}
    except (Exception, SystemExit) as error:
        raise NotVectorized(mode.refused or _reason(error)) from error
    if not same_states(before, states()):
        raise NotVectorized("it draws random numbers")
    if mode.refused:  # and the function went on without it
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
    """Hold what `run_vmap` gave to what `run_rows` gave: floats up to rounding, the rest exactly.

    NaN equals NaN, infinite values must be the same. See `TOLERANCE`. `rows` has `[m, …]` columns,
    and `at` says which of the `[n, …]` of `vectorized` these are. Raises `NotVectorized`.
    """
    if rows.keys() != vectorized.keys():
        raise NotVectorized("it returns other leaves for many rows than for one")
    for key, wanted in rows.items():
        found = vectorized[key][at]
        if (wanted.dtype, wanted.shape) != (found.dtype, found.shape):
            raise NotVectorized(
                f"{join_key(key)!r} has another dtype or shape for many rows at once"
            )
        if not (equal_rows(wanted, found).all() or _equal_but_for_rounding(wanted, found)):
            raise NotVectorized(f"{join_key(key)!r} has another value for many rows at once")


def checked_rows(numbers: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Choose `count` rows of a block, ascending, at least 2: the first, the last, and others.

    They depend on nothing but where the block begins; `numbers` are the `[n]` numbers of its rows.
    """
    rows = len(numbers)
    if count >= rows:
        return np.arange(rows)
    drawn = np.random.default_rng(int(numbers[0])).choice(rows, count - 2, replace=False)
    return np.unique([0, rows - 1, *drawn])


def rows_to_check(made: Table) -> int:
    """Return in how many rows there are `VALUES` values; see also `LEAST_ROWS`."""
    width = sum(values[:1].size for values in made.values())
    return max(LEAST_ROWS, -(-VALUES // max(1, width)))


def block_rows(table: Table) -> int:
    """Return how many rows of a table make a block; depends on their width alone."""
    return max(1, BLOCK // max(1, sum(values[:1].nbytes for values in table.values())))


class _Vmapped(TorchFunctionMode):
    """Does `torch._foreach_…`, which `vmap` has no rule for, tensor by tensor; notes refusals.

    tensordict makes its arithmetic and `clone` of these. A function that catches what `vmap` refuses
    would go on as if it had not asked.
    """

    refused = ""
    """Why the first call that raised did."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch's."""
        each, name = "_foreach_", getattr(func, "__name__", "")
        try:
            if not name.startswith(each):
                return func(*args, **(kwargs or {}))
            base = name[len(each) :]
            one = getattr(torch, base, None) or getattr(torch.Tensor, base)
            one = torch.linalg.vector_norm if base == "norm" else one
            count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))
            return [
                one(*(_nth(arg, i) for arg in args), **{k: _nth(v, i) for k, v in kwargs.items()})
                for kwargs in [kwargs or {}]
                for i in range(count)
            ]
        except Exception as error:
            self.refused = self.refused or _reason(error)
            raise


def _nth(value: Any, i: int) -> Any:
    return value[i] if isinstance(value, (list, tuple)) else value


_REASONS = (
    (("control flow", ".item()", "data-dependent"), "it looks at values to decide what to do"),
    (("dynamic", "equal size", "masked_select"), "the shape of a result depends on values"),
    (("randomness",), "it draws random numbers"),
    (("data pointer", "storage", "numpy"), "it leaves torch, for example for numpy"),
)
"""What refusals of torch say, and what they mean."""


def _reason(error: BaseException) -> str:
    """Say in few words why `vmap` refused."""
    text = str(error)
    for words, reason in _REASONS:
        if any(word in text for word in words):
            return reason
    first = text.strip().split("\n")[0].split(". ")[0]
    return f"torch.vmap refuses it: {type(error).__name__}: {first[:120]}"


def _equal_but_for_rounding(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Compare rows of floats or complex numbers, `[m, …]` each; others are not equal."""
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
    if name == "f8":  # where float64 holds nothing finer than float32, it was computed in that
        with np.errstate(over="ignore"):
            coarse = one.astype("c8" if one.dtype.kind == "c" else "f4")
        name = "f4" if np.array_equal(one, coarse, equal_nan=True) else name
    return bool((np.abs(left - right) <= TOLERANCE[name] * (size + scale)).all())


def _a_row() -> str:
    return "a row"
