"""Chosen episodes of a dataset directory as pieces: views of its files wherever that is possible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import TERMINATED, TRUNCATED, Key
from offline_data.preprocess.piece import Piece
from offline_data.store.layout import EPISODE, OBSERVATIONS, TED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.store.reader import DatasetReader

OWN_COLUMNS = ("start", "length", "return", "terminated", "truncated", "final_observation")
"""Episode columns that follow from the steps; all others are the source's."""


@dataclass(frozen=True)
class Chosen:
    """Episodes of the parent that are to be read, in order, and which steps of each.

    A piece of an episode is read as an episode of its own. Where it ends before its episode does,
    it ends truncated, and its last next observation is the parent's.
    """

    episodes: NDArray[np.int64]
    """`[C]` numbers in the parent; one that several pieces are of stands there for each."""
    lengths: NDArray[np.int64]
    """`[C]` transitions to take of each, at least 1."""
    steps: NDArray[np.int64]
    """`[C]` step of each at which that begins; 0 where its beginning is wanted."""

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> Chosen:
        """Return some of them."""
        return Chosen(self.episodes[part], self.lengths[part], self.steps[part])

    @property
    def transitions(self) -> int:
        """Transitions in all."""
        return int(self.lengths.sum())

    def rows(self, reader: DatasetReader) -> NDArray[np.int64]:
        """Return the parent's row that each begins with, `[C]`."""
        return np.asarray(reader.starts[self.episodes] + self.steps)

    def ends_early(self, reader: DatasetReader) -> NDArray[np.bool_]:
        """Return `[C]` whether the parent's episode goes on after the last step taken."""
        return np.asarray(self.steps + self.lengths < reader.lengths[self.episodes])


def every(
    reader: DatasetReader, num_frames: int | None = None, view: Chosen | None = None
) -> Chosen:
    """Choose all episodes, or those of a view; of these the first `num_frames` transitions."""
    lengths = reader.lengths
    zeros = np.zeros(len(lengths), np.int64)
    chosen = view or Chosen(np.arange(len(lengths)), np.asarray(lengths), zeros)
    if num_frames is None or num_frames >= chosen.transitions:
        return chosen
    before = np.cumsum(chosen.lengths) - chosen.lengths
    kept = chosen[before < num_frames]
    left = num_frames - before[before < num_frames]
    return replace(kept, lengths=np.minimum(kept.lengths, left))


def read_piece(reader: DatasetReader, chosen: Chosen) -> Piece:
    """Read episodes, or pieces of them.

    What lies side by side in files of layout `compact` is views of the files; anything else is
    copied.
    """
    begins, early = chosen.rows(reader), chosen.ends_early(reader)
    follows = (np.diff(chosen.episodes) == 1) & (begins[1:] == begins[:-1] + chosen.lengths[:-1])
    together = bool(follows.all())
    rows = _index(begins, chosen.lengths, together=together)
    steps: dict[Key, NDArray[Any]] = {
        key: reader.step(key)[rows] for key in reader.step_leaves if key != EPISODE
    }
    if early.any():
        last = np.cumsum(chosen.lengths)[early] - 1
        truncated = np.array(steps[TRUNCATED])
        truncated[last] |= ~steps[TERMINATED][last].astype(bool)
        steps[TRUNCATED] = truncated
    observations = {
        key: _observations(reader, key, chosen, begins, together=together)
        for key in reader.observation_leaves
    }
    final = np.asarray(reader.episodes[("final_observation",)])[chosen.episodes].astype(bool)
    extras = {key: np.array(column[chosen.episodes]) for key, column in _extras(reader).items()}
    batch = EpisodeBatch(chosen.lengths, steps, observations, final | early, extras)
    return Piece(batch, chosen.episodes, begins, chosen.steps, _words(reader, batch))


def read_transitions(reader: DatasetReader, rows: NDArray[np.int64]) -> Piece:
    """Read single transitions, `[n]` ascending rows, each as an episode of its own; copies."""
    episodes = np.searchsorted(reader.starts, rows, side="right") - 1
    steps = {k: np.array(reader.step(k)[rows]) for k in reader.step_leaves if k != EPISODE}
    observations = {
        key: np.stack(
            [reader.observations_at(key, rows, after=after) for after in (False, True)], axis=1
        ).reshape(2 * len(rows), *leaf.shape)
        for key, leaf in reader.observation_leaves.items()
    }
    last = rows == (reader.starts + reader.lengths - 1)[episodes]
    final = np.asarray(reader.episodes[("final_observation",)])[episodes] | ~last
    extras = {key: np.array(column[episodes]) for key, column in _extras(reader).items()}
    lengths = np.ones(len(rows), np.int64)
    batch = EpisodeBatch(lengths, steps, observations, final, extras)
    return Piece(batch, episodes, rows, rows - reader.starts[episodes], _words(reader, batch))


def _index(
    begins: NDArray[np.int64], counts: NDArray[np.int64], *, together: bool
) -> slice | NDArray[np.int64]:
    """Return `counts[0]` rows from `begins[0]` on, then those of the next, …: a slice if it can be."""
    if together:
        return slice(int(begins[0]), int(begins[0] + counts.sum()))
    before = np.cumsum(counts) - counts
    return np.asarray(np.arange(int(counts.sum())) + np.repeat(begins - before, counts))


def _observations(
    reader: DatasetReader, key: Key, chosen: Chosen, begins: NDArray[np.int64], *, together: bool
) -> NDArray[Any]:
    if TED not in reader.manifest.tables:
        index = _index(begins + chosen.episodes, chosen.lengths + 1, together=together)
        return np.asarray(reader.leaf(OBSERVATIONS, key)[index])
    before = reader.leaf(TED, key)[_index(begins, chosen.lengths, together=together)]
    after = reader.observations_at(key, begins + chosen.lengths - 1, after=True)
    return np.insert(before, np.cumsum(chosen.lengths), after, axis=0)


def _extras(reader: DatasetReader) -> dict[Key, NDArray[np.generic]]:
    return {key: c for key, c in reader.episodes.items() if key[0] not in OWN_COLUMNS}


def _words(reader: DatasetReader, batch: EpisodeBatch) -> dict[Key, list[str]]:
    found = {key: reader.words(key) for key in (*batch.steps, *batch.observations)}
    return {key: words for key, words in found.items() if words is not None}
