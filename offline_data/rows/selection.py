"""Rows of a dataset as a storage: their representation, selection and gathering."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode import Key
from offline_data.episode.fields import TERMINATED, TRUNCATED
from offline_data.rows.gather.assemble import Node, assemble, tree_of
from offline_data.rows.gather.plan import INDEX
from offline_data.rows.indexing import Index, rows_of
from offline_data.rows.keys import KeyLike
from offline_data.rows.samplers.base import EpisodeIndex, ValidRows
from offline_data.rows.storage import DatasetStorage, Storage
from offline_data.rows.trajectories import MASK, TRAJ_IDS, TrajectoryStorage
from offline_data.store.layout import EPISODE

if TYPE_CHECKING:
    from tensordict import TensorDict


DATASET_INDEX: Key = ("dataset_index",)  # feature of a view's batches: the `index` in the dataset
DATASET_EPISODE: Key = ("dataset_episode",)
"""Feature of a view's batches: the `episode` in the dataset."""

_NUMBERS_PER_PIECE = 4  # memory per piece, in int64 numbers; a row of a `RowList` takes one


@pickled_by_name
@dataclass(frozen=True, eq=False)
class Pieces:
    """Contiguous pieces of a storage's rows, each within one run, concatenated.

    ```
    storage    0  1  2 | 3 | 4  5  6  7 | 8  9       four runs, of which the view has two
    view                     0  1  2  3   4  5       first = [4, 8], lengths = [4, 2]
    ```

    Example:
        >>> view = Pieces(torch.tensor([4, 8]), torch.tensor([4, 2]))
        >>> view.count, view.at(torch.tensor([0, 3, 5])).tolist()
        (6, [4, 7, 9])
    """

    first: Tensor  # storage row of each piece, int64 `[P]`, in the view's order
    lengths: Tensor  # of each piece, int64 `[P]`, at least one

    def __reduce__(self) -> tuple[object, ...]:
        return Pieces, (self.first, self.lengths)

    @cached_property
    def starts(self) -> Tensor:
        """The view's first row of each piece, then the total count, int64 `[P + 1]`."""
        return torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)])

    @cached_property
    def count(self) -> int:
        return int(self.starts[-1])

    @cached_property
    def _shift(self) -> Tensor:
        return self.first - self.starts[:-1]

    def at(self, numbers: Tensor) -> Tensor:
        """Return the storage's rows of view rows, int64 `[B]`; raises `IndexError`."""
        # `starts` has one more item than `_shift`, so a row beyond the last piece raises.
        piece = torch.searchsorted(self.starts, numbers, right=True) - 1
        return numbers + self._shift.index_select(0, piece)

    def left_out(self, rows: Tensor) -> Tensor:
        """Return the view's rows, ascending, whose storage rows are in `rows` (ascending)."""
        low = torch.searchsorted(rows, self.first)
        found = torch.searchsorted(rows, self.first + self.lengths) - low
        return rows[end_to_end(low, found)] - self._shift.repeat_interleave(found)

    def final(self, runs: EpisodeIndex) -> Tensor | None:
        """Return `EpisodeIndex.final` of the pieces; within a run, the next observation is known."""
        if runs.final is None:
            return None
        run = runs.of(self.first)
        inside = self.first + self.lengths < runs.starts[run] + runs.lengths[run]
        return inside | runs.final[run]

    def between(self, start: int, stop: int) -> Pieces:
        """Return the view's rows `[start, stop)`."""
        low = torch.clamp(self.starts[:-1], min=start)
        lengths = torch.clamp(self.starts[1:], max=stop) - low
        kept = lengths > 0
        return Pieces((low + self._shift)[kept], lengths[kept])

    def digest(self) -> str:
        return _digest(self.first, self.lengths)

    def cut(self, runs: EpisodeIndex) -> Pieces:  # noqa: ARG002 - already cut at runs
        """Return the pieces; see `RowList.cut`."""
        return self


@pickled_by_name
@dataclass(frozen=True, eq=False)
class RowList:
    """Storage rows of a view in any order, int64 `[n]`."""

    rows: Tensor

    @property
    def count(self) -> int:
        return len(self.rows)

    def at(self, numbers: Tensor) -> Tensor:
        return self.rows.index_select(0, numbers)

    def left_out(self, rows: Tensor) -> Tensor:
        return torch.isin(self.rows, rows).nonzero()[:, 0]

    def between(self, start: int, stop: int) -> RowList:
        return RowList(self.rows[start:stop].clone())

    def digest(self) -> str:
        return _digest(self.rows)

    def cut(self, runs: EpisodeIndex) -> Pieces:
        """Return the rows as pieces, cut where rows are not adjacent or a run ends."""
        if not len(self.rows):
            return Pieces(self.rows, self.rows)
        begins = runs.starts[runs.of(self.rows)] == self.rows
        begins[0] = True
        begins[1:] |= self.rows[1:] != self.rows[:-1] + 1
        at = begins.nonzero()[:, 0]
        return Pieces(self.rows[at], torch.diff(at, append=torch.tensor([len(self.rows)])))


