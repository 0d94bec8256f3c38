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
from offline_data.preprocess.functions.results import leaves_of, to_array
from offline_data.preprocess.functions.rows import CPU, NO_ROWS, own_randomness, same, states
from offline_data.preprocess.functions.ted import Made, equal_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.ted import Table

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

    Args:
        fn: A function of one row.
        table: `[n, …]` columns, n at least 1; overwritten where `fn` writes.

    Raises:
        NotVectorized: It cannot be run so.

    Example:
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
    mode = _Vmapped()
    with own_randomness(), torch.no_grad():
        before = states()
        try:
            with mode:
                out = torch.vmap(on_leaves, randomness="error")(*inputs.values())
            leaves = {k: to_array(k, v, _a_row) for k, v in zip(keys, out, strict=True)}
        except (Exception, SystemExit) as error:
            raise NotVectorized(mode.refused or _reason(error)) from error
        if not same(before, states()):
            raise NotVectorized("it draws random numbers")
    if mode.refused:  # and the function went on without it
        raise NotVectorized(mode.refused)
    untouched = [key for key, value in zip(keys, out, strict=True) if _is_input(key, value, inputs)]
    return Made(leaves, frozenset(untouched))


def compare(rows: Table, vectorized: Table, at: NDArray[np.int64]) -> None:
    """Hold what `run_vmap` gave to what `run_rows` gave: floats up to rounding, the rest exactly.

    NaN equals NaN, infinite values must be the same. See `TOLERANCE`.

    Args:
        rows: `[m, …]` columns.
        vectorized: `[n, …]` columns.
        at: `[m]` which of the `n` rows the first are.

    Raises:
        NotVectorized: Leaves, dtypes, shapes or values differ.

    Example:
        >>> one, many = {("x",): np.array([0.5])}, {("x",): np.array([1.5, 0.25])}
        >>> compare(one, many, np.array([1]))
        Traceback (most recent call last):
            ...
        offline_data.preprocess.functions.vectorize.NotVectorized: 'x' has another value for many...
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
    """Choose first and last row of a block, and others that depend on nothing but where it begins.

    Args:
        numbers: `[n]` numbers of its rows.
        count: How many to choose, at least 2; fewer where there are fewer.

    Returns:
        Rows of the block, ascending.

    Example:
        >>> checked_rows(np.arange(3), 9).tolist()
        [0, 1, 2]
    """
    rows = len(numbers)
    if count >= rows:
        return np.arange(rows)
    drawn = np.random.default_rng(int(numbers[0])).choice(rows, count - 2, replace=False)
    return np.unique([0, rows - 1, *drawn])


def rows_to_check(made: Made) -> int:
    """Return in how many rows there are `VALUES` values; see also `LEAST_ROWS`."""
    width = sum(values[:1].size for values in made.leaves.values())
    return max(LEAST_ROWS, -(-VALUES // max(1, width)))


def block_rows(table: Table) -> int:
    """Return how many rows of a table make a block; depends on their width alone."""
    width = sum(values[:1].nbytes for values in table.values())
    return max(1, BLOCK // max(1, width))


def parts(rows: int, size: int) -> Iterator[slice]:
    """Cut rows into blocks of a size."""
    return (slice(begin, min(begin + size, rows)) for begin in range(0, rows, size))


class Gathered:
    """What blocks of a table became, laid end to end; columns that no block changed are not copied.

    Args:
        table: `[n, …]` columns that the blocks are of.
        rows: n.

    Example:
        >>> table = {("a",): np.arange(2), ("b",): np.arange(2)}
        >>> gathered = Gathered(table, 2)
        >>> gathered.put(
        ...     slice(0, 2), Made({**table, ("b",): np.array([5, 7])}, frozenset([("a",)]))
        ... )
        >>> gathered.made().leaves["b",].tolist(), gathered.made().leaves["a",] is table["a",]
        ([5, 7], True)
    """

    def __init__(self, table: Table, rows: int) -> None:
        self._table, self._rows = table, rows
        self._columns: Table = {}
        self._order: list[Key] = []
        self._untouched: set[Key] = set()

    def put(self, part: slice, made: Made) -> None:
        """Take what became of the next block; its memory may be used again afterwards."""
        if not self._order:
            self._order, self._untouched = list(made.leaves), set(made.untouched)
        for key in self._untouched - made.untouched:  # left out so far
            self._fill(slice(0, part.start), key, self._table[key][: part.start])
        self._untouched &= made.untouched
        for key in self._order:
            if key not in self._untouched:
                self._fill(part, key, made.leaves[key])

    def made(self) -> Made:
        """Return all rows."""
        columns = {**self._table, **self._columns}
        return Made({key: columns[key] for key in self._order}, frozenset(self._untouched))

    def _fill(self, part: slice, key: Key, values: NDArray[Any]) -> None:
        if key not in self._columns:
            self._columns[key] = np.empty((self._rows, *values.shape[1:]), values.dtype)
        self._columns[key][part] = values


class _Vmapped(TorchFunctionMode):
    """Does `torch._foreach_…`, which `vmap` has no rule for, tensor by tensor; notes refusals.

    tensordict makes its arithmetic and `clone` of these. A function that catches what `vmap` refuses
    would go on as if it had not asked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.refused = ""
        """Why the first call that raised did."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch's."""
        name = getattr(func, "__name__", "")
        try:
            if name.startswith(_EACH):
                return _one_by_one(name, args, kwargs or {})
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.refused = self.refused or _reason(error)
            raise


