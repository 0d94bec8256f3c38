"""Some of the leaves of a storage that grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.buffers.keys import select_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from offline_data.buffers.keys import KeyLike
    from offline_data.buffers.samplers.base import Boundaries, RowSet, Runs
    from offline_data.buffers.storages.base import GrowingStorage
    from offline_data.episodes import Key


class Selection:
    """The rows of a storage as they are at each moment, with some of its leaves.

    Args:
        storage: Storage of the rows.
        keys: Leaves that batches have.
        take: Called with rows and the keys; gives the batch.
    """

    def __init__(
        self,
        storage: GrowingStorage,
        keys: Sequence[Key],
        take: Callable[[Tensor, tuple[Key, ...]], Any],
    ) -> None:
        self._storage = storage
        self._keys = tuple(keys)
        self._take = take

    def __len__(self) -> int:
        """Return the number of rows that have been written."""
        return len(self._storage)

    def rows(self, *, valid_only: bool) -> RowSet:
        """Return all rows; see `GrowingStorage.rows`."""
        return self._storage.rows(valid_only=valid_only)

    def runs(self) -> Runs:
        """Return the trajectories; see `GrowingStorage.runs`."""
        return self._storage.runs()

    def runs_by(self, boundaries: Boundaries) -> Runs:
        """Return the trajectories by other leaves; see `GrowingStorage.runs_by`."""
        return self._storage.runs_by(boundaries)

    def only(self, keys: Iterable[KeyLike]) -> Selection:
        """Return the same rows with fewer leaves; see `Storage`."""
        return Selection(self._storage, select_keys(self._keys, keys), self._take)

    def gather(self, rows: Tensor) -> Any:
        """Return the batch of `rows`; see `Storage`."""
        return self._take(rows, self._keys)
