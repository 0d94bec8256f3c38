"""Some rows of a dataset as a storage of their own: every batch is a gather of the dataset's."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.assemble import Node, assemble, tree_of
from offline_data.buffers.plan import INDEX
from offline_data.buffers.samplers.base import RowSet, Runs
from offline_data.buffers.storage import DatasetStorage
from offline_data.buffers.trajectories import MASK, TRAJ_IDS, TrajectoryStorage
from offline_data.buffers.views.pieces import Pieces
from offline_data.episodes.fields import TERMINATED, TRUNCATED
from offline_data.errors import UsageError
from offline_data.store.layout import EPISODE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.keys import KeyLike
    from offline_data.buffers.views.pieces import RowMap
    from offline_data.episodes import Key
    from offline_data.store.reader import DatasetReader

DATASET_INDEX: Key = ("dataset_index",)
"""Leaf of a view's batches: what `index` is in the dataset."""
DATASET_EPISODE: Key = ("dataset_episode",)
"""Leaf of a view's batches: what `episode` is in the dataset."""


class SubsetStorage:
    """Rows `0, 1, …` of it are the whole's rows `rows.at(0), rows.at(1), …`.

    ```
                         of the view        of the dataset
    row of a transition  index              dataset_index
    row of `episodes`    episode            dataset_episode, in batches that have `episode`
    ```

    If rows are whole episodes, `index` has those, and `dataset_index` their transitions.

    Runs are pieces of the whole's: rows that follow each other here and there. A pickled one
    carries what the whole carries, and the rows.

    Args:
        whole: Storage of the dataset; its rows are transitions, or whole episodes.
        rows: Which they are.
    """

    def __init__(self, whole: DatasetStorage | TrajectoryStorage, rows: RowMap) -> None:
        self.whole = whole
        self.row_map = rows

    def __reduce__(self) -> tuple[object, ...]:
        """Leave behind what can be computed again."""
        return SubsetStorage, (self.whole, self.row_map)

    def __len__(self) -> int:
        """Return the number of rows, those without a known next observation included."""
        return self.row_map.count

    @property
    def steps(self) -> DatasetStorage:
        """The transitions of the whole dataset."""
        return self.whole if isinstance(self.whole, DatasetStorage) else self.whole.steps

    def rows(self, *, valid_only: bool) -> RowSet:
        """Return the rows that a sampler may draw; see `Sampleable`.

        Raises:
            UsageError: The view has no rows at all.
        """
        of_whole = self.whole.rows(valid_only=valid_only)  # raises if the dataset was deleted
        if not len(self):
            raise UsageError("The view is empty, so there is nothing to sample")
        if not len(of_whole.left_out):
            return self._every
        return self._valid

    @cached_property
    def _every(self) -> RowSet:
        return RowSet(len(self), np.zeros(0, np.int64))

    @cached_property
    def _valid(self) -> RowSet:
        left_out = torch.from_numpy(self.whole.rows(valid_only=True).left_out)
        return RowSet(len(self), self.row_map.left_out(left_out).numpy())

    def runs(self) -> Runs:
        """Return which rows follow each other; see `Sampleable`."""
        return self._runs

    @cached_property
    def _runs(self) -> Runs:
        of_whole = self.whole.runs()
        steps = isinstance(self.whole, DatasetStorage)
        pieces = self.transitions if steps else self.row_map.cut(of_whole)
        return Runs(pieces.starts[:-1], pieces.lengths, pieces.final(of_whole))

    def only(self, keys: Iterable[KeyLike]) -> SubsetStorage:
        """Return the same rows with some of the leaves; see `Storage`."""
        other = SubsetStorage(self.whole.only(keys), self.row_map)
        other._runs = self._runs
        other.transitions = self.transitions
        other._episode_rows = self._episode_rows
        return other

    @property
    def cold(self) -> bool:
        """Whether batches come from a disk now; see `DatasetStorage.cold`."""
        return bool(getattr(self.whole, "cold", False))

    def expect(self, rows: Tensor) -> None:
        """Take note that rows are gathered soon, where the storage is `cold`."""
        self.whole.expect(self.row_map.at(rows))  # type: ignore[union-attr]

    @cached_property
    def transitions(self) -> Pieces:
        """The view's transitions as pieces of the dataset's episodes, in the order of its rows."""
        if isinstance(self.whole, DatasetStorage):
            return self.row_map.cut(self.whole.runs())
        runs = self.steps.runs()
        episodes = self.row_map.at(torch.arange(len(self)))
        return Pieces(runs.starts[episodes], runs.lengths[episodes])

    @cached_property
    def episodes(self) -> Tensor:
        """Number in the dataset of each episode that the view has rows of, once, in the order in
        which they come, int64 `[E]`."""  # noqa: D205, D209 - one sentence
        numbers = self.steps.runs().of(self.transitions.first).numpy()
        _, first = np.unique(numbers, return_index=True)
        return torch.from_numpy(numbers[np.sort(first)])

    @cached_property
    def _episode_rows(self) -> Tensor:
        """The place in `episodes` of each episode of the dataset, -1 where it is in none."""
        rows = torch.full((self.steps.reader.episode_count,), -1)
        rows[self.episodes] = torch.arange(len(self.episodes))
        return rows.to(self.steps.device)

    def episode_rows(self, episodes: Tensor) -> Tensor:
        """Turn numbers of episodes of the dataset, any integers, into rows of the view's table."""
        return self._episode_rows.take(episodes.long())

    def gather(self, rows: Tensor) -> TensorDict:
        """Return the batch of `rows`; see `Storage`; raises `IndexError`."""
        if isinstance(self.whole, DatasetStorage):
            return assemble(self._tree, self.leaves(rows), rows.shape, self.whole.device)
        return self._gather_episodes(rows)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """Return the leaves of the batch of `rows`, by slot; see `DatasetStorage.leaves`."""
        leaves = self.steps.leaves(self.row_map.at(rows))
        return self.in_view(leaves, rows)

    def in_view(self, leaves: list[Tensor], rows: Tensor) -> list[Tensor]:
        """Turn leaves of the dataset, by its slots, into those of the view's `rows`, by `slots`."""
        slots = self.steps.slots
        of_dataset = leaves[slots[INDEX]]
        leaves[slots[INDEX]] = rows.to(of_dataset.device)
        leaves.append(of_dataset)
        if EPISODE in slots:
            leaves.append(leaves[slots[EPISODE]])
            leaves[slots[EPISODE]] = self.episode_rows(leaves[-1])
        return leaves

    @cached_property
    def slots(self) -> Mapping[Key, int]:
        """Number in `leaves` of each leaf of a batch, where rows are transitions."""
        slots, count = self.steps.slots, self.steps.leaf_count
        own = {DATASET_INDEX: count}
        if EPISODE in slots:
            own[DATASET_EPISODE] = count + 1
        return {**slots, **own}

    @cached_property
    def _tree(self) -> Node:
        return tree_of(self.slots)

    def _gather_episodes(self, rows: Tensor) -> TensorDict:
        """Return whole episodes `[B, T]`, zero where they are padded, as the whole does."""
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

    @cached_property
    def counts(self) -> dict[str, int]:
        """Counts of the view's rows, as the manifest has them for a dataset."""
        reader, pieces, runs = self.steps.reader, self.transitions, self.steps.runs()
        left_out = pieces.left_out(torch.from_numpy(reader.invalid_rows))
        final = pieces.final(runs)
        return {
            "transitions": pieces.count,
            "episodes": len(self.episodes),
            "valid_transitions": pieces.count - len(left_out),
            "terminated": _flags_in(reader, pieces, runs, TERMINATED),
            "truncated": _flags_in(reader, pieces, runs, TRUNCATED),
            "without_final_observation": 0 if final is None else int((~final).sum()),
        }


def _flags_in(reader: DatasetReader, pieces: Pieces, runs: Runs, key: Key) -> int:
    """Count the rows of pieces that have a flag set."""
    at_ends = np.array(reader.episodes[key[1:]], dtype=bool)
    if int(at_ends.sum()) != reader.manifest.counts.get(key[1]):  # some are inside episodes
        return int(reader.step(key)[pieces.at(torch.arange(pieces.count)).numpy()].sum())
    run = runs.of(pieces.first)
    whole = pieces.first + pieces.lengths == runs.starts[run] + runs.lengths[run]
    return int((whole & torch.from_numpy(at_ends)[run]).sum())
