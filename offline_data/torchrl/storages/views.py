"""Live views of a growing storage: of some features, or with rows in the order of time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from offline_data.base.pickles import pickled_by_name
from offline_data.episode import Key
from offline_data.rows.keys import KeyLike, select_keys


@pickled_by_name
class SelectedLeaves:
    """A live view of a storage with only some of its features."""

    def __init__(self, storage: Any, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)
        self._storage = storage
        self.runs, self.runs_by, self.rows = storage.runs, storage.runs_by, storage.rows

    def __len__(self) -> int:
        return len(self._storage)

    def only(self, keys: Iterable[KeyLike]) -> SelectedLeaves:
        return SelectedLeaves(self._storage, select_keys(self._keys, keys))

    def gather(self, rows: Tensor) -> Any:
        return self._storage._take(rows, self._keys)


@pickled_by_name
class InTime:
    """A live view of a storage whose rows are numbered so that those of a run are adjacent."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage
        self.runs, self.rows = storage.runs, storage.rows

    def __len__(self) -> int:
        return len(self._storage)

    def positions(self, rows: Tensor) -> Tensor:
        """Return the numbers in this view of rows of the storage."""
        order = self.runs().order
        return rows if order is None else order.positions(rows)

    def only(self, keys: Iterable[KeyLike]) -> InTime:
        selected: Any = self._storage.only(keys)
        return InTime(selected)

    def gather(self, rows: Tensor) -> Any:
        order = self.runs().order
        return self._storage.gather(rows if order is None else order.rows(rows))
