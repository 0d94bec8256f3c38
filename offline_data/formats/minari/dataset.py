"""One Minari dataset: divided into parts, each read into one batch.

How a value gets from file to batch, one leaf of one episode at a time:

1. `make_plan` (leaves.py) has chosen key, form, dtype and shape of the leaf from a few episodes.
2. `read` of the storage's episode (hdf5.py, arrow.py) decodes all its values: numbers, text, pixels.
3. `_add_leaf` or `_add_info` checks their number against the steps of the episode.
4. `_append` converts them to the dtype of the plan, fills nulls, and copies them to the column.
5. `finish` shapes rewards and flags as `[n, 1]`, and sets the end flags.

Both storages have one way. That of HDF5 first tries `hdf5_tree.read_plain`, for unfiltered numbers of
the planned dtype: without it, short episodes take four times as long, without known headers a fifth
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.exact import exact
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.episode.notes import count_episodes, count_rows, join_notes
from offline_data.formats.base import Part, RandomAccess, SourceInfo
from offline_data.formats.minari.leaves import (
    DescribedEpisode,
    EpisodeFacts,
    EpisodeReader,
    EpisodeStorage,
    LeafPlan,
    PlannedLeaf,
    make_plan,
    nothing,
)
from offline_data.formats.minari.metadata import Declared

NOTE_ID = (
    "Some episodes have an `id` that differs from their group's name; the group's name is used."
)
NOTE_STEPS = "Some episodes state another total_steps than the steps they have."
NOTE_UNENDED = "no end flag is set; the last step is marked truncated."
NOTE_NO_FINAL = "there is no observation after the last action; the last one is repeated there."
NOTE_MISSING = "{leaf} is missing; it is {nothing} there."
NOTE_NULLS = "{leaf} is empty in the source; it is {nothing} there."
NOTE_NO_FIRST = (
    "{leaf} has no row before the first action, unlike in the first episode; it is {nothing} there."
)
NOTE_FIRST_LEFT = (
    "{leaf} has a row before the first action, unlike in the first episode; that row is left out."
)

_SKIP = "`download` and `convert` leave it out with --skip-bad-features"
_UNPLANNED = "Only some episodes have it, and not those examined to choose the features."
_EPISODE_COLUMNS = {"id": np.int64, "seed": np.int64, "options": object, "metadata": object}
_LOOKED_AT = 16  # evenly spaced episodes from which leaves of infos are collected
_SPARE = 1.25  # spare capacity of a part for episodes longer than average


class MinariDataset(RandomAccess):
    """A dataset in any storage, with leaves declared by its spaces; opens files only in its methods.

    `skip_features`: `Options.skip_bad_features`; all episodes are then read before the first part.
    """

    def __init__(
        self,
        info: SourceInfo,
        storage: EpisodeStorage,
        declared: Declared,
        *,
        skip_features: bool = False,
    ) -> None:
        self.info = info
        self._storage, self._declared, self._skip = storage, declared, skip_features

    def parts(self, budget: int) -> Sequence[Part]:
        """Divide all episodes into parts by their average size.

        Raises `FormatError` if there is no episode, or fewer than the metadata say.
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
        rows = int(len(numbers) * (self._average_length * _SPARE + 1)) + 1
        batch = _BatchBuilder(self._plan, rows)
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
    def _sample(self) -> tuple[list[DescribedEpisode], bool, dict[str, None]]:
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
                stated_id, stated_steps = episode.stated_counts()
                if stated_id is not None and stated_id != number:
                    notes[NOTE_ID] = None
                if stated_steps is not None and stated_steps != described[-1].steps:
                    notes[NOTE_STEPS] = None
        return described, noted, notes

    @cached_property
    def _plan(self) -> LeafPlan:
        episodes, noted, notes = self._sample
        plan = make_plan(episodes, self._declared, metadata=noted)
        bad = self._bad_infos(plan) if self._skip else {}
        return replace(
            plan,
            infos=tuple(leaf for leaf in plan.infos if leaf.name not in bad),
            dropped=(*plan.dropped, *(Dropped(name, reason) for name, reason in bad.items())),
            notes=(*plan.notes, *notes),
        )

    def _bad_infos(self, plan: LeafPlan) -> dict[str, str]:
        """Return the infos that some episode cannot be joined with, and the first reason of each."""
        bad: dict[str, str] = {}
        with self._storage.episodes(self._numbers) as episodes:
            for episode in episodes:
                some = replace(plan, infos=tuple(x for x in plan.infos if x.name not in bad))
                bad |= _BatchBuilder(some, 1).bad_infos(episode)
        where = self._storage.where
        return {name: said.replace(where, "").lstrip(" /") for name, said in bad.items()}

    @cached_property
    def _average_length(self) -> float:
        """Average number of steps of an episode, from the metadata if plausible, else as sampled."""
        lengths = [episode.steps for episode in self._sample[0]]
        seen = sum(lengths) / len(lengths)
        stated = (self.info.transitions or 0) / len(self._numbers)
        return stated if seen / 4 <= stated <= 2 * max(lengths) else seen


