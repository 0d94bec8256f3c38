"""Rows as leaves: what is written taken apart into tensors by key, and put together again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from torch.utils import _pytree as pytree

from offline_data.buffers.gather.plan import INDEX
from offline_data.episodes.fields import Key, join_key
from offline_data.errors import BufferUsageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

Leaves: TypeAlias = "dict[Key, Tensor]"
"""Tensors by key; a tensor that is no TensorDict has the key `()`."""


class Frame(NamedTuple):
    """What rows are besides their leaves.

    Attributes:
        template: Tree with the number of a leaf in place of each; None for a TensorDict.
        names: Names of the dimensions of a TensorDict row.
        nested: Batch dimensions of nested TensorDicts that the root does not have.
    """

    template: Any = None
    names: tuple[str | None, ...] = ()
    nested: tuple[tuple[Key, tuple[int, ...]], ...] = ()

    @classmethod
    def of(cls, data: Any, dims: int) -> Frame:
        """Return the frame of rows that have `dims` dimensions before those of a row."""
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

    def framed(self, batch: TensorDict) -> TensorDict:
        """Give a batch the names of dimensions and the nested batch sizes of what was written."""
        for key, more in self.nested:
            part = batch.get(key, None)
            if part is not None:
                part.batch_size = batch.batch_size + more
        if self.names:
            batch.names = [None, *self.names]
        return batch

    def tree(self, leaves: Sequence[Tensor]) -> Any:
        """Put leaves in their places in the template."""
        return pytree.tree_map(lambda number: leaves[number], self.template)


def leaves_of(data: Any, *, index: bool = False, text: bool = False) -> Leaves:
    """Return the leaves of rows: a TensorDict, a tensorclass, a tensor, or dicts, tuples, lists of them.

    Of a TensorDict without `index` unless asked for. With `text`, leaves of it may be strings, and
    are returned as they are. Raises `UsageError` if there is anything else.
    """
    if isinstance(data, torch.Tensor):
        return {(): data}
    data = plain(data)
    if not isinstance(data, TensorDictBase):
        return _leaves_of_tree(data)
    items = data.items(include_nested=True, leaves_only=True, is_leaf=_is_leaf)
    leaves = {key if isinstance(key, tuple) else (key,): leaf for key, leaf in items}
    if not leaves:
        raise UsageError("The rows have no leaves", hint="a row has at least one tensor")
    if not index:
        if any(key[:1] == INDEX for key in leaves):
            check_index(data.get("index"), data)
        leaves.pop(INDEX, None)
        if not leaves:
            raise UsageError("The rows have no leaf but index, which is not stored: it is made")
    for key, leaf in leaves.items():
        if not isinstance(leaf, torch.Tensor) and not (text and is_text(leaf)):
            raise _no_tensor(join_key(key), leaf)
    return leaves


def _leaves_of_tree(data: Any) -> Leaves:
    if not isinstance(data, dict | tuple | list):
        raise UsageError(
            f"A storage of tensors was given a {type(data).__name__}; expected a TensorDict, a "
            "tensorclass, a tensor, or a dict, tuple or list of tensors",
            hint="a ListStorage takes anything",
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
        raise UsageError("The rows have no leaves", hint="a row has at least one tensor")
    return leaves


def _name(part: Any) -> str:
    """Return the key, or the number, of one step on the way to a leaf."""
    found = (getattr(part, name) for name in ("key", "idx", "name") if hasattr(part, name))
    return str(next(found, part))


def _no_tensor(name: str, leaf: Any) -> UsageError:
    return UsageError(
        f"The leaf {name} is {type(leaf).__name__}; expected a tensor of its own, or strings in a "
        "TensorDict",
        hint="a ListStorage takes anything",
    )


def is_text(leaf: Any) -> bool:
    """Return True if a leaf of a TensorDict is strings, one or many."""
    return isinstance(leaf, NonTensorData | NonTensorStack) and all(
        isinstance(text, str) for text in np.asarray(leaf.tolist(), dtype=object).reshape(-1)
    )


def texts(codes: Tensor, words: Sequence[str]) -> Any:
    """Return strings by their codes `[B, …]`, B at least 1, as a leaf of a TensorDict."""
    found = np.asarray([*words], dtype=object)[codes.cpu().numpy()]
    return NonTensorStack.from_list(found.tolist())


def plain(data: Any) -> Any:
    """Return a tensorclass as a TensorDict, and anything else as it is."""
    is_class = hasattr(data, "to_tensordict") and not isinstance(data, TensorDictBase)
    return data.to_tensordict() if is_class else data


def check_index(index: Any, data: TensorDictBase) -> None:
    """Warn that a leaf `index` is not stored, unless it is that of a dataset's batch.

    Raises `UsageError` if the leaf cannot be the rows of a batch.
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
            f"The leaf index is {found}; in batches it is the row of the buffer, torch.int64 "
            f"{list(data.batch_size)}, and a leaf of your own needs another name",
            hint=hint,
        )
    if data.get("episode", None) is None:
        warnings.warn(
            "The leaf index is not stored: in batches it is the row of this buffer; " + hint,
            stacklevel=2,
        )


