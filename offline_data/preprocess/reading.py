"""Chosen episodes of a dataset directory as pieces: views of its files wherever that is possible."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import TERMINATED, TRUNCATED, Key
from offline_data.preprocess.piece import Piece
from offline_data.store.layout import EPISODE, OBSERVATIONS, TED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from offline_data.store.reader import DatasetReader

OWN_COLUMNS = ("start", "length", "return", "terminated", "truncated", "final_observation")
"""Episode columns that follow from the steps; all others are the source's."""


@dataclass(frozen=True)
class Chosen:
    """Episodes of the parent that are to be read, and how much of each."""

    episodes: NDArray[np.int64]
    """`[C]` numbers in the parent."""
    lengths: NDArray[np.int64]
    """`[C]` transitions to take from the beginning of each; less than it has where it is cut."""

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> Chosen:
        """Return some of them."""
        return Chosen(self.episodes[part], self.lengths[part])

    @property
    def transitions(self) -> int:
        """Transitions in all."""
        return int(self.lengths.sum())


def every(reader: DatasetReader, num_frames: int | None = None) -> Chosen:
    """Choose all episodes, or the first `num_frames` transitions: the last episode may be cut."""
    lengths = reader.lengths
    if num_frames is None or num_frames >= reader.transitions:
        return Chosen(np.arange(len(lengths)), lengths)
    stop = int(np.searchsorted(reader.starts, num_frames))
    taken = np.minimum(lengths[:stop], num_frames - reader.starts[:stop])
    return Chosen(np.arange(stop), taken)


def read_piece(reader: DatasetReader, chosen: Chosen) -> Piece:
    """Read whole episodes (cut ones end truncated, their last next observation known).

    Consecutive episodes of layout `compact` are views of the files; anything else is copied.
    """
    runs = list(_runs(reader, chosen))
    batches = [_read_run(reader, run) for run in runs]
    batch = batches[0] if len(batches) == 1 else _joined(batches)
    starts = reader.starts[chosen.episodes]
    return Piece(batch, chosen.episodes, starts, np.zeros_like(starts), _words(reader, batch))


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


def _runs(reader: DatasetReader, chosen: Chosen) -> Iterator[Chosen]:
    """Cut into runs of episodes that lie side by side, none but the last of a run cut."""
    whole = chosen.lengths == reader.lengths[chosen.episodes]
    follows = (np.diff(chosen.episodes) == 1) & whole[:-1]
    seams = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(whole)]
    for first, stop in itertools.pairwise(seams):
        yield chosen[first:stop]


def _read_run(reader: DatasetReader, run: Chosen) -> EpisodeBatch:
    first, stop = int(run.episodes[0]), int(run.episodes[-1]) + 1
    begin, count = int(reader.starts[first]), run.transitions
    steps: dict[Key, NDArray[Any]] = {
        key: reader.step(key)[begin : begin + count] for key in reader.step_leaves if key != EPISODE
    }
    observations = {
        key: _observation_run(reader, key, run, begin, begin + first)
        for key in reader.observation_leaves
    }
    final = np.array(reader.episodes[("final_observation",)][first:stop], dtype=bool)
    extras = {key: np.array(column[first:stop]) for key, column in _extras(reader).items()}
    batch = EpisodeBatch(run.lengths, steps, observations, final, extras)
    cut = run.lengths[-1] < reader.lengths[stop - 1]
    return _ended(batch) if cut else batch


def _observation_run(
    reader: DatasetReader, key: Key, run: Chosen, begin: int, before: int
) -> NDArray[Any]:
    count = run.transitions
    if TED not in reader.manifest.tables:
        return np.asarray(
            reader.leaf(OBSERVATIONS, key)[before : before + count + len(run.lengths)]
        )
    rows, ends = np.arange(begin, begin + count), np.cumsum(run.lengths)
    after = reader.observations_at(key, rows[ends - 1], after=True)
    return np.insert(reader.leaf(TED, key)[begin : begin + count], ends, after, axis=0)


def _ended(batch: EpisodeBatch) -> EpisodeBatch:
    """Mark the last transition as truncated, unless it is terminated: the episode is cut there."""
    truncated = np.array(batch.steps[TRUNCATED])
    truncated[-1] |= ~batch.steps[TERMINATED][-1].astype(bool)
    final = batch.final_observation.copy()
    final[-1] = True
    return replace(batch, steps={**batch.steps, TRUNCATED: truncated}, final_observation=final)


def _joined(batches: list[EpisodeBatch]) -> EpisodeBatch:
    def join(columns: list[Mapping[Key, NDArray[Any]]]) -> dict[Key, NDArray[Any]]:
        return {key: np.concatenate([one[key] for one in columns]) for key in columns[0]}

    return EpisodeBatch(
        np.concatenate([batch.lengths for batch in batches]),
        join([batch.steps for batch in batches]),
        join([batch.observations for batch in batches]),
        np.concatenate([batch.final_observation for batch in batches]),
        join([batch.episodes for batch in batches]),
    )


def _extras(reader: DatasetReader) -> dict[Key, NDArray[np.generic]]:
    return {key: c for key, c in reader.episodes.items() if key[0] not in OWN_COLUMNS}


def _words(reader: DatasetReader, batch: EpisodeBatch) -> dict[Key, list[str]]:
    found = {key: reader.words(key) for key in (*batch.steps, *batch.observations)}
    return {key: words for key, words in found.items() if words is not None}
