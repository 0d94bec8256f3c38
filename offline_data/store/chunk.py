"""`EpisodeChunk`: the episodes that steps of a recipe take and return, and reading them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import EPISODE_COLUMNS, TERMINATED, TRUNCATED, Key
from offline_data.store.reader import DatasetReader

_BY_LENGTHS = ("transitions", "starts", "last_rows", "episode_of", "root_rows", "next_rows")
"""Cached properties that depend on the lengths alone; a batch of the same episodes inherits them."""


@dataclass(frozen=True)
class EpisodeChunk:
    """Some episodes of a dataset, as passed from one step of a recipe to the next.

    Arrays of the batch may be read-only views of a file: a step replaces them and never writes into
    them. Text features are int32 codes.
    """

    batch: EpisodeBatch
    """The episodes; parts of episodes in a chunk that is only read to learn a schema."""
    episodes: NDArray[np.int64]
    """`[E]` number of each episode in the parent."""
    rows: NDArray[np.int64]
    """`[E]` row in the parent of each episode's first step here."""
    steps: NDArray[np.int64]
    """`[E]` number in its episode of each first step; 0 where episodes are whole."""
    words: Mapping[Key, Sequence[str]] = field(default_factory=dict)
    """Vocabularies of text features, by the key in the batch's steps or observations."""
    by_rows: tuple[tuple[int, str, int], ...] = ()
    """Blocks that a vectorised function had to compute row by row: number of rows, reason, and
    number of the step in the recipe."""
    losses: tuple[tuple[int, int, int, int], ...] = ()
    """Absolute errors of lossy encodings: the largest, their sum, number of values, and number of the
    step in the recipe."""

    @cached_property
    def row_numbers(self) -> NDArray[np.int64]:
        """`[N]` row in the parent of every step.

        After a function that changed an episode's length, these are counted from its first row.
        """
        return self._rows_from(self.rows)

    @cached_property
    def step_numbers(self) -> NDArray[np.int64]:
        """`[N]` number of every step in its episode."""
        return self._rows_from(self.steps)

    @cached_property
    def episode_numbers(self) -> NDArray[np.int64]:
        """`[N]` number in the parent of the episode of every step."""
        return self.episodes[self.batch.episode_of]

    def place(self, row: int, *, observed: bool = False) -> str:
        """Describe where a row of a step column, or `observed` column, comes from, for a message.

        Example:
            >>> from offline_data.testing.chunks import toy_chunk
            >>> toy_chunk([2, 1]).place(2, observed=True)
            'the observation after row 1 (episode 0, step 1)'
        """
        side = ""
        if observed:
            ends = self.batch.last_rows + np.arange(len(self.batch.lengths)) + 1
            at = int(np.searchsorted(ends, row))
            side = f"the observation {'after' if row == ends[at] else 'before'} "
            row -= at + int(row == ends[at])
        found = (self.row_numbers, self.episode_numbers, self.step_numbers)
        number, episode, step = (int(numbers[row]) for numbers in found)
        return f"{side}row {number} (episode {episode}, step {step})"

    def having(
        self,
        *,
        steps: Mapping[Key, NDArray[Any]] | None = None,
        observations: Mapping[Key, NDArray[Any]] | None = None,
        words: Mapping[Key, Sequence[str]] | None = None,
    ) -> EpisodeChunk:
        """Return the same episodes with all step or observation columns replaced.

        Drops vocabularies of features that are gone or not int32. Raises like `EpisodeBatch`.
        """
        old = self.batch
        batch = replace(
            old,
            steps=old.steps if steps is None else steps,
            observations=old.observations if observations is None else observations,
        )
        batch.__dict__.update({k: v for k, v in vars(old).items() if k in _BY_LENGTHS})
        codes = {k for k, v in {**batch.steps, **batch.observations}.items() if v.dtype == np.int32}
        kept = self.words if words is None else words
        return replace(self, batch=batch, words={k: w for k, w in kept.items() if k in codes})

    def _rows_from(self, first: NDArray[np.int64]) -> NDArray[np.int64]:
        batch = self.batch
        return np.repeat(first - batch.starts, batch.lengths) + np.arange(batch.transitions)


@dataclass(frozen=True)
class EpisodeSelection:
    """Episodes of the parent to read, in order, and which steps of each.

    A piece of an episode is read as an episode of its own. If it ends before its episode does, it
    is truncated, and its last next observation is the parent's.
    """

    episodes: NDArray[np.int64]
    """`[C]` numbers in the parent, repeated for several pieces of one episode."""
    lengths: NDArray[np.int64]
    """`[C]` steps to take of each, at least 1."""
    steps: NDArray[np.int64]
    """`[C]` first step to take of each."""

    def __getitem__(self, part: slice | NDArray[np.bool_]) -> EpisodeSelection:
        return EpisodeSelection(self.episodes[part], self.lengths[part], self.steps[part])

    @property
    def transitions(self) -> int:
        """Total number of steps."""
        return int(self.lengths.sum())

    def rows(self, reader: DatasetReader) -> NDArray[np.int64]:
        """Return the parent's row at which each begins, `[C]`."""
        return np.asarray(reader.starts[self.episodes] + self.steps)


def select_episodes(
    reader: DatasetReader, num_frames: int | None = None, view: EpisodeSelection | None = None
) -> EpisodeSelection:
    """Select the first `num_frames` steps of all episodes, or of those of a view."""
    lengths = reader.lengths
    zeros = np.zeros(len(lengths), np.int64)
    chosen = view or EpisodeSelection(np.arange(len(lengths)), np.asarray(lengths), zeros)
    if num_frames is None or num_frames >= chosen.transitions:
        return chosen
    before = np.cumsum(chosen.lengths) - chosen.lengths
    kept = chosen[before < num_frames]
    left = num_frames - before[before < num_frames]
    return replace(kept, lengths=np.minimum(kept.lengths, left))


def read_chunk(
    reader: DatasetReader, chosen: EpisodeSelection, *, cut: bool = True
) -> EpisodeChunk:
    """Read episodes or pieces, with `cut` truncated if they end early; views as `read_pieces`."""
    batch = reader.read_pieces(chosen.episodes, chosen.steps, chosen.lengths)
    early = chosen.steps + chosen.lengths < reader.lengths[chosen.episodes]
    if cut and early.any():
        last = batch.last_rows[early]
        truncated = np.array(batch.steps[TRUNCATED])
        truncated[last] |= ~batch.steps[TERMINATED][last].astype(bool)
        batch = replace(batch, steps={**batch.steps, TRUNCATED: truncated})
    found = {key: reader.words(key) for key in (*batch.steps, *batch.observations)}
    words = {key: listed for key, listed in found.items() if listed is not None}
    return EpisodeChunk(batch, chosen.episodes, chosen.rows(reader), chosen.steps, words)


def read_transitions(reader: DatasetReader, rows: NDArray[np.int64]) -> EpisodeChunk:
    """Read single steps, `[n]` ascending rows, each as an episode of its own."""
    episodes = reader.episode_of(rows)
    ones, steps = np.ones(len(rows), np.int64), rows - reader.starts[episodes]
    return read_chunk(reader, EpisodeSelection(episodes, ones, steps), cut=False)


def episode_words(reader: DatasetReader) -> Mapping[Key, Sequence[str]]:
    """Return the vocabularies of text columns of the episode table."""
    known = reader.vocabularies.get("episodes", {})
    return {key: words for key, words in known.items() if key[0] not in EPISODE_COLUMNS}
