"""Rows of several parts as one table, and rows in another order."""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from offline_data.base.errors import FormatError
from offline_data.base.exact import exact, first_changed
from offline_data.episode.joining import concatenate_columns
from offline_data.raw.arrays import Arrays, NamedArray

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from offline_data.raw.arrays import Block, Ranges


class JoinedArrays(Arrays):
    """The arrays of parts that have the same ones, with the rows of all parts in order.

    Numbers of different types become a type that holds the values of all, or are an error.
    """

    def __init__(self, whole: Arrays, parts: Sequence[str]) -> None:
        self.path, self._whole, self._parts = whole.path, whole, parts

    @cached_property
    def _columns_of(self) -> list[Mapping[str, NamedArray]]:
        found: list[Mapping[str, NamedArray]] = []
        for part in self._parts:
            with self._whole.below(part) as opened:
                found.append(dict(opened.columns))
        return found

    @cached_property
    def columns(self) -> Mapping[str, NamedArray]:
        """The arrays of the first part, with the rows of all."""
        return {name: self._join(name) for name in self._columns_of[0]}

    def _join(self, name: str) -> NamedArray:
        first = self._columns_of[0][name]
        rows, dtype = 0, first.dtype
        for part, columns in zip(self._parts, self._columns_of, strict=True):
            column = columns.get(name)
            if column is None or column.problem or not column.shape:
                why = "is not there" if column is None else column.problem or "is a single value"
                return NamedArray((), dtype, f"{why} in {part}")
            numbers = {column.dtype.kind, dtype.kind} <= set("iuf")
            if column.shape[1:] != first.shape[1:] or not (numbers or column.dtype == dtype):
                raise FormatError(
                    f"{self.path}, {part}: a row of {name!r} is {column.dtype} "
                    f"{list(column.shape[1:])}, expected {first.dtype} {list(first.shape[1:])} as in "
                    f"{self._parts[0]}"
                )
            rows += column.shape[0]
            dtype = dtype if column.dtype == dtype else np.result_type(dtype, column.dtype)
        return NamedArray((rows, *first.shape[1:]), dtype)

    def blocks(self, names: Sequence[str], ranges: Ranges) -> Iterator[Block]:
        """Yield rows of the table; a part is open while its rows are read."""
        waiting: dict[str, list[Any]] = {name: [] for name in names}
        at = begin = 0
        for part, columns in zip(self._parts, self._columns_of, strict=True):
            counts = {columns[name].shape[0] for name in names}
            if len(counts) > 1:
                raise FormatError(f"{self.path}, {part}: {' and '.join(names)} differ in rows")
            end, after = begin + counts.pop(), at
            while after < len(ranges) and ranges[after][0] < end:
                after += 1
            inside = ranges[at:after]
            if inside:
                local = [(max(a, begin) - begin, min(b, end) - begin) for a, b in inside]
                with (
                    self._whole.below(part) as opened,
                    closing(
                        cast("Any", opened.blocks(names, local))
                    ) as reading,  # after an error, too
                ):
                    for (_, stop), block in zip(inside, reading, strict=True):
                        for name, pieces in waiting.items():
                            pieces.append(self._cast(name, block[name], part))
                        if stop <= end:
                            yield {n: concatenate_columns(some) for n, some in waiting.items()}
                            waiting = {name: [] for name in names}
                at = after - (inside[-1][1] > end)
            begin = end

    def _cast(self, name: str, values: Any, part: str) -> Any:
        dtype = self.columns[name].dtype
        found = values if values.dtype == dtype else exact(values, dtype)
        if found is None:
            types = sorted({str(columns[name].dtype) for columns in self._columns_of})
            raise FormatError(
                f"{self.path}, {part}: {name!r} is {values.dtype} here, and {' or '.join(types)} in "
                f"all parts: {dtype} does not hold {first_changed(values, dtype)}",
                hint="write it with one dtype in all files",
            )
        return found


class OrderedArrays(Arrays):
    """Arrays of which those with that many rows are read whole, in another order of rows."""

    def __init__(self, whole: Arrays, order: NDArray[np.int64]) -> None:
        self.path, self._whole, self._order = whole.path, whole, order

    @cached_property
    def columns(self) -> Mapping[str, NamedArray]:
        """The arrays as they are."""
        return self._whole.columns

    def blocks(self, names: Sequence[str], ranges: Ranges) -> Iterator[Block]:
        """Yield rows in the new order."""
        whole = {name: self._whole.read(name) for name in names}
        ordered = {n: v[self._order] if len(v) == len(self._order) else v for n, v in whole.items()}
        for start, stop in ranges:
            yield {name: values[start:stop] for name, values in ordered.items()}


def order_of(numbers: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return the order of rows `[N]` that puts equal numbers together, by first appearance; stable.

    None: they are together already.

    Example:
        >>> order_of(np.array([4, 4, 2])) is None, order_of(np.array([4, 2, 4])).tolist()
        (True, [0, 2, 1])
    """
    changes = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    begins = np.concatenate([[0], changes])
    first: dict[Any, int] = {}
    ranks = [first.setdefault(number, len(first)) for number in numbers[begins].tolist()]
    if len(first) == len(begins):
        return None
    lengths = np.diff(begins, append=len(numbers))
    return np.argsort(np.repeat(ranks, lengths), kind="stable")
