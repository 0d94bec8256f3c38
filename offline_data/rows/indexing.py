"""Conversion of indices (`buffer[…]`) to row numbers, and rows in the shape of an index."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torch import Tensor
from torch.utils import _pytree as pytree

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural

Index: TypeAlias = "int | slice | EllipsisType | Sequence[Any] | NDArray[Any] | Tensor"


def rows_of(index: Index, length: int) -> Tensor:
    """Return the row numbers at an index, in `[0, length)`, int64 of any shape.

    Args:
        index: An int, a slice, `...`, a sequence, array or tensor of ints of any shape, or a bool
            mask of `length` items. Negative numbers count from the end.
        length: Number of rows.

    Raises:
        IndexError: Row out of range, or a mask of another length.
        UsageError: Not an index.

    Example:
        >>> rows_of([0, -1], 5), rows_of(slice(1, 3), 5), rows_of(-2, 5)
        (tensor([0, 4]), tensor([1, 2]), tensor(3))
    """
    if isinstance(index, EllipsisType):
        index = slice(None)
    if isinstance(index, slice):
        run = range(length)[index]
        return torch.arange(len(run)) * run.step + run.start
    rows = _as_tensor(index)
    if rows.dtype == torch.bool:
        if rows.shape != (length,):
            raise IndexError(
                f"A mask of shape {list(rows.shape)} does not fit {plural(length, 'row')}"
            )
        return rows.cpu().nonzero()[:, 0]
    if rows.dtype.is_floating_point or rows.dtype.is_complex:
        raise UsageError(f"Row numbers must be integers, not {rows.dtype}")
    rows = rows.to(dtype=torch.int64, device="cpu")
    if rows.numel() and not -length <= int(rows.min()) <= int(rows.max()) < length:
        raise IndexError(
            f"Rows {int(rows.min())} to {int(rows.max())} are out of range; there are {length}"
        )
    return torch.where(rows < 0, rows + length, rows)


def cells_of(index: Any, numbers: Tensor) -> Tensor:
    """Return `numbers[index]`, int64 of any shape, of row numbers `[T, …]`; see `rows_of`.

    With several dimensions, the index may be a tuple with an item for each.
    """
    if numbers.ndim == 1:
        return rows_of(index, len(numbers))
    items = index if isinstance(index, tuple) else (index,)
    kept = (int, slice, EllipsisType, type(None))
    return numbers[tuple(item if isinstance(item, kept) else _as_tensor(item) for item in items)]


def gather_cells(gather: Callable[[Tensor], Any], cells: Tensor) -> Any:
    """Return the rows with these numbers, in the shape of `cells`."""
    batch, size = gather(cells.reshape(-1)), cells.shape
    if cells.ndim == 1:
        return batch
    if isinstance(batch, TensorDictBase | torch.Tensor):
        return batch.reshape(size + batch.shape[1:]) if cells.ndim else batch[0]
    return pytree.tree_map(lambda leaf: leaf.reshape(size + leaf.shape[1:]), batch)


def _as_tensor(index: Any) -> Tensor:
    if isinstance(index, torch.Tensor):
        return index
    try:
        return torch.tensor(operator.index(index))
    except TypeError:
        pass
    try:
        values = np.asarray(index)
        return torch.from_numpy(values.astype(np.int64) if not values.size else values.copy())
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{index!r} is not an index of transitions; expected an int, a slice, a list, an array, "
            "a tensor or a bool mask",
            hint='for one feature of all transitions: buffer[:]["observation"]',
        ) from error


def positive(value: int, name: str) -> int:
    """Return `value`; raises `UsageError` unless it is an integer of at least 1."""
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}; expected a whole number")
    if value < 1:
        raise UsageError(f"{name} is {value}; expected at least 1")
    return value