_EACH = "_foreach_"


def _one_by_one(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Do `torch._foreach_NAME` tensor by tensor; lists are gone through together."""
    base = name[len(_EACH) :]
    one: Callable[..., Any] = getattr(torch, base, None) or getattr(torch.Tensor, base)
    one = torch.linalg.vector_norm if base == "norm" else one
    count = next(len(arg) for arg in args if isinstance(arg, (list, tuple)))

    def at(value: Any, i: int) -> Any:
        return value[i] if isinstance(value, (list, tuple)) else value

    return [
        one(*(at(arg, i) for arg in args), **{key: at(arg, i) for key, arg in kwargs.items()})
        for i in range(count)
    ]


def _reason(error: BaseException) -> str:
    """Say in few words why `vmap` refused.

    Example:
        >>> _reason(RuntimeError("vmap: called random operation while in randomness error mode"))
        'it draws random numbers'
    """
    text = str(error)
    if "control flow" in text or ".item()" in text or "data-dependent" in text:
        return "it looks at values to decide what to do"
    if "dynamic" in text or "equal size" in text or "masked_select" in text:
        return "the shape of a result depends on values"
    if "randomness" in text:
        return "it draws random numbers"
    if "data pointer" in text or "storage" in text or "numpy" in text:
        return "it leaves torch, for example for numpy"
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
    return bool((np.abs(left - right) <= _tolerance(one) * (size + scale)).all())


def _tolerance(values: NDArray[Any]) -> float:
    """Return that of the type; of float32 where float64 holds nothing finer."""
    name = values.real.dtype.str[1:]
    if name == "f8":
        with np.errstate(over="ignore"):
            coarse = values.astype("c8" if values.dtype.kind == "c" else "f4")
        name = "f4" if np.array_equal(values, coarse, equal_nan=True) else name
    return TOLERANCE[name]


def _a_row() -> str:
    return "a row"


def _is_input(key: Key, value: Tensor, inputs: dict[Key, Tensor]) -> bool:
    """Return True if a leaf is the input of the same name, and nobody wrote into that."""
    given = inputs.get(key)
    return (
        given is not None
        and value.data_ptr() == given.data_ptr()
        and (value.dtype, value.shape, value.stride()) == (given.dtype, given.shape, given.stride())
        and given._version == 0
    )
