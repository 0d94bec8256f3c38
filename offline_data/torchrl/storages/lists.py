"""A storage of arbitrary objects, in a list."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase, lazy_stack
from torch import Tensor
from torch.utils import _pytree as pytree

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural
from offline_data.episode import Key
from offline_data.episode.fields import DONE, join_key
from offline_data.rows import fields
from offline_data.rows.devices import as_device
from offline_data.rows.indexing import Index, rows_of
from offline_data.rows.keys import KeyLike, as_keys
from offline_data.rows.storage import Storage
from offline_data.rows.transforms import spread
from offline_data.rows.unsupported import refuse
from offline_data.torchrl.storages.growing import GrowingStorage
from offline_data.torchrl.storages.leaves import check_index, count_of, plain
from offline_data.torchrl.storages.trajectory_index import (
    TRAJECTORIES,
    boundaries_in,
    cuts,
    origin_of,
)
from offline_data.torchrl.storages.views import SelectedLeaves

_NO_NUMBER = -1


class ListStorage(GrowingStorage):
    """Rows that are arbitrary objects, stored unchanged; slow compared to tensors.

    Rows of a batch are stacked: TensorDicts to a TensorDict with `index` (a lazy stack if shapes
    differ), tensors and numbers to a tensor, tuples, lists and dicts of them item by item.
    Other rows need the buffer's `collate_fn`, which is called with the list of rows.

    Args:
        max_size: Capacity in rows; None: unlimited.
        device: Device that tensors are moved to when written; None: not moved.

    Example:
        >>> storage = ListStorage()
        >>> storage.set([0, 1], ["a", "b"])
        >>> storage.get([1, 0])
        ['b', 'a']
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        device: torch.device | str | int | None = None,
        **torchrl: Any,
    ) -> None:
        refuse(type(self).__name__, torchrl, "compilable")
        super().__init__(sys.maxsize if max_size is None else max_size)
        self.device = None if device is None else as_device(device)
        self._items: list[Any] = []
        self._marks: dict[int, tuple[bool, int]] = {}  # of rows for which they are known

    def _take(self, rows: Tensor, keys: Any) -> Any:
        if keys is not None:
            return self._take(rows, None).select("index", *keys, strict=False)
        items = [self._items[row] for row in rows.tolist()]
        if all(isinstance(item, TensorDictBase) for item in items):
            batch = self._stack_items(items)
            index = spread(rows.to(batch.device), batch.batch_size)
            return batch.set("index", index.clone())
        try:
            return pytree.tree_map(
                lambda *leaves: torch.stack([*map(torch.as_tensor, leaves)]), *items
            )
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"Rows of {type(items[0]).__name__} cannot be stacked: {error}",
                hint="collate_fn=… of the buffer receives the list of rows and returns a batch",
            ) from error

    def get(self, index: Index) -> Any:
        rows = rows_of(index, len(self))
        if rows.ndim == 0:
            return self._item(int(rows))
        return [self._item(row) for row in rows.reshape(-1).tolist()]

    def _item(self, row: int) -> Any:
        item = self._items[row]
        if not (self.indexed and isinstance(item, TensorDictBase)):
            return item
        number = torch.full(item.batch_size, row, device=item.device)
        return item.copy().set("index", number)

    def _stack_items(self, items: list[Any]) -> Any:
        batch = LazyStackedTensorDict.maybe_dense_stack(items)
        return batch.clone() if isinstance(batch, LazyStackedTensorDict) else batch

    def only(self, keys: Iterable[KeyLike]) -> Storage:
        """Return the same rows with only some features, ignoring keys that a row lacks."""
        return SelectedLeaves(self, as_keys(keys))

    def empty(self) -> None:
        super().empty()
        self._items, self._marks = [], {}

    def batch_length(self, data: Any) -> int:
        return count_of(data)

    def _convert_rows(self, data: Any, dims: int) -> list[Any]:
        if dims:
            count_of(data)
        return [self._to_stored(item) for item in (data if dims else [data])]

    def _write(self, rows: slice | Tensor, items: list[Any]) -> Tensor | None:
        numbers = range(rows.start, rows.stop) if isinstance(rows, slice) else rows.tolist()
        if items and isinstance(items[0], TensorDictBase):
            check_index(items[0].get("index", None), items[0])
        if len(items) != len(numbers):
            raise UsageError(
                f"Found {plural(len(items), 'object')} for {plural(len(numbers), 'row')}"
            )
        self._items.extend([None] * (max(numbers) + 1 - len(self._items)))
        for row, item in zip(numbers, items, strict=True):
            self._items[row] = item
            self._marks.pop(row, None)
        origins = [origin_of(_transition(item), 1) for item in items]
        known = [origin for origin in origins if origin is not None]
        return torch.cat(known) if len(known) == len(items) else None

    def _to_stored(self, item: Any) -> Any:
        item = plain(item)
        if self.device is None:
            return item
        if hasattr(item, "to"):
            return item.to(self.device)
        return pytree.tree_map(lambda x: x.to(self.device) if hasattr(x, "to") else x, item)

    @property
    def _of_trajectories(self) -> bool:
        return any(isinstance(item, TensorDictBase) and item.batch_dims for item in self._items)

    def _leaf(self, key: Key) -> Tensor | None:
        leaves = [
            item.get(key, None) if isinstance(item, TensorDictBase) else None
            for item in self._items
        ]
        found = [leaf.reshape(-1) for leaf in leaves if leaf is not None]
        if found and len(found) < len(leaves):
            row = next(row for row, leaf in enumerate(leaves) if leaf is None)
            raise UsageError(f"Row {row} has no feature {join_key(key)}, which other rows have")
        return torch.stack(found) if found else None

    def _mark(self, key: Key) -> Tensor | None:
        if key not in (DONE, TRAJECTORIES[0]) or not self._count:
            return None
        for row in range(self._count):
            if row not in self._marks:
                self._marks[row] = _marks_of(_transition(self._items[row]))
        marks = [self._marks[row][key != DONE] for row in range(self._count)]
        if key == DONE or any(number != _NO_NUMBER for number in marks):
            return torch.tensor(marks)
        return None

    def _content(self) -> Any:
        return list(self._items)

    def _check_content(self, content: Any, count: int) -> int:
        rows = fields.StateField(
            f"a list of {count}", lambda c: isinstance(c, list) and len(c) == count
        )
        fields.check({"content": content}, type(self).__name__, {"content": rows})
        return 1

    def _restore(self, content: Any, count: int) -> None:
        self._marks = {}
        self._items = pytree.tree_map(
            lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, content[:count]
        )