RowMap: TypeAlias = Pieces | RowList  # rows of a view, in either representation; see `smallest`


def smallest(rows: RowMap, runs: EpisodeIndex) -> RowMap:
    """Return the rows in the representation that takes less memory."""
    pieces = rows.cut(runs)
    if len(pieces.first) * _NUMBERS_PER_PIECE <= pieces.count:
        return pieces
    return rows if isinstance(rows, RowList) else RowList(end_to_end(rows.first, rows.lengths))


def of_runs(rows: RowMap, runs: EpisodeIndex, wanted: Tensor) -> RowMap:
    """Return the rows in the runs `wanted`, int64 `[k]`, in the order of `wanted`."""
    pieces = rows.cut(runs)
    run, order = runs.of(pieces.first).sort(stable=True)
    low = torch.searchsorted(run, wanted)
    found = torch.searchsorted(run, wanted, right=True) - low
    picked = order[end_to_end(low, found)]
    return smallest(Pieces(pieces.first[picked], pieces.lengths[picked]), runs)


def end_to_end(first: Tensor, lengths: Tensor) -> Tensor:
    """Return `first[0]`, `first[0] + 1`, …, `first[1]`, …, int64 `[sum of lengths]`."""
    before = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) + (first - before).repeat_interleave(lengths)


def _digest(*numbers: Tensor) -> str:
    found = hashlib.sha256()
    for array in numbers:
        found.update(array.contiguous().numpy().data)
    return found.hexdigest()


