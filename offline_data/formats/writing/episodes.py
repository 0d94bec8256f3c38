"""The episodes to export: those of datasets, views and mixtures, read in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import UsageError
from offline_data.base.plurals import shorten
from offline_data.episode import EpisodeBatch
from offline_data.episode.cut import runs_within
from offline_data.episode.fields import EPISODE_COLUMNS, Key, join_key
from offline_data.formats.base import PART_BYTES
from offline_data.store.chunk import EpisodeSelection, read_chunk, select_episodes
from offline_data.store.history import history_of
from offline_data.store.layout import EPISODE, EPISODES, TEXT_DTYPE, LeafSpec
from offline_data.store.manifest import HistoryStep
from offline_data.store.reader import DatasetReader, decode

Table: TypeAlias = Literal["steps", "observations", "episodes"]


@dataclass(frozen=True)
class Leaf:
    """A leaf of the episodes."""

    key: Key  # as in `EpisodeBatch`, `("next", "reward")`; of observations the root key
    table: Table  # attribute of `EpisodeBatch` that has it
    dtype: str  # numpy's name, or `text`
    shape: tuple[int, ...]  # of a row
    encoding: str | None = None  # `jpeg`, `png` or `video` where rows are stored as such

    @classmethod
    def of(cls, spec: LeafSpec, table: Table) -> Leaf:
        return cls(spec.key, table, "text" if spec.text else spec.dtype, spec.shape, spec.encoding)

    @property
    def label(self) -> str:
        """Name for messages: `info/qpos`, or of a column of episodes `episodes/seed`."""
        return join_key((EPISODES, *self.key) if self.table == "episodes" else self.key)

    @property
    def nbytes(self) -> int:
        """Bytes of a row, decoded; those of an average text."""
        return (64 if self.dtype == "text" else np.dtype(self.dtype).itemsize) * prod(self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape) if self.shape else ''}"


@dataclass(frozen=True, eq=False)
class ExportMember:
    """Episodes of one dataset."""

    reader: DatasetReader
    chosen: EpisodeSelection
    whole: bool  # whether they are all of its episodes
    view: HistoryStep | None = None  # step of the saved view whose rows they are

    @classmethod
    def of(
        cls,
        reader: DatasetReader,
        chosen: EpisodeSelection | None = None,
        view: HistoryStep | None = None,
    ) -> ExportMember:
        """Return all episodes of a dataset, or the chosen ones."""
        return cls(reader, select_episodes(reader, view=chosen), chosen is None, view)

    @property
    def history(self) -> tuple[HistoryStep, ...]:
        """The steps from the source to these episodes."""
        steps = history_of(self.reader.manifest)
        return steps if self.view is None else (*steps, self.view)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """Its leaves, by table and key."""
        reader = self.reader
        steps = [Leaf.of(one, "steps") for k, one in reader.step_leaves.items() if k != EPISODE]
        seen = [Leaf.of(leaf, "observations") for leaf in reader.observation_leaves.values()]
        facts = [
            Leaf.of(leaf, "episodes")
            for key, leaf in reader.manifest.tables[EPISODES].by_key.items()
            if key[0] not in EPISODE_COLUMNS
        ]
        return tuple(sorted((*steps, *seen, *facts), key=lambda leaf: (leaf.table, leaf.key)))

    @property
    def rows(self) -> NDArray[np.int64]:
        """`[N]` row of the dataset of each transition."""
        lengths = self.chosen.lengths
        before = np.cumsum(lengths) - lengths
        first = np.repeat(self.chosen.rows(self.reader) - before, lengths)
        return np.asarray(first + np.arange(len(first)))

    def read(self, first: int, stop: int) -> EpisodeBatch:
        """Read some episodes, text as `str`; in layout `compact` numbers are views of the files."""
        chunk = read_chunk(self.reader, self.chosen[first:stop])
        batch = chunk.batch

        def texts(columns: Mapping[Key, NDArray[np.generic]]) -> dict[Key, NDArray[np.generic]]:
            words = chunk.words
            return {k: decode(c, list(words[k])) if k in words else c for k, c in columns.items()}

        facts = {
            key: self.reader.as_text(key, column, EPISODES)
            for key, column in batch.episodes.items()
        }
        return EpisodeBatch(
            batch.lengths,
            texts(batch.steps),
            texts(batch.observations),
            batch.final_observation,
            facts,
        )


def _with_mark_columns(reader: DatasetReader) -> DatasetReader:
    """Return a reader whose episodes have the columns of marks, as if they were stored."""
    tables, columns = reader.manifest.tables, reader.mark_columns
    words = {key: [*dict.fromkeys(column)] for key, column in columns.items()}
    specs = [LeafSpec(key, TEXT_DTYPE, (), "", 0, 0, text=True) for key in columns]
    table = replace(tables[EPISODES], leaves=(*tables[EPISODES].leaves, *specs))
    made = DatasetReader(reader.path, replace(reader.manifest, tables={**tables, EPISODES: table}))
    made.episodes = {
        **reader.episodes,
        **{key: np.array([*map(words[key].index, column)]) for key, column in columns.items()},
    }
    known = reader.vocabularies
    made.vocabularies = {**known, EPISODES: {**known.get(EPISODES, {}), **words}}
    return made


def each_episode(batches: Iterable[EpisodeBatch]) -> Iterator[EpisodeBatch]:
    """Yield the episodes of batches one by one."""
    for batch in batches:
        yield from (batch.part(at, at + 1) for at in range(len(batch.lengths)))


@dataclass(frozen=True, eq=False)
class ExportedEpisodes:
    """The episodes of one or several datasets with the same leaves, in order.

    Raises:
        UsageError: The datasets differ in a leaf, or there is no episode.
    """

    members: tuple[ExportMember, ...]

    def __post_init__(self) -> None:
        first, *others = self.members
        for other in others:
            different = sorted({*first.leaves} ^ {*other.leaves}, key=lambda leaf: leaf.key)
            if different:
                leaf = different[0]
                found = [
                    next((str(one) for one in member.leaves if one.key == leaf.key), "missing")
                    for member in (first, other)
                ]
                raise UsageError(
                    f"{first.reader.manifest.id} and {other.reader.manifest.id} differ in feature "
                    f"{shorten(leaf.label)!r}: {found[0]} and {found[1]}; an export has one schema",
                    hint="export them one by one, or make the features equal with `preprocess`",
                )
        if not len(self.lengths):
            raise UsageError("There are no episodes to export: the view is empty")

    def with_marks(self) -> ExportedEpisodes:
        """Return the episodes with the columns `mark` and `note`, if an episode has one."""
        if not any(member.reader.marks.episodes for member in self.members):
            return self
        marked = (replace(one, reader=_with_mark_columns(one.reader)) for one in self.members)
        return ExportedEpisodes(tuple(marked))

    @property
    def reader(self) -> DatasetReader:
        return self.members[0].reader

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        return self.members[0].leaves

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """`[E]` transitions of each episode."""
        return np.concatenate([member.chosen.lengths for member in self.members])

    @property
    def transitions(self) -> int:
        return int(self.lengths.sum())

    def column(self, key: Key) -> NDArray[Any]:
        """Return a column of all episodes `[E, …]`, text as `str` or None."""
        parts = []
        for member in self.members:
            values = np.asarray(member.reader.episodes[key])[member.chosen.episodes]
            parts.append(member.reader.as_text(key, values, EPISODES))
        return np.concatenate(parts)

    def last_flags(self, key: Key) -> NDArray[np.bool_]:
        """Return a flag of the last row of each episode `[E]`."""
        found = []
        for member in self.members:
            last = member.rows[np.cumsum(member.chosen.lengths) - 1]
            found.append(np.asarray(member.reader.step(key)[last], bool)[:, 0])
        return np.concatenate(found)

    def places(self) -> Iterator[tuple[ExportMember, int]]:
        """Yield the member and the number in it of each episode."""
        for member in self.members:
            yield from ((member, at) for at in range(len(member.chosen.lengths)))

    def batches(self, budget: int = PART_BYTES) -> Iterator[EpisodeBatch]:
        """Read all episodes in order, about `budget` bytes at a time, an episode at least."""
        row = sum(leaf.nbytes for leaf in self.leaves if leaf.table != "episodes")
        for member in self.members:
            for first, stop in runs_within(member.chosen.lengths, max(1, budget // max(row, 1))):
                yield member.read(first, stop)