class LazyStackStorage(ListStorage):
    """A `ListStorage` of TensorDicts that returns several rows as a lazy stack; their shapes may differ.

    `batch.get(key, as_padded_tensor=True)` pads a feature, `as_list=True` returns those of the
    rows. Rows that are no TensorDicts, which TorchRL cannot return, are as in a `ListStorage`.

    Args:
        max_size: Capacity in rows; None: unlimited.
        stack_dim: 0 or -1, which must be the first dimension: rows with dimensions of their own
            need 0.
        device: See `ListStorage`.

    Raises:
        UsageError: Another `stack_dim`; on reading, -1 and rows that have dimensions.

    Example:
        >>> from tensordict import TensorDict
        >>> storage = LazyStackStorage(8)
        >>> storage.set([0, 1], [TensorDict(a=torch.ones(2)), TensorDict(a=torch.ones(3))])
        >>> storage.get([0, 1]).get("a", as_padded_tensor=True)
        tensor([[1., 1., 0.],
                [1., 1., 1.]])
    """

    def __init__(
        self,
        max_size: int | None = None,
        *,
        stack_dim: int = 0,
        device: torch.device | str | int | None = None,
        **torchrl: Any,
    ) -> None:
        super().__init__(max_size, device=device, **torchrl)
        if stack_dim not in (0, -1):
            raise UsageError(
                f"stack_dim is {stack_dim}; expected 0 or -1",
                hint="batch.transpose(0, dim) moves the dimension of rows",
            )
        self.stack_dim = stack_dim

    def get(self, index: Index) -> Any:
        found = super().get(index)
        several = isinstance(found, list) and found
        if several and all(isinstance(item, TensorDictBase) for item in found):
            return self._stack_items(found)
        return found

    def _stack_items(self, items: list[Any]) -> Any:
        if self.stack_dim and items[0].batch_dims:
            raise UsageError(
                f"Rows have batch size {list(items[0].batch_size)}, and stack_dim=-1 would not be the "
                "first dimension of a batch",
                hint="LazyStackStorage(…, stack_dim=0)",
            )
        return lazy_stack([item.clone() for item in items])


def _transition(item: Any) -> Any:
    """Return a row if it is one step; one that is anything else says nothing of trajectories."""
    return item if isinstance(item, TensorDictBase) and not item.batch_dims else {}


def _marks_of(row: Any) -> tuple[bool, int]:
    def leaf(key: Key) -> Any:
        return row.get(key, None)

    flags, number = cuts(1, leaf, boundaries_in(leaf))
    ended = any(map(bool, flags)) if flags else number is None
    return ended, _NO_NUMBER if number is None else int(number[0, 0])
