"""One Minari dataset: divided into parts, each read into one batch."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes import Dropped, EpisodeBatch
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.errors import FormatError
from offline_data.plurals import plural
from offline_data.sources.base import Part, RandomAccess
from offline_data.sources.minari.leaves import DescribedEpisode, LeafPlan, make_plan, nothing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.sources.base import SourceInfo
    from offline_data.sources.minari.leaves import (
        EpisodeFacts,
        EpisodeReader,
        EpisodeStorage,
        LeafReader,
        PlannedLeaf,
    )
    from offline_data.sources.minari.metadata import Declared

NOTE_ID = "Some episodes state another id than the name of their place has, which is kept."
NOTE_STEPS = "Some episodes state another total_steps than the steps they have."
NOTE_UNENDED = "Some episodes end without an end flag; their last step is marked truncated."
NOTE_NO_FINAL = (
    "Some episodes have no observation after the last action; the last one is repeated there."
)
NOTE_MISSING = "{leaf} is missing in some episodes; it is {nothing} there."
NOTE_NULLS = "{leaf} has empty values in the source; they are {nothing}."
NOTE_NO_FIRST = (
    "{leaf} has no row before the first action in some episodes, unlike in the first; "
    "it is {nothing} there."
)
NOTE_FIRST_LEFT = (
    "{leaf} has a row before the first action in some episodes, unlike in the first; "
    "that row is left out."
)
NOTE_SEED = "Seeds of 2**63 and more are kept as negative numbers, less 2**64."

_UNPLANNED = "Only some episodes have it, and not those looked at to decide on the leaves."
_LOOKED_AT = 16  # evenly spaced episodes from which leaves of infos are collected
_SPARE = 1.25  # spare capacity of a part for episodes longer than average


class MinariDataset(RandomAccess):
    """A dataset in any storage, with leaves declared by its spaces; opens files only in its methods."""

    def __init__(self, info: SourceInfo, storage: EpisodeStorage, declared: Declared) -> None:
        self.info = info
        self._storage = storage
        self._declared = declared

    def parts(self, budget: int) -> Sequence[Part]:
        """Divide all episodes into consecutive parts of about `budget` bytes.

        Sizes are estimated from the average episode. Raises `FormatError` if there is no episode, or
        fewer than the metadata say.
        """
        count = len(self._numbers)
        episode_bytes = self._average_length * self._plan.bytes_per_step
        run = max(1, int(budget / max(1.0, episode_bytes)))
        return [Part(first, min(first + run, count)) for first in range(0, count, run)]

    def read_part(self, part: Part) -> EpisodeBatch:
        """Read the episodes of one part.

        Episode columns are `id` (int64), `seed` (int64, -1: none in the source), `options` (text:
        JSON of the reset options, or None) and, if recorders added their own metadata, `metadata`
        (text: JSON).
        """
        numbers = self._numbers[part.first : part.stop]
        capacity = int(len(numbers) * (self._average_length * _SPARE + 1)) + 1
        batch = _BatchBuilder(self._plan, capacity)
        with self._storage.episodes(numbers) as episodes:
            for episode in episodes:
                batch.add(episode)
        return batch.finish()

    @cached_property
    def _numbers(self) -> Sequence[int]:
        numbers = self._storage.numbers()
        expected = self.info.episodes or 1
        if len(numbers) < expected:
            raise FormatError(
                f"{self._storage.where} has {plural(len(numbers), 'episode')}; expected {expected}",
                hint="fetch or copy it again; a flat file (D4RL's) is read with --from d4rl",
            )
        return numbers

    @cached_property
    def _sample(self) -> tuple[tuple[DescribedEpisode, ...], bool, tuple[str, ...]]:
        """Some episodes, whether one has metadata of its recorder, and notes on wrong metadata."""
        step = max(1, -(-len(self._numbers) // _LOOKED_AT))
        some = sorted({*self._numbers[::step], self._numbers[-1]})
        described, noted, notes = [], False, dict[str, None]()
        with self._storage.episodes(some) as episodes:
            for number, episode in zip(some, episodes, strict=True):
                leaves = tuple(episode.describe())
                groups = episode.groups({leaf.place for leaf in leaves})
                described.append(DescribedEpisode(episode.where, leaves, groups))
                noted = noted or episode.facts().metadata is not None
                stated_id, stated_steps = episode.stated()
                if stated_id is not None and stated_id != number:
                    notes[NOTE_ID] = None
                if stated_steps is not None and stated_steps != described[-1].steps:
                    notes[NOTE_STEPS] = None
        return tuple(described), noted, tuple(notes)

    @cached_property
    def _plan(self) -> LeafPlan:
        episodes, noted, notes = self._sample
        plan = make_plan(episodes, self._declared, metadata=noted)
        return replace(plan, notes=(*plan.notes, *notes))

    @cached_property
    def _average_length(self) -> float:
        """Average number of steps of an episode, from the metadata if plausible, else as sampled."""
        lengths = [episode.steps for episode in self._sample[0]]
        seen = sum(lengths) / len(lengths)
        stated = (self.info.transitions or 0) / len(self._numbers)
        return stated if seen / 4 <= stated <= 2 * max(lengths) else seen


class _GrowingColumn:
    """A leaf of a batch under construction; readers write directly into its rows."""

    def __init__(self, leaf: PlannedLeaf, capacity: int) -> None:
        self._buffer: NDArray[Any] = np.zeros((capacity, *leaf.shape), leaf.dtype)
        self._filled = 0

    def extend(self, rows: int) -> NDArray[Any]:
        """Return the next `rows` rows for the caller to write."""
        begin, self._filled = self._filled, self._filled + rows
        if self._filled > len(self._buffer):
            room = (max(self._filled, len(self._buffer) * 3 // 2), *self._buffer.shape[1:])
            larger = np.zeros(room, self._buffer.dtype)
            larger[:begin] = self._buffer[:begin]
            self._buffer = larger
        return self._buffer[begin : self._filled]

    @property
    def values(self) -> NDArray[Any]:
        return self._buffer[: self._filled]


class _BatchBuilder:
    """A batch under construction: counts rows, applies rules, and records every loss."""

    def __init__(self, plan: LeafPlan, capacity: int) -> None:
        self._plan = plan
        self._columns = {leaf.key: _GrowingColumn(leaf, capacity) for leaf in plan.leaves}
        self._lengths: list[int] = []
        self._final: list[bool] = []
        self._facts: list[EpisodeFacts] = []
        self._notes: dict[str, None] = dict.fromkeys(plan.notes)
        self._dropped: set[Dropped] = set(plan.dropped)

    def add(self, episode: EpisodeReader) -> None:
        """Append one episode; raises `FormatError` if a leaf does not match the plan."""
        plan = self._plan
        steps = self._add_rewards(episode)
        for leaf in plan.steps:
            out = self._columns[leaf.key].extend(steps)
            if not episode.read_if_fits(leaf, out):
                reader = _open_leaf(episode, leaf)
                _check_rows(episode, leaf, reader.shape, steps)
                self._read(reader, leaf, out)
        self._final.append(self._add_observations(episode, steps))
        missing = [leaf for leaf in plan.infos if not self._add_info(episode, leaf, steps)]
        if missing or any(episode.members(group) != n for group, n in plan.members.items()):
            self._drop_unplanned(episode)
        self._lengths.append(steps)
        facts = episode.facts()
        self._facts.append(facts)
        self._notes.update(dict.fromkeys(facts.notes))
        if facts.seed >= 2**63:
            self._notes[NOTE_SEED] = None
        if facts.metadata is not None and not plan.metadata:
            self._dropped.add(Dropped("metadata of episodes", _UNPLANNED))

    def _add_rewards(self, episode: EpisodeReader) -> int:
        """Append the rewards; returns the number of steps."""
        leaf = self._plan.reward
        column, rewards = self._columns[leaf.key], episode.read_few(leaf)
        if rewards is not None and len(rewards):
            column.extend(len(rewards))[...] = rewards
            return len(rewards)
        reader = _open_leaf(episode, leaf)
        steps = reader.shape[0] if reader.shape else 0
        if steps < 1:
            raise FormatError(f"{episode.where} has no step")
        self._read(reader, leaf, column.extend(steps))
        return steps

    def _read(self, reader: LeafReader, leaf: PlannedLeaf, out: NDArray[Any]) -> None:
        reader.read(out)
        if reader.has_nulls:
            self._note(NOTE_NULLS, leaf)

    def _note(self, text: str, leaf: PlannedLeaf) -> None:
        self._notes[text.format(leaf=leaf.name, nothing=nothing(leaf.dtype))] = None

    def _add_observations(self, episode: EpisodeReader, steps: int) -> bool:
        """Append the observations; returns whether the one after the last action exists.

        The number of rows is that of the first leaf (`T + 1`, or `T`), and must be equal for all.
        """
        rows: int | None = None
        for leaf in self._plan.observations:
            out = self._columns[leaf.key].extend(steps + 1)
            if rows != steps and episode.read_if_fits(leaf, out):
                rows = steps + 1
                continue
            reader = _open_leaf(episode, leaf)
            if rows is None:
                rows = steps if reader.shape[:1] == (steps,) else steps + 1
            _check_rows(episode, leaf, reader.shape, rows)
            self._read(reader, leaf, out[:rows])
            out[rows:] = out[rows - 1]
        if rows == steps:
            self._notes[NOTE_NO_FINAL] = None
        return rows != steps

    def _add_info(self, episode: EpisodeReader, leaf: PlannedLeaf, steps: int) -> bool:
        """Append one leaf of the infos; returns whether the episode has it.

        ```
        the first episode has   this one has   result
        T + 1 rows              T + 1          kept
        T + 1                   T              infos of steps only: row 0 is filled
        T                       T              kept
        T                       T + 1          row 0, before any action, is dropped
        ```
        """
        out = self._columns[leaf.key].extend(steps if leaf.per_action else steps + 1)
        if episode.read_if_fits(leaf, out):
            return True
        reader = episode.open(leaf)
        if reader is None or reader.shape[:1] in {(), (0,)}:
            out[...] = nothing(leaf.dtype)
            self._note(NOTE_MISSING, leaf)
            return False
        rows = reader.shape[0]
        if rows == len(out):
            self._read(reader, leaf, out)
        elif rows == steps:
            out[0] = nothing(leaf.dtype)
            self._read(reader, leaf, out[1:])
            self._note(NOTE_NO_FIRST, leaf)
        elif rows == steps + 1:
            all_rows = np.zeros((steps + 1, *leaf.shape), leaf.dtype)
            self._read(reader, leaf, all_rows)
            out[...] = all_rows[1:]
            self._note(NOTE_FIRST_LEFT, leaf)
        else:
            _check_rows(episode, leaf, reader.shape, len(out))
        return True

    def _drop_unplanned(self, episode: EpisodeReader) -> None:
        known = {leaf.place for leaf in self._plan.leaves}
        listed = {dropped.key for dropped in self._dropped}
        names = ("/".join(x.place) for x in episode.describe() if x.place not in known)
        self._dropped.update(Dropped(name, _UNPLANNED) for name in names if name not in listed)

    def finish(self) -> EpisodeBatch:
        lengths = np.array(self._lengths, np.int64)
        values = {key: column.values for key, column in self._columns.items()}
        for key in (REWARD, TERMINATED, TRUNCATED):
            values[key] = values[key].reshape(-1, 1)
        last = np.cumsum(lengths) - 1
        unended = ~(values[TERMINATED][last] | values[TRUNCATED][last])
        if unended.any():
            values[TRUNCATED][last] |= unended
            self._notes[NOTE_UNENDED] = None
        per_action = {leaf.key for leaf in self._plan.leaves if leaf.per_action}
        return EpisodeBatch(
            lengths=lengths,
            steps={key: column for key, column in values.items() if key in per_action},
            observations={key: column for key, column in values.items() if key not in per_action},
            final_observation=np.array(self._final, bool),
            episodes=dict(self._episode_columns()),
            dropped=tuple(sorted(self._dropped)),
            notes=tuple(self._notes),
        )

    def _episode_columns(self) -> Iterator[tuple[Key, NDArray[Any]]]:
        seeds = [fact.seed - 2**64 if fact.seed >= 2**63 else fact.seed for fact in self._facts]
        yield ("id",), np.array([fact.id for fact in self._facts], np.int64)
        yield ("seed",), np.array(seeds, np.int64)
        yield ("options",), np.array([fact.options for fact in self._facts], object)
        if self._plan.metadata:
            yield ("metadata",), np.array([fact.metadata for fact in self._facts], object)


def _open_leaf(episode: EpisodeReader, leaf: PlannedLeaf) -> LeafReader:
    reader = episode.open(leaf)
    if reader is None:
        raise FormatError(f"{episode.where} has no {leaf.name!r}, unlike the first episode")
    return reader


def _check_rows(
    episode: EpisodeReader, leaf: PlannedLeaf, found: tuple[int, ...], expected: int
) -> None:
    rows = found[0] if found else "no"
    if rows != expected:
        raise FormatError(
            f"{episode.where} has {rows} rows in {leaf.name!r} of shape {list(found)}; "
            f"expected {expected} of shape {[expected, *leaf.shape]}"
        )