def is_list(data: Any) -> bool:
    """Return True if rows are given one by one: a tuple of tensors has leaves, of TensorDicts rows."""
    rows = data if isinstance(data, tuple) else ()
    return isinstance(data, list) or (
        isinstance(data, tuple) and all(hasattr(row, "batch_size") for row in rows)
    )


def part_of(data: Any, rows: slice) -> Any:
    """Return some of the rows that are to be written."""
    if isinstance(data, dict | tuple) and not is_list(data):
        return pytree.tree_map(lambda leaf: leaf[rows], data)
    return data[rows]


def across(data: Any, dim: int) -> Any:
    """Swap a dimension of rows that are to be written with the first one."""
    if isinstance(data, TensorDictBase | torch.Tensor) or hasattr(data, "to_tensordict"):
        return plain(data).transpose(dim, 0)
    if is_list(data):
        return across(stacked(list(data)), dim)
    return pytree.tree_map(lambda leaf: leaf.transpose(dim, 0), data)


def flat(data: Any, dims: int) -> Any:
    """Return a leaf with its first dimensions as one; with none, as one row."""
    return data.unsqueeze(0) if not dims else data.flatten(0, dims - 1) if dims > 1 else data


def count_of(data: Any) -> int:
    """Return how many rows are to be written; raises `UsageError` for one row, a dict, text."""
    ndim = getattr(data, "batch_dims", getattr(data, "ndim", 1))
    found = f"a {type(data).__name__}" + ("" if ndim else " without a batch dimension")
    named = isinstance(data, Mapping | str | bytes) and not isinstance(data, TensorDictBase)
    if isinstance(data, tuple) and any(type(row) is torch.Tensor for row in data):
        found = "a tuple of tensors, which may be rows or the leaves of rows"
    elif ndim and hasattr(data, "__getitem__") and not named:
        return len(data)
    raise UsageError(
        f"Several rows are written at once, and found {found}; expected a TensorDict [B], a tensor "
        "or a list of rows",
        hint="TensorDict(data, batch_size=[B]) makes rows of a dict of tensors; add(row) writes one",
    )


def stacked(rows: list[Any]) -> Any:
    """Stack rows of one kind; raises `UsageError` where they cannot be."""
    try:
        if rows and isinstance(rows[0], dict | tuple | list):
            return pytree.tree_map(lambda *some: torch.stack([*map(torch.as_tensor, some)]), *rows)
        return torch.stack(rows)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        kinds = ", ".join(sorted({type(row).__name__ for row in rows}))
        raise BufferUsageError(
            f"A list of {kinds} cannot be stacked to rows: {error}",
            hint="rows are TensorDicts with the same leaves, tensors of one shape, or dicts and tuples "
            "of them; a ListStorage takes anything",
        ) from error


def _is_leaf(kind: type) -> bool:
    return issubclass(kind, (torch.Tensor, NonTensorData, NonTensorStack))