@pickled_by_name
class SubsetStorage:
    """Selected rows of a dataset's storage (transitions or whole episodes) as a storage.

    ```
                         in the view        in the dataset
    row of a transition  index              dataset_index
    row of `episodes`    episode            dataset_episode, in batches that have `episode`
    ```

    If rows are whole episodes, `index` is the episode's row, and `dataset_index` those of its
    transitions. Runs are pieces of the dataset's runs.
    """

    def __init__(self, whole: DatasetStorage | TrajectoryStorage, rows: RowMap) -> None:
        self.whole = whole
        self.row_map = rows

    def __reduce__(self) -> tuple[object, ...]:
        return SubsetStorage, (self.whole, self.row_map)

    def __len__(self) -> int:
        return self.row_map.count

    @property
    def steps(self) -> DatasetStorage:
        """The storage of all transitions of the dataset."""
        return self.whole if isinstance(self.whole, DatasetStorage) else self.whole.steps

    def rows(self, *, valid_only: bool) -> ValidRows:
        of_whole = self.whole.rows(valid_only=valid_only)  # raises if the dataset was deleted
        if not len(self):
            raise UsageError("The view is empty, so there is nothing to sample")
        return self._valid if len(of_whole.left_out) else self._every

    @cached_property
    def _every(self) -> ValidRows:
        return ValidRows(len(self))

    @cached_property
    def _valid(self) -> ValidRows:
        left_out = torch.from_numpy(self.whole.rows(valid_only=True).left_out)
        return ValidRows(len(self), self.row_map.left_out(left_out).numpy())

    def runs(self) -> EpisodeIndex:
        return self._runs

    @cached_property
    def _runs(self) -> EpisodeIndex:
        of_whole = self.whole.runs()
        steps = isinstance(self.whole, DatasetStorage)
        pieces = self.transitions if steps else self.row_map.cut(of_whole)
        starts, final, run = pieces.starts[:-1], pieces.final(of_whole), of_whole.of(pieces.first)
        # A whole episode that is in the view twice counts as two.
        cut = bool((pieces.lengths < of_whole.lengths[run]).any()) and len(torch.unique(run)) < len(
            run
        )
        return EpisodeIndex(starts, pieces.lengths, final, episode=run if cut else None)

    def only(self, keys: Iterable[KeyLike]) -> SubsetStorage:
        other = SubsetStorage(self.whole.only(keys), self.row_map)
        other._runs = self._runs
        other.transitions = self.transitions
        other._episode_rows = self._episode_rows
        return other

    def to(self, device: torch.device | str | int) -> SubsetStorage:
        return SubsetStorage(self.whole.to(device), self.row_map)

    @property
    def needs_io(self) -> bool:
        return bool(getattr(self.whole, "needs_io", False))

    def prefetch_rows(self, rows: Tensor) -> None:
        self.whole.prefetch_rows(self.row_map.at(rows))  # type: ignore[union-attr]

    @cached_property
    def transitions(self) -> Pieces:
        """The view's transitions as pieces of the dataset's episodes, in the view's order."""
        if isinstance(self.whole, DatasetStorage):
            return self.row_map.cut(self.whole.runs())
        runs = self.steps.runs()
        episodes = self.row_map.at(torch.arange(len(self)))
        return Pieces(runs.starts[episodes], runs.lengths[episodes])

    @cached_property
    def episodes(self) -> Tensor:
        """Dataset numbers of the view's episodes, in order of first occurrence, int64 `[E]`."""
        numbers = self.steps.runs().of(self.transitions.first).numpy()
        _, first = np.unique(numbers, return_index=True)
        return torch.from_numpy(numbers[np.sort(first)])

    @cached_property
    def _episode_rows(self) -> Tensor:
        """Row in `episodes` of each episode of the dataset, or -1."""
        rows = torch.full((self.steps.reader.episode_count,), -1)
        rows[self.episodes] = torch.arange(len(self.episodes))
        return rows.to(self.steps.device)

    def episode_rows(self, episodes: Tensor) -> Tensor:
        """Return the view's episode rows of dataset episode numbers (any integer dtype)."""
        return self._episode_rows.take(episodes.long())

    def gather(self, rows: Tensor) -> TensorDict:
        if isinstance(self.whole, DatasetStorage):
            return assemble(self._tree, self.leaves(rows), rows.shape, self.whole.device)
        batch = self.whole.gather(self.row_map.at(rows))
        mask = batch.get(MASK)
        own = rows.to(mask.device)[:, None].expand(mask.shape)
        batch.set(INDEX, own.contiguous())
        batch.set(TRAJ_IDS, torch.where(mask, own, 0))
        episode: Any = batch.get(EPISODE, None)
        if episode is not None:
            batch.set(DATASET_EPISODE, episode)
            batch.set(EPISODE, torch.where(mask, self.episode_rows(episode), 0))
        return batch

    def leaves(self, rows: Tensor) -> list[Tensor]:
        slots = self.steps.slots
        leaves = self.steps.leaves(self.row_map.at(rows))
        of_dataset = leaves[slots[INDEX]]
        leaves[slots[INDEX]] = rows.to(of_dataset.device)
        leaves.append(of_dataset)
        if EPISODE in slots:
            leaves.append(leaves[slots[EPISODE]])
            leaves[slots[EPISODE]] = self.episode_rows(leaves[-1])
        return leaves

    @cached_property
    def slots(self) -> Mapping[Key, int]:
        """Position in `leaves` of each feature, if rows are transitions."""
        slots, count = self.steps.slots, self.steps.leaf_count
        own = {DATASET_INDEX: count}
        if EPISODE in slots:
            own[DATASET_EPISODE] = count + 1
        return {**slots, **own}

    @cached_property
    def _tree(self) -> Node:
        return tree_of(self.slots)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Counts of the view's rows, with the keys of `manifest.counts`."""
        reader, pieces, runs = self.steps.reader, self.transitions, self.steps.runs()
        left_out = pieces.left_out(torch.from_numpy(reader.invalid_rows))
        final = pieces.final(runs)
        return {
            "transitions": pieces.count,
            "episodes": len(self.episodes),
            "valid_transitions": pieces.count - len(left_out),
            "terminated": self._flags(TERMINATED),
            "truncated": self._flags(TRUNCATED),
            "without_final_observation": 0 if final is None else int((~final).sum()),
        }

    def _flags(self, key: Key) -> int:
        reader, pieces, runs = self.steps.reader, self.transitions, self.steps.runs()
        at_ends = np.array(reader.episodes[key[1:]], dtype=bool)
        if int(at_ends.sum()) != reader.manifest.counts.get(key[1]):  # some are set within episodes
            return int(reader.step(key)[pieces.at(torch.arange(pieces.count)).numpy()].sum())
        run = runs.of(pieces.first)
        whole = pieces.first + pieces.lengths == runs.starts[run] + runs.lengths[run]
        return int((whole & torch.from_numpy(at_ends)[run]).sum())


def whole_of(storage: Storage) -> tuple[DatasetStorage | TrajectoryStorage, RowMap]:
    """Return the storage of all rows of a dataset, and the rows of `storage` in it."""
    if isinstance(storage, SubsetStorage):
        return storage.whole, storage.row_map
    if not isinstance(storage, DatasetStorage | TrajectoryStorage):
        raise TypeError(f"{type(storage).__name__} is not the storage of a dataset")
    runs = storage.runs()
    return storage, Pieces(runs.starts, runs.lengths)


def rows_of_episodes(storage: Storage, numbers: Index) -> RowMap:
    """Return the rows of the episodes at `numbers`, row numbers of the episode table, in order."""
    whole, rows = whole_of(storage)
    runs = whole.runs()
    known = storage.episodes if isinstance(storage, SubsetStorage) else None
    wanted = rows_of(numbers, len(runs.starts) if known is None else len(known)).reshape(-1)
    return of_runs(rows, runs, wanted if known is None else known[wanted])


def rows_at(storage: Storage, index: Index) -> RowMap:
    """Return the rows at `index` of a storage, in order."""
    whole, rows = whole_of(storage)
    if isinstance(index, slice):
        run = range(rows.count)[index]
        if run.step == 1 and run.start <= run.stop:
            return smallest(rows.between(run.start, run.stop), whole.runs())
    numbers = rows_of(index, rows.count).reshape(-1)
    return smallest(RowList(rows.at(numbers)), whole.runs())