class _GrowingColumn:
    """A leaf of a batch under construction."""

    def __init__(self, leaf: PlannedLeaf, capacity: int) -> None:
        self._buffer: NDArray[Any] = np.zeros((capacity, *leaf.shape), leaf.dtype)
        self._filled = 0

    def append(self, values: NDArray[Any]) -> None:
        begin, self._filled = self._filled, self._filled + len(values)
        if self._filled > len(self._buffer):
            capacity = max(self._filled, len(self._buffer) * 3 // 2)
            larger = np.zeros((capacity, *self._buffer.shape[1:]), self._buffer.dtype)
            larger[:begin] = self._buffer[:begin]
            self._buffer = larger
        self._buffer[begin : self._filled] = values

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
        self._notes = list(plan.notes)
        self._dropped: set[Dropped] = set(plan.dropped)

    def add(self, episode: EpisodeReader) -> None:
        plan = self._plan
        steps = self._add_leaf(episode, plan.reward)
        if not steps:
            raise FormatError(f"{episode.where} has no step")
        for leaf in plan.steps:
            self._add_leaf(episode, leaf, steps)
        self._final.append(self._add_observations(episode, steps))
        try:
            missing = [leaf for leaf in plan.infos if not self._add_info(episode, leaf, steps)]
        except FormatError as error:
            raise FormatError(error.message, hint=error.shell_hint or _SKIP) from error
        if missing or any(episode.members(group) != n for group, n in plan.members.items()):
            self._drop_unplanned_leaves(episode)
        self._lengths.append(steps)
        facts = episode.facts()
        self._facts.append(facts)
        self._notes += facts.notes
        if facts.metadata is not None and not plan.metadata:
            self._dropped.add(Dropped("metadata of episodes", _UNPLANNED))

    def bad_infos(self, episode: EpisodeReader) -> dict[str, str]:
        """Add the infos of an episode only; returns why some cannot be, by name."""
        rewards, bad = episode.read(self._plan.reward), {}
        for leaf in self._plan.infos:
            try:
                self._add_info(episode, leaf, 0 if rewards is None else len(rewards))
            except FormatError as error:
                bad[leaf.name] = f"{error.message}."
        return bad

    def _add_leaf(self, episode: EpisodeReader, leaf: PlannedLeaf, *expected: int) -> int:
        """Append a leaf; returns its number of rows, one of those expected, if any are."""
        values = episode.read(leaf)
        if values is None:
            raise FormatError(f"{episode.where} has no {leaf.name!r}, unlike the first episode")
        if expected and len(values) not in expected:
            raise _rows_error(episode, leaf, values, expected[0])
        self._append(episode, leaf, values)
        return len(values)

    def _append(
        self, episode: EpisodeReader, leaf: PlannedLeaf, values: NDArray[Any], first: int = 0
    ) -> None:
        if values.dtype != leaf.dtype or values.shape[1:] != leaf.shape:
            values = _convert(values, leaf, episode.locate(leaf))
        nulls = episode.nulls(leaf)
        if nulls is not None:
            values = values.copy()
            values[nulls] = nothing(leaf.dtype)
            self._note(NOTE_NULLS, leaf, int(np.count_nonzero(nulls)))
        self._columns[leaf.key].append(values[first:])

    def _note(self, text: str, leaf: PlannedLeaf, rows: int | None = None) -> None:
        """Note a loss in some rows, or in this episode."""
        problem = text.format(leaf=leaf.name, nothing=nothing(leaf.dtype))
        self._notes.append(
            count_episodes(1, problem) if rows is None else count_rows(rows, problem)
        )

    def _add_observations(self, episode: EpisodeReader, steps: int) -> bool:
        """Append the observations, `T + 1` or `T` of all leaves; returns True if the last exists."""
        expected: tuple[int, ...] = (steps + 1, steps)
        for leaf in self._plan.observations:
            expected = (self._add_leaf(episode, leaf, *expected),)
            if expected == (steps,):
                column = self._columns[leaf.key]
                column.append(column.values[-1:])
        if expected == (steps,):
            self._notes.append(count_episodes(1, NOTE_NO_FINAL))
        return expected != (steps,)

    def _add_info(self, episode: EpisodeReader, leaf: PlannedLeaf, steps: int) -> bool:
        """Append one leaf of the infos; returns True if the episode has it.

        ```
        the first episode has   this one has   result
        T + 1 rows              T + 1          kept
        T + 1                   T              infos of steps only: row 0 is filled
        T                       T              kept
        T                       T + 1          row 0, before any action, is dropped
        ```
        """
        values, rows = episode.read(leaf), steps if leaf.per_action else steps + 1
        if values is None or not len(values):
            self._append_nothing(leaf, rows)
            self._note(NOTE_MISSING, leaf)
            return False
        if len(values) == rows:
            self._append(episode, leaf, values)
        elif len(values) == steps:
            self._append_nothing(leaf, 1)
            self._append(episode, leaf, values)
            self._note(NOTE_NO_FIRST, leaf)
        elif len(values) == steps + 1:
            self._append(episode, leaf, values, first=1)
            self._note(NOTE_FIRST_LEFT, leaf)
        else:
            raise _rows_error(episode, leaf, values, rows)
        return True

    def _append_nothing(self, leaf: PlannedLeaf, rows: int) -> None:
        empty = np.full((rows, *leaf.shape), nothing(leaf.dtype), leaf.dtype)
        self._columns[leaf.key].append(empty)

    def _drop_unplanned_leaves(self, episode: EpisodeReader) -> None:
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
            self._notes.append(count_episodes(int(unended.sum()), NOTE_UNENDED))
        per_action = {leaf.key for leaf in self._plan.leaves if leaf.per_action}
        return EpisodeBatch(
            lengths=lengths,
            steps={key: column for key, column in values.items() if key in per_action},
            observations={key: column for key, column in values.items() if key not in per_action},
            final_observation=np.array(self._final, bool),
            episodes={
                (name,): np.array([getattr(facts, name) for facts in self._facts], dtype)
                for name, dtype in _EPISODE_COLUMNS.items()
                if name != "metadata" or self._plan.metadata
            },
            dropped=tuple(sorted(self._dropped)),
            notes=join_notes(self._notes),
        )


def _rows_error(
    episode: EpisodeReader, leaf: PlannedLeaf, values: NDArray[Any], expected: int
) -> FormatError:
    return FormatError(
        f"{episode.where} has {plural(len(values), 'row')} in {leaf.name!r} of shape {list(values.shape)}; "
        f"expected {expected} of shape {[expected, *leaf.shape]}"
    )


def _convert(values: NDArray[Any], leaf: PlannedLeaf, where: str) -> NDArray[Any]:
    """Return values in the dtype of a leaf; raises `FormatError` if shape or dtype would lose data."""
    if values.shape[1:] != leaf.shape:
        raise FormatError(
            f"{where} has rows of shape {list(values.shape[1:])}; expected {list(leaf.shape)} "
            "as in the first episode"
        )
    if (converted := exact(values, leaf.dtype)) is not None:
        return converted
    raise FormatError(
        f"{where} is {values.dtype}, and its values do not fit {leaf.dtype}, "
        "which the first episode has"
    )
