"""All rows of a storage leaf by leaf, each read when it is asked for: what TorchRL's samplers see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.flat_order import path_of
from offline_data.episodes.fields import DONE, Key, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from offline_data.buffers.flat_order import NestedKey
    from offline_data.buffers.samplers import RowSet
    from offline_data.buffers.storage import Storage


class LazyColumns:
    """The leaves of rows of a storage, as a mapping; a leaf is copied once, and then kept.

    `episode` numbers runs of rows that follow each other, and `("next", "done")` is set at the
    last row of each: the same as in batches of a whole dataset, and right for views that have
    pieces of episodes. A pickled one leaves its leaves behind.

    Args:
        storage: Storage of the rows.
        rows: Which they are.
        gather: Makes a batch of rows.
    """

    def __init__(self, storage: Storage, rows: RowSet, gather: Callable[[Tensor], Any]) -> None:
        self._storage = storage
        self._rows = rows
        self._gather = gather
        self._known: dict[Key, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}

    def __getitem__(self, key: NestedKey) -> Tensor:
        """Return one leaf of all rows, `[rows, …]`; raises `KeyError` where there is none."""
        path = path_of(key)
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def get(self, key: NestedKey, default: Any = None) -> Any:
        """Return one leaf of all rows, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def whole(self) -> Any:
        """Return all rows as a batch."""
        return self._gather(self._every())

    def _every(self) -> Tensor:
        return self._rows.at(torch.arange(self._rows.count))

    def _read(self, key: Key) -> Tensor:
        rows = self._every()
        run = self._storage.runs().of(rows)
        if key == ("episode",):
            return run
        try:
            leaf: Tensor = self._storage.only([key]).gather(rows).get(key)
        except UsageError as error:
            raise KeyError(join_key(key)) from error
        if key == DONE:
            leaf[:-1] |= (run[1:] != run[:-1])[:, None]
            leaf[-1:] = True
        return leaf


class Collate:
    """Collate function that TorchRL's buffer calls with the output of its storage.

    Args:
        then: Called with the batch; None: nothing.
    """

    def __init__(self, then: Callable[[Any], Any] | None) -> None:
        self._then = then

    def __call__(self, data: Any) -> Any:
        """Return the batch, also where it is one of all rows."""
        batch = data.whole() if isinstance(data, LazyColumns) else data
        return batch if self._then is None else self._then(batch)
