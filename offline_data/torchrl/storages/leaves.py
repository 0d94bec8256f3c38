"""Rows as features: conversion of written data to tensors by key, and back."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from torch import Tensor
from torch.utils import _pytree as pytree

from offline_data.base.errors import BufferUsageError, UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import Key, join_key
from offline_data.rows import fields
from offline_data.rows.derived.base import is_leaf
from offline_data.rows.gather.plan import INDEX

Leaves: TypeAlias = "dict[Key, Tensor]"  # tensors by key; a bare tensor has the key `()`


@pickled_by_name
class Frame(NamedTuple):
    """Structure of rows besides their features."""

    template: Any = None  # tree with a leaf's number in place of each leaf; None for a TensorDict
    names: tuple[str | None, ...] = ()  # dimension names of a TensorDict row
    nested: tuple[tuple[Key, tuple[int, ...]], ...] = ()  # dims beyond the root's of nested ones

    @classmethod
    def of(cls, data: Any, dims: int) -> Frame:
        """Return the frame of rows with `dims` leading dimensions."""
        data = plain(data)
        if not isinstance(data, TensorDictBase):
            _, spec = pytree.tree_flatten(data)
            return cls(pytree.tree_unflatten(range(spec.num_leaves), spec))
        names = tuple(data.names[dims:])
        size = data.batch_dims
        parts = data.items(include_nested=True)
        nested = tuple(
            (key if isinstance(key, tuple) else (key,), tuple(part.batch_size[size:]))
            for key, part in parts
            if isinstance(part, TensorDictBase) and part.batch_dims > size
        )
        return cls(None, names if any(names) else (), nested)

    def set_frame(self, batch: TensorDict) -> TensorDict:
        """Set dimension names and nested batch sizes of a batch to those of written rows."""
        for key, more in self.nested:
            part = batch.get(key, None)
            if part is not None:
                part.batch_size = batch.batch_size + more
        if self.names:
            batch.names = [None, *self.names]
        return batch

    def tree(self, leaves: Sequence[Tensor]) -> Any:
        """Return the template with its numbers replaced by features."""
        return pytree.tree_map(lambda number: leaves[number], self.template)


_ROWS = {
    "leaves": fields.TABLE,
    "shape": fields.each(fields.COUNT),
    "columns": fields.optional(fields.each(fields.integer(1))),
    "frame": fields.optional(fields.LIST),
    "words": fields.optional(fields.TABLE),
}


class StoredRows:
    """The rows in the state of a `TensorStorage`, checked; raises `IntegrityError`.

    Attributes:
        leaves: Tensors `[count, …]`.
        shape: Batch size of a row.
        columns: Sizes of the storage's dimensions beyond the first; `width` is their product.
        frame: Structure of the rows.
        words: Texts by their codes.
    """

    def __init__(self, content: Any, count: int, ndim: int) -> None:
        fields.check(content, "storage", _ROWS, self._rules(content, count, ndim))

    def _rules(self, content: Mapping[str, Any], count: int, ndim: int) -> Iterator[fields.Rule]:
        self.leaves, self.shape = dict(content["leaves"]), tuple(content["shape"])
        self.columns = tuple(content.get("columns", ()))
        self.width: int = math.prod(self.columns)
        yield "leaves", self.leaves and _are_keys(self.leaves), "features by key"
        fits = len(self.columns) == ndim - 1 or not (count or self.columns)
        yield "columns", fits, f"{ndim - 1} numbers"
        # That of an earlier version has no names or nested parts, or is missing.
        first = 0 if () in self.leaves else None
        found = [*content.get("frame", (first,))]
        fits = 1 <= len(found) <= len(Frame._fields)
        self.frame = Frame(*found) if fits else Frame()
        yield "frame", fits and self._frame_fits(), "the structure of the rows"
        size = (count, *(self.shape if self.frame.template is None else ()))
        for key, leaf in self.leaves.items():
            fits = isinstance(leaf, torch.Tensor) and leaf.shape[: len(size)] == size
            yield "leaves", fits, f"tensors {list(size)}, unlike {key}"
        self.words: dict[Key, list[str]] = dict(content.get("words", {}))
        for key, words in self.words.items():
            fits = isinstance(words, list) and all(type(word) is str for word in words)
            codes = self.leaves.get(key)
            fits = fits and codes is not None and codes.dtype is torch.int32
            if fits and codes is not None and codes.numel():
                fits = int(codes.min()) >= 0 and int(codes.max()) < len(words)
            yield "words", fits, f"the texts of all codes of {key}"

    def _frame_fits(self) -> bool:
        template, names, nested = self.frame
        fits = isinstance(names, tuple) and len(names) in (0, len(self.shape))
        fits = fits and all(name is None or isinstance(name, str) for name in names)
        if not (fits and _are_sizes(nested)):
            return False
        if template is None:
            fits = () not in self.leaves
        else:
            numbers = pytree.tree_leaves(template)
            fits = all(type(number) is int for number in numbers)
            fits = fits and numbers == [*range(len(self.leaves))]
        for key, more in nested:
            below = [leaf for path, leaf in self.leaves.items() if path[: len(key)] == key]
            size = (*self.shape, *more)
            same = (getattr(leaf, "shape", ())[1 : 1 + len(size)] == size for leaf in below)
            fits = fits and bool(below) and all(same)
        return fits


def _are_sizes(nested: Any) -> bool:
    if not isinstance(nested, tuple):
        return False
    pairs = [part for part in nested if isinstance(part, tuple) and len(part) == 2]
    fits = all(isinstance(key, tuple) and isinstance(more, tuple) for key, more in pairs)
    numbers = [size for _, more in pairs for size in more] if fits else []
    return fits and len(pairs) == len(nested) and all(type(size) is int for size in numbers)


def _are_keys(leaves: Leaves) -> bool:
    return all(
        isinstance(key, tuple) and all(isinstance(name, str) for name in key) for key in leaves
    )


def leaves_of(data: Any, *, index: bool = False, text: bool = False) -> Leaves:
    """Return the features of rows: a TensorDict, tensorclass or tensor, or dicts, tuples, lists of them.

    The `index` of a TensorDict is left out unless `index` is True. With `text`, features may be strings,
    returned unchanged. Raises `UsageError` for anything else.
    """
    if isinstance(data, torch.Tensor):
        return {(): data}
    data = plain(data)
    if not isinstance(data, TensorDictBase):
        return _leaves_of_tree(data)
    items = data.items(include_nested=True, leaves_only=True, is_leaf=is_leaf)
    leaves = {key if isinstance(key, tuple) else (key,): leaf for key, leaf in items}
    if not leaves:
        raise UsageError("The rows have no features", hint="a row has at least one tensor")
    if not index:
        if any(key[:1] == INDEX for key in leaves):
            check_index(data.get("index"), data)
        leaves.pop(INDEX, None)
        if not leaves:
            raise UsageError("The rows have no feature except index, which is computed, not stored")
    for key, leaf in leaves.items():
        if not isinstance(leaf, torch.Tensor) and not (text and is_text(leaf)):
            raise _no_tensor(join_key(key), leaf)
    return leaves


def _leaves_of_tree(data: Any) -> Leaves:
    if not isinstance(data, dict | tuple | list):
        raise UsageError(
            f"A storage of tensors was given a {type(data).__name__}; expected a TensorDict, a "
            "tensorclass, a tensor, or a dict, tuple or list of tensors",
            hint="a ListStorage accepts anything",
        )
    leaves: Leaves = {}
    for path, leaf in pytree.tree_flatten_with_path(data)[0]:
        key = tuple(_name(part) for part in path)
        if isinstance(leaf, bool | int | float | np.ndarray | np.generic):
            leaf = torch.as_tensor(leaf)
        if key in leaves or not isinstance(leaf, torch.Tensor):
            raise _no_tensor(join_key(key), leaf)
        leaves[key] = leaf
    if not leaves:
        raise UsageError("The rows have no features", hint="a row has at least one tensor")
    return leaves


def _name(part: Any) -> str:
    found = (getattr(part, name) for name in ("key", "idx", "name") if hasattr(part, name))
    return str(next(found, part))


def _no_tensor(name: str, leaf: Any) -> UsageError:
    return UsageError(
        f"The feature {name} is {type(leaf).__name__}; expected a tensor, or strings in a TensorDict",
        hint="a ListStorage accepts anything",
    )


def is_text(leaf: Any) -> bool:
    """Return True if a feature of a TensorDict is one or more strings."""
    return isinstance(leaf, NonTensorData | NonTensorStack) and all(
        isinstance(text, str) for text in np.asarray(leaf.tolist(), dtype=object).reshape(-1)
    )


def texts(codes: Tensor, words: Sequence[str]) -> Any:
    """Return the strings of codes `[B, …]`, `B >= 1`, as a feature of a TensorDict."""
    found = np.asarray([*words], dtype=object)[codes.cpu().numpy()]
    return NonTensorStack.from_list(found.tolist())


def plain(data: Any) -> Any:
    """Return a tensorclass as a TensorDict, and anything else unchanged."""
    is_class = hasattr(data, "to_tensordict") and not isinstance(data, TensorDictBase)
    return data.to_tensordict() if is_class else data


def check_index(index: Any, data: TensorDictBase) -> None:
    """Warn that a feature `index` is not stored, unless the data are a batch of a dataset.

    Raises `UsageError` if the feature cannot be the row numbers of a batch.
    """
    if index is None:
        return
    hint = "data.rename_key_('index', 'my_index') keeps it; data.exclude('index') leaves it out"
    found: Any = None
    if not isinstance(index, torch.Tensor):
        found = type(index).__name__
    elif index.dtype is not torch.int64:
        found = index.dtype
    elif index.shape != data.batch_size:
        found = list(index.shape)
    if found is not None:
        raise UsageError(
            f"The feature index is {found}; in batches it is the row of the buffer, torch.int64 "
            f"{list(data.batch_size)}, so a feature of your own needs another name",
            hint=hint,
        )
    if data.get("episode", None) is None:
        warnings.warn(
            "The feature index is not stored: in batches it is the row of this buffer; " + hint,
            stacklevel=2,
        )


def is_list(data: Any) -> bool:
    """Return True if `data` is a list of rows; a tuple is one if it contains TensorDicts."""
    rows = data if isinstance(data, tuple) else ()
    return isinstance(data, list) or (
        isinstance(data, tuple) and all(hasattr(row, "batch_size") for row in rows)
    )


def part_of(data: Any, rows: slice) -> Any:
    """Return a slice of rows to write."""
    if isinstance(data, dict | tuple) and not is_list(data):
        return pytree.tree_map(lambda leaf: leaf[rows], data)
    return data[rows]


def across(data: Any, dim: int) -> Any:
    """Swap a dimension of rows to write with the first one."""
    if isinstance(data, TensorDictBase | torch.Tensor) or hasattr(data, "to_tensordict"):
        return plain(data).transpose(dim, 0)
    if is_list(data):
        return across(stack_rows(list(data)), dim)
    return pytree.tree_map(lambda leaf: leaf.transpose(dim, 0), data)


def flat(data: Any, dims: int) -> Any:
    """Return a feature with its first `dims` dimensions flattened; with 0, as one row."""
    return data.unsqueeze(0) if not dims else data.flatten(0, dims - 1) if dims > 1 else data


def count_of(data: Any) -> int:
    """Return the number of rows to write; raises `UsageError` for one row, a dict or text."""
    ndim = getattr(data, "batch_dims", getattr(data, "ndim", 1))
    found = f"a {type(data).__name__}" + ("" if ndim else " without a batch dimension")
    named = isinstance(data, Mapping | str | bytes) and not isinstance(data, TensorDictBase)
    if isinstance(data, tuple) and any(type(row) is torch.Tensor for row in data):
        found = "a tuple of tensors, which may be rows or features of rows"
    elif ndim and hasattr(data, "__getitem__") and not named:
        return len(data)
    raise UsageError(
        f"extend writes several rows, and found {found}; expected a TensorDict [B], a tensor "
        "or a list of rows",
        hint="TensorDict(data, batch_size=[B]) converts a dict of tensors; add(row) writes one row",
    )


def stack_rows(rows: list[Any]) -> Any:
    """Stack rows of one kind; raises `UsageError` if that is impossible."""
    try:
        if rows and isinstance(rows[0], dict | tuple | list):
            return pytree.tree_map(lambda *some: torch.stack([*map(torch.as_tensor, some)]), *rows)
        return torch.stack(rows)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        kinds = ", ".join(sorted({type(row).__name__ for row in rows}))
        raise BufferUsageError(
            f"Stacking the elements of the list resulted in an error: they are {kinds}; {error}",
            hint="rows are TensorDicts with the same features, tensors of one shape, or dicts and tuples "
            "of them; a ListStorage accepts anything",
        ) from error


def check_fits(key: Key, leaf: Tensor, stored: Tensor, count: int) -> None:
    """Raise `UsageError` if `count` rows of a feature cannot be written to the stored feature."""
    name = f"The feature {join_key(key)}" if key else "The tensor"
    expected = (count, *stored.shape[1:])
    if tuple(leaf.shape) != expected:
        raise UsageError(
            f"{name} has the shape {list(leaf.shape)}; expected {list(expected)}: the rows, then "
            "the shape of a stored row"
        )
    if leaf.dtype == stored.dtype:
        return
    if not torch.can_cast(leaf.dtype, stored.dtype):
        raise UsageError(f"{name} is {leaf.dtype}; stored rows have {stored.dtype}")
    exact = leaf.is_floating_point() or leaf.is_complex() or stored.dtype == torch.bool
    if not exact and not torch.equal(leaf.to(stored.dtype).to(leaf.dtype), leaf):
        raise UsageError(
            f"{name} is {leaf.dtype}, and some of its values do not fit in the stored "
            f"{stored.dtype}",
            hint="the first write determines the dtype",
        )
