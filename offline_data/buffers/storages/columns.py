"""Leaves of all rows, one tensor each: rows are put in, and batches gathered out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from tensordict import NonTensorData, NonTensorStack, TensorDictBase

from offline_data.buffers.assemble import Node, assemble, tree_of
from offline_data.buffers.plan import INDEX
from offline_data.episodes.fields import Key, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

Leaves: TypeAlias = "dict[Key, Tensor]"
"""Tensors by key; a tensor that is no TensorDict has the key `()`."""


def count_of(data: Any) -> int:
    """Return how many rows were given to be written.

    Raises:
        UsageError: Something that is no sequence of rows: one row, a dict, text.
    """
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
    """Stack TensorDicts, tensorclasses or tensors; raises `UsageError` where they cannot be."""
    try:
        return torch.stack(rows)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        kinds = ", ".join(sorted({type(row).__name__ for row in rows}))
        raise UsageError(
            f"A list of {kinds} cannot be stacked to rows: {error}",
            hint="rows are TensorDicts with the same leaves, or tensors of one shape; a ListStorage "
            "takes anything",
        ) from error


def leaves_of(data: Any, *, index: bool = False) -> Leaves:
    """Return the leaves of a tensor, TensorDict or tensorclass.

    Args:
        data: Rows that have them.
        index: Whether the leaf `index` is one of them.

    Raises:
        UsageError: It is something else, or has a leaf that is no tensor.
    """
    if isinstance(data, torch.Tensor):
        return {(): data}
    if hasattr(data, "to_tensordict") and not isinstance(data, TensorDictBase):
        data = data.to_tensordict()  # a tensorclass
    if not isinstance(data, TensorDictBase):
        raise UsageError(
            f"A storage of tensors was given a {type(data).__name__}; expected a TensorDict, a "
            "tensorclass or a tensor",
            hint="TensorDict(data, batch_size=[…]), or a ListStorage, which takes anything",
        )
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
        if not isinstance(leaf, torch.Tensor):
            raise UsageError(
                f"The leaf {join_key(key)} is {type(leaf).__name__}; expected a tensor",
                hint="keep text as integer codes, or use a ListStorage, which takes anything",
            )
    return leaves


def check_index(index: Any, data: TensorDictBase) -> None:
    """Say that a leaf `index` is not stored: batches have the row of the buffer there.

    Batches of datasets, which have `episode` beside it, and nothing where it would be lost, are
    written without a word.

    Args:
        index: The leaf, or None.
        data: Rows that have it.

    Raises:
        UsageError: It cannot be the rows of a batch: another dtype or shape.
    """
    if index is None:
        return
    hint = "data.rename_key_('index', 'my_index') keeps it; data.exclude('index') leaves it out"
    if not isinstance(index, torch.Tensor):
        kind = type(index).__name__
    else:
        kind = "" if index.dtype is torch.int64 else f"{index.dtype}"
        kind = kind or ("" if index.shape == data.batch_size else f"{list(index.shape)}")
    if kind:
        raise UsageError(
            f"The leaf index is {kind}; in batches it is the row of the buffer, torch.int64 "
            f"{list(data.batch_size)}, and a leaf of your own needs another name",
            hint=hint,
        )
    if data.get("episode", None) is None:
        warnings.warn(
            "The leaf index is not stored: in batches it is the row of this buffer; " + hint,
            stacklevel=2,
        )


class Columns:
    """The leaves of a fixed number of rows.

    Args:
        leaves: Each `[rows, …]`; used as they are, not copied.
        shape: Batch size of one row, `[]` unless rows are TensorDicts with dimensions of their own.
    """

    def __init__(self, leaves: Leaves, shape: Sequence[int] = ()) -> None:
        self.leaves = {key: _plain(leaf) for key, leaf in leaves.items()}
        self.shape = tuple(shape)
        self.device = next(iter(self.leaves.values())).device
        self._plans: dict[tuple[Key, ...], tuple[list[Tensor], Node]] = {}

    def put(self, index: slice | Tensor, leaves: Leaves, count: int) -> None:
        """Write `count` rows, all leaves of them or, where they do not fit, none.

        Raises:
            UsageError: A leaf that is missing, one that is not here, another shape, or a dtype
                that torch does not cast to the one here (`torch.can_cast`); integers that would
                become others by it.
        """
        if leaves.keys() != self.leaves.keys():
            raise _other_leaves(leaves, self.leaves)
        for key, leaf in leaves.items():
            _check(key, leaf, self.leaves[key], count)
        where = index if isinstance(index, slice) else index.to(self.device)
        for key, leaf in leaves.items():
            self.leaves[key][where] = leaf.detach().to(self.device)

    def take(self, rows: Tensor, keys: tuple[Key, ...] | None = None) -> Any:
        """Gather rows, int64 `[B]`, of all leaves or some, each contiguous and with its own memory.

        Returns:
            A TensorDict `[B, *shape]` with `index`, or a tensor where rows are tensors.
        """
        rows = rows.to(self.device)
        if () in self.leaves:
            return self.leaves[()].index_select(0, rows)
        sources, tree = self._plan(tuple(self.leaves) if keys is None else keys)
        index = rows
        if self.shape:
            spread = rows.reshape(-1, *[1] * len(self.shape))
            index = spread.expand(len(rows), *self.shape).contiguous()
        leaves = [index, *(source.index_select(0, rows) for source in sources)]
        return assemble(tree, leaves, torch.Size((len(rows), *self.shape)), self.device)

    def first(self, count: int) -> Leaves:
        """Return the leaves of the first rows, not copied."""
        return {key: leaf[:count] for key, leaf in self.leaves.items()}

    def _plan(self, keys: tuple[Key, ...]) -> tuple[list[Tensor], Node]:
        if keys not in self._plans:
            slots = {key: slot for slot, key in enumerate((INDEX, *keys))}
            self._plans[keys] = [self.leaves[key] for key in keys], tree_of(slots)
        return self._plans[keys]


def _is_leaf(kind: type) -> bool:
    return issubclass(kind, (torch.Tensor, NonTensorData, NonTensorStack))


def _plain(leaf: Tensor) -> Tensor:
    """Strip a subclass (memory maps of tensordict), whose every operation is slow."""
    return leaf.detach() if type(leaf) is torch.Tensor else leaf.detach().as_subclass(torch.Tensor)


def _check(key: Key, leaf: Tensor, column: Tensor, count: int) -> None:
    name = f"The leaf {join_key(key)}" if key else "The tensor"
    expected = (count, *column.shape[1:])
    if tuple(leaf.shape) != expected:
        raise UsageError(
            f"{name} has the shape {list(leaf.shape)}; expected {list(expected)}: the rows, then "
            "what one row has here"
        )
    if leaf.dtype == column.dtype:
        return
    if not torch.can_cast(leaf.dtype, column.dtype):
        raise UsageError(f"{name} is {leaf.dtype}; rows here have {column.dtype}")
    exact = leaf.is_floating_point() or leaf.is_complex() or column.dtype == torch.bool
    if not exact and not torch.equal(leaf.to(column.dtype).to(leaf.dtype), leaf):
        raise UsageError(
            f"{name} is {leaf.dtype}, and some of its values do not fit in {column.dtype}, which "
            "rows here have",
            hint="the first rows that are written decide the dtype",
        )


def _other_leaves(found: Leaves, expected: Leaves) -> UsageError:
    missing = ", ".join(join_key(key) for key in expected if key not in found)
    more = ", ".join(join_key(key) for key in found if key not in expected)
    parts = [f"lack {missing}" if missing else "", f"have {more} beside" if more else ""]
    return UsageError(
        f"The rows {' and '.join(filter(None, parts))}; the rows here have "
        f"{', '.join(map(join_key, expected))}",
        hint="the first rows that are written decide: data.select(…) leaves the others out",
    )
