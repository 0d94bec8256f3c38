"""Selections of a view (a condition, numbers, fractions, rows) as rows of its dataset."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from offline_data.buffers.indexing import Index, rows_of
from offline_data.buffers.samplers.permutation import EpochOrder
from offline_data.buffers.storage import DatasetStorage
from offline_data.buffers.trajectories import TrajectoryStorage
from offline_data.buffers.views.pieces import Pieces, RowList, between, of_runs, smallest
from offline_data.buffers.views.storage import SubsetStorage
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from offline_data.buffers.dataset import BaseDatasetExperienceReplay
    from offline_data.buffers.episodes import EpisodeTable
    from offline_data.buffers.storage import Storage
    from offline_data.buffers.views.pieces import RowMap

Where: TypeAlias = "Callable[[EpisodeTable], Index]"
"""Called with the episodes as columns; returns a bool mask `[E]`, or row numbers of the table."""

_ROUNDING = 1e-9


def whole_of(storage: Storage) -> tuple[DatasetStorage | TrajectoryStorage, RowMap]:
    """Return the storage that has all rows of a dataset, and which of them `storage` has."""
    if isinstance(storage, SubsetStorage):
        return storage.whole, storage.row_map
    if not isinstance(storage, DatasetStorage | TrajectoryStorage):
        raise TypeError(f"{type(storage).__name__} is not of a dataset")
    runs = storage.runs()
    return storage, Pieces(runs.starts, runs.lengths)


def rows_where(buffer: BaseDatasetExperienceReplay, where: Where) -> RowMap:
    """Return the rows of the episodes that `where` chooses."""
    chosen: Any = where(buffer.episodes)
    if isinstance(chosen, bool):
        raise UsageError(
            f"The function of filter returned {chosen}; expected a mask with an item for each of "
            f"the {len(buffer.episodes)} episodes, or their numbers",
            hint='it is called once, with columns: lambda episodes: episodes["return"] > 100',
        )
    return rows_of_episodes(buffer, chosen)


def rows_of_episodes(buffer: BaseDatasetExperienceReplay, numbers: Index) -> RowMap:
    """Return the rows of the episodes at these rows of `buffer.episodes`, in that order."""
    wanted = rows_of(numbers, len(buffer.episodes)).reshape(-1)
    whole, rows = whole_of(buffer.storage)
    known = getattr(buffer.episodes, "numbers", None)
    return of_runs(rows, whole.runs(), wanted if known is None else known[wanted])


def rows_at(buffer: BaseDatasetExperienceReplay, index: Index) -> RowMap:
    """Return the rows at these rows of the buffer, in that order."""
    whole, rows = whole_of(buffer.storage)
    run = range(rows.count)[index] if isinstance(index, slice) else index
    if isinstance(run, range) and run.step == 1 and 0 <= run.start <= run.stop <= rows.count:
        return between(rows, whole.runs(), run.start, run.stop)
    numbers = rows_of(index, rows.count).reshape(-1)
    return smallest(RowList(rows.at(numbers)), whole.runs())


def split_episodes(count: int, shares: Mapping[str, float], seed: int) -> dict[str, Tensor]:
    """Deal `count` episodes out by shares: a function of the arguments, the same on every machine.

    Returns:
        Episode numbers of each share, ascending, int64; nobody has an episode that another has.
        Shares that sum to 1 have all of them, each its part rounded to whole episodes.

    Raises:
        UsageError: Shares that cannot be, or that get no episode.

    Example:
        >>> {name: len(part) for name, part in split_episodes(7, {"a": 0.5, "b": 0.5}, 0).items()}
        {'a': 4, 'b': 3}
    """
    _check_shares(shares, seed)
    order = torch.from_numpy(EpochOrder(count, seed, 0).between(0, count))
    parts, total, begin = {}, 0.0, 0
    for name, share in shares.items():
        total += share
        end = min(math.floor(total * count + 0.5 + _ROUNDING), count)
        if end == begin:
            raise UsageError(f"{name}={share} of {count} episodes is no episode")
        parts[name], begin = order[begin:end].sort().values, end
    return parts


def _check_shares(shares: Mapping[str, float], seed: int) -> None:
    if seed < 0:
        raise UsageError(f"A seed must not be negative; found {seed}")
    told = ", ".join(f"{name}={share}" for name, share in shares.items())
    fit = all(0 < share <= 1 for share in shares.values())
    if not shares or not fit or sum(shares.values()) > 1 + _ROUNDING:
        raise UsageError(
            f"Shares of a split are above 0 and sum to 1 or less; found {told or 'none'}",
            hint="ds.split(train=0.9, val=0.1, seed=0)",
        )
