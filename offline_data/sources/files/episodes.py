"""Episodes of arrays, as a mapping says; read in blocks of whole episodes.

```
final_observation       actions and flags      observations           final
missing                 a0  a1  a2             s0  s1  s2             not known: s2 again
next_array              a0  a1  a2             s0  s1  s2             s3 of next/observation
last_row                a0  a1  a2  (a3)       s0  s1  s2  s3         a3 leads nowhere, and is left out
extra_row               a0  a1  a2             s0  s1  s2  s3
rewards of the row before, if there is a row for each observation:  (r0) r1  r2  r3
```

Arrays have a row for each step or, in the last two forms, for each state, of which an episode has one more.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes import Dropped, EpisodeBatch
from offline_data.episodes.cut import lengths_of, runs_within, with_final_rows
from offline_data.episodes.fields import TERMINATED, TRUNCATED, Key, join_key, next_of, split_key
from offline_data.episodes.joining import concatenate, join_episodes
from offline_data.errors import FormatError, UsageError
from offline_data.ids import did_you_mean
from offline_data.plurals import plural
from offline_data.readers.arrays import open_arrays
from offline_data.readers.flat_hdf5 import differing_rows
from offline_data.sources.base import PART_BYTES, RawDataset, Shard, SourceInfo
from offline_data.sources.files.mapping import MappingQuestionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.readers.arrays import Arrays, Block, NamedArray
    from offline_data.sources.files.mapping import FileMapping, Final

JUMPS = (
    "In some rows next/observation is not the observation of the row after: episodes end there, as truncated "
    "(--keep-episodes keeps them whole, and stores both)."
)
NOTES = {
    "missing": "The observation after the last action of an episode is not in the files.",
    "next_array": "The final observation of every episode is that of next/observation.",
    "last_row": "The last row of an episode is its final observation; its action is left out.",
    "extra_row": "Episodes have an observation more than actions: the final one.",
}
OTHERWISE = "Episodes whose last row has neither flag are {}."
_FINAL = {
    "missing": "not in the files: every row is a step",
    "last_row": "the last row of an episode, whose action is not used",
}
_OF = {
    "this_row": "of the action in this row",
    "row_before": "of the action in the row before",
}
_KINDS = {
    "terminated": "the task ended: no value comes after",
    "truncated": "a limit of time, or the end of the recording",
}
_ROWS = {
    "steps": "a row is a step",
    "episodes": "a row is an episode, padded to the longest one: [E, T, …]",
}


@dataclass(frozen=True)
class MappedEpisodes(RawDataset):
    """The episodes of a file or folder."""

    path: Path
    mapping: FileMapping
    info: SourceInfo
    keep_episodes: bool = False
    skip_bad: bool = False

    def shards(self) -> Sequence[Shard]:
        """Return the only shard."""
        return (Shard("all episodes"),)

    def describe(self) -> MappedEpisodes:
        """Return the same with notes and counts; raises `MappingQuestionError`, `UsageError`, `FormatError`."""
        with open_arrays(self.path) as arrays:
            units = find_units(arrays, self.mapping.each)
            if not units:
                raise FormatError(f"{self.path} has no groups or files {self.mapping.each}")
            with open_unit(arrays, units[0]) as unit:
                first = Layout(unit, self.mapping)
                used = {name for name, _ in first.names} | {*self.mapping.episodes.values()}
                used |= {*self.mapping.ends.arrays.values()}
                left = [
                    Dropped(
                        name, f"It {column.problem}." if column.problem else "It is not mapped."
                    )
                    for name, column in unit.columns.items()
                    if name not in used
                ]
        notes = [NOTES[first.final]]
        if self.mapping.ends.otherwise:
            notes.append(OTHERWISE.format(self.mapping.ends.otherwise))
        info = replace(self.info, notes=(*self.info.notes, *notes), dropped=tuple(left))
        if self.mapping.each is None:
            info = replace(info, episodes=len(first.lengths), transitions=int(first.lengths.sum()))
            if "next/observation" in map(join_key, self.mapping.keys):
                info = replace(info, episodes=None)  # they may be cut
        return replace(self, info=info)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 - there is only one
        """Read the episodes in order, some megabytes at a time; raises `FormatError`."""
        with open_arrays(self.path) as arrays:
            if self.mapping.each is None:
                yield from Layout(arrays, self.mapping).read(keep=self.keep_episodes)
                return
            units = find_units(arrays, self.mapping.each)
            readings: Iterator[tuple[str, Callable[[], EpisodeBatch]]] = (
                (f"{self.path}, {unit}", partial(self._read_unit, arrays, unit)) for unit in units
            )
            yield from join_episodes(readings, skip_bad=self.skip_bad)

    def _read_unit(self, arrays: Arrays, unit: str) -> EpisodeBatch:
        try:
            with open_unit(arrays, unit) as opened:
                return concatenate(list(Layout(opened, self.mapping).read(keep=self.keep_episodes)))
        except UsageError as error:  # the mapping fits the first episode
            raise FormatError(error.message, hint=error.shell_hint) from error


def find_units(arrays: Arrays, each: str | None) -> list[str]:
    """Return the groups, or files of a folder, that a pattern names, in natural order; [""]: all is one."""
    if each is None:
        return [""]
    parent, _, last = each.rpartition("/")
    start = f"{parent}/" if parent else ""
    return [start + name for name in arrays.groups(parent) if fnmatchcase(name, last)]


@contextmanager
def open_unit(arrays: Arrays, unit: str) -> Iterator[Arrays]:
    """Open a unit of `find_units`."""
    if not unit:
        yield arrays
        return
    with arrays.below(unit) as opened:
        yield opened


class Layout:
    """Places of the episodes in opened arrays.

    Raises `UsageError` where the mapping does not fit the arrays, `MappingQuestionError` where it does not say
    enough, and `FormatError` for values that are not what they should be.

    Attributes:
        final: Place of the final observation.
        lengths: `[E]` steps of each episode.
        names: Arrays to read, each with its place in the mapping for messages.
    """

    def __init__(self, arrays: Arrays, mapping: FileMapping) -> None:
        self.arrays, self.mapping = arrays, mapping
        self.keys, flags = mapping.keys, mapping.ends.flags
        listed = (leaf for leaf, names in mapping.leaves.items() if not isinstance(names, str))
        self._stacked = set(map(split_key, listed))
        self.names = [(n, f"leaves.{join_key(key)}") for key in self.keys for n in self.keys[key]]
        self.names += [(name, f"ends.{field}") for field, name in flags.items()]
        self._columns = {name: self._column(name, place) for name, place in self.names}
        self._check_numbers()
        self.padded = self._is_padded()
        self._acts = self._width("action", lambda key: key[0] == "action")
        self._seen = self._width("observation", lambda key: key[0] == "observation")
        self.final = self._find_final()
        flagged = {self._rows_of(name, f"ends.{field}") for field, name in flags.items()}
        self._own_ends = mapping.each is not None or any(vars(mapping.ends)[n] for n in _CUTS)
        self.lengths = self._find_lengths()
        self._check_rows()
        self._ask(flagged)

    # ---- what the arrays are ---------------------------------------------------------------------

    def _column(self, name: str, place: str) -> NamedArray:
        column = self.arrays.columns.get(name)
        if column is None:
            raise UsageError(
                f"The mapping's {place} is {name!r}; {self.arrays.path} has no such array",
                hint=did_you_mean(name, self.arrays.columns)
                or f"it has {', '.join(list(self.arrays.columns)[:12]) or 'none'}",
            )
        if column.problem:
            raise FormatError(
                f"The mapping's {place}: {name!r} of {self.arrays.path} {column.problem}"
            )
        return column

    def _check_numbers(self) -> None:
        for key, names in self.keys.items():
            for name in names if key[0] in {"action", "next"} else ():
                if self._columns[name].dtype == object:
                    raise FormatError(
                        f"The mapping's leaves.{join_key(key)}: {name!r} of {self.arrays.path} is text, "
                        "expected numbers"
                    )

    def _is_padded(self) -> bool:
        rows, each = self.mapping.rows, self.mapping.each
        shapes = [self._columns[name].shape for name, _ in self.names]
        (act, *_) = self.keys[next(key for key in self.keys if key[0] == "action")]
        shape = self._columns[act].shape
        padded = all(len(one) > 1 and one[0] == shape[0] and one[1] > 1 for one in shapes)
        if rows is None and each is None and padded and len(shape) > 2:
            where = f"{self.arrays.path.name}: {act!r} has shape {list(shape)}"
            raise MappingQuestionError("rows", f"{where}; it is not known what a row is", _ROWS)
        least = 2 if rows == "episodes" else 1
        for (name, place), one in zip(self.names, shapes, strict=True):
            if len(one) < least:
                raise UsageError(
                    f"The mapping's {place}: {name!r} has shape {list(one)}, expected "
                    f"{'[E, T, …]' if least == 2 else 'a row for each step'}"
                )
        return rows == "episodes"

    def _size(self, name: str) -> int:
        """Return the number of rows of an array, or of an episode in it."""
        return self.arrays.columns[name].shape[int(self.padded)]

    def _width(self, what: str, wanted: Callable[[Key], bool]) -> int:
        sizes = {
            name: self._size(name) for key in self.keys if wanted(key) for name in self.keys[key]
        }
        if len(set(sizes.values())) > 1:
            said = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            raise UsageError(f"{self.arrays.path}: the arrays of {what} differ in rows: {said}")
        return next(iter(sizes.values()))

    def _find_final(self) -> Final:
        given, path = self.mapping.final_observation, self.arrays.path.name
        after = any(key[:2] == ("next", "observation") for key in self.keys)
        said = (
            f"{path} has {plural(self._acts, 'row')} of actions and {self._seen:,} of observations"
        )
        if self._seen > self._acts:
            if given not in {None, "extra_row"} or after:
                raise UsageError(
                    f"{said}; final_observation can only be extra_row, without a next array"
                )
            return "extra_row"
        if self._seen < self._acts or given == "extra_row":
            raise UsageError(f"{said}; expected as many, or one more observation in each episode")
        if after != (given == "next_array") and (given is not None):
            raise UsageError(
                f"The mapping's final_observation is {given!r}, and there is "
                f"{'a' if after else 'no'} leaf next/observation"
            )
        if after:
            return "next_array"
        if given is None:
            why = f"{said}: it is not known where the observation after the last action is"
            raise MappingQuestionError("final_observation", why, _FINAL)
        return given

    def _rows_of(self, name: str, place: str) -> bool:
        """Return True if an array has a row for each state; raises `UsageError` for other numbers."""
        size = self._size(name)
        if self.final == "extra_row" and size == self._seen:
            return True
        if size != self._acts:
            more = f", or {self._seen:,}" if self.final == "extra_row" else ""
            raise UsageError(
                f"The mapping's {place}: {name!r} has {plural(size, 'row')}; "
                f"expected {self._acts:,}{more} as the actions"
            )
        return self.final == "last_row"

    # ---- where episodes end ------------------------------------------------------------------------

    def _find_lengths(self) -> NDArray[np.int64]:
        ends, flags = self.mapping.ends, self.mapping.ends.flags
        if self.padded:
            rows, states = self._padded_lengths()
        elif ends.lengths or ends.offsets:
            name = str(ends.lengths or ends.offsets)
            rows = self._whole_numbers(name, "ends.lengths" if ends.lengths else "ends.offsets")
            if ends.offsets:  # also those that begin with 0
                rows = np.diff(rows) if rows[0] == 0 and len(rows) > 1 else np.diff(rows, prepend=0)
            states = self.final in {"last_row", "extra_row"} and int(rows.sum()) == self._seen
        elif ends.episode:
            numbers = self._one_column(ends.episode, "ends.episode")
            rows = lengths_of(np.append(numbers[1:] != numbers[:-1], True)[: len(numbers)])
            states = self._rows_of(ends.episode, "ends.episode")
        elif self.mapping.each is not None:
            rows, states = np.array([self._acts]), self.final == "last_row"
        elif flags:
            marks, states = self._read_marks()
            rows = lengths_of(marks)
        else:
            raise self._no_ends()
        lengths = rows - int(states)
        if len(lengths) and lengths.min() < 1:
            worst = int(lengths.argmin())
            has = plural(max(0, int(rows[worst])), "row")
            raise FormatError(f"{self.arrays.path}: episode {worst} has {has}, too few for a step")
        return lengths.astype(np.int64)

    def _no_ends(self) -> UsageError:
        one_a_row = [
            name
            for name, column in self.arrays.columns.items()
            if not column.problem and column.shape in {(self._acts,), (self._acts, 1)}
        ]
        names = ", ".join(one_a_row[:12]) or "none"
        return UsageError(
            f"The mapping does not say where the episodes of {self.arrays.path} end",
            hint='add a line: ends.done = "NAME" (or terminated, truncated: flags), ends.episode = "NAME" '
            "(number of the episode), ends.lengths or ends.offsets; or each, the groups or files that are "
            f"an episode. Arrays of one value a row: {names}",
        )

    def _padded_lengths(self) -> tuple[NDArray[np.int64], bool]:
        ends, flags = self.mapping.ends, self.mapping.ends.flags
        for place in ("episode", "offsets"):
            if getattr(ends, place):
                raise UsageError(
                    f"The mapping's ends.{place} is for rows of steps, not of episodes"
                )
        count = self._columns[self.names[0][0]].shape[0]
        if ends.lengths:
            rows = self._whole_numbers(ends.lengths, "ends.lengths")
            if len(rows) != count:
                raise UsageError(
                    f"The mapping's ends.lengths: {ends.lengths!r} has {plural(len(rows), 'row')}, expected {count:,}"
                )
            return rows, int(rows.max()) > self._acts or self.final == "last_row"
        rows = np.full(count, self._acts)
        if not flags:
            return rows, self.final == "last_row"
        marks, states = self._read_marks()
        return np.where(marks.any(axis=1), marks.argmax(axis=1) + 1, marks.shape[1]), states

    def _read_marks(self) -> tuple[NDArray[np.bool_], bool]:
        """Return the rows that are marked as last ones, and whether there is one for each state."""
        flags, axes = self.mapping.ends.flags, 1 + int(self.padded)
        flags = {"done": flags["done"]} if "done" in flags else flags
        found = [self._flags(self.arrays.read(n), axes, field) for field, n in flags.items()]
        if len({one.shape for one in found}) > 1:
            raise UsageError(f"The arrays of ends differ in rows: {', '.join(flags.values())}")
        return np.logical_or.reduce(found), self._rows_of(next(iter(flags.values())), "ends")

    def _whole_numbers(self, name: str, place: str) -> NDArray[np.int64]:
        values = self._one_column(name, place)
        if values.dtype.kind not in "iu" or not len(values) or int(values.max()) > self._seen:
            found = f"{values.dtype} up to {values.max()}" if len(values) else "empty"
            raise UsageError(
                f"The mapping's {place}: {name!r} is {found}, expected whole numbers up to {self._seen:,}"
            )
        return values.astype(np.int64)

    def _one_column(self, name: str, place: str) -> NDArray[Any]:
        column = self._column(name, place)
        if prod(column.shape[1:]) != 1 or not column.shape:
            raise UsageError(
                f"The mapping's {place}: {name!r} has shape {list(column.shape)}, expected [N]"
            )
        return self.arrays.read(name).reshape(-1)

    def _flags(self, values: NDArray[Any], axes: int, field: str) -> NDArray[np.bool_]:
        """Return values as flags, without the axes of one row."""
        where = f"The mapping's ends.{field}: {self.mapping.ends.flags[field]!r}"
        if prod(values.shape[axes:]) != 1 or values.dtype.kind not in "biuf":
            raise UsageError(
                f"{where} has {values.dtype} {list(values.shape[axes:])} in a row, expected a flag"
            )
        if not ((values == 0) | (values == 1)).all():
            raise FormatError(
                f"{where} has values besides 0 and 1 in {self.arrays.path}, expected flags"
            )
        return np.asarray(values == 1).reshape(values.shape[:axes])

    # ---- what is not known -------------------------------------------------------------------------

    def _check_rows(self) -> None:
        count, steps = len(self.lengths), int(self.lengths.sum())
        expected = (steps + count * (self.final == "last_row"), steps + count)
        found = (self._acts, self._seen)
        wrong = found != (expected if self.final in {"last_row", "extra_row"} else (steps, steps))
        if not self.padded and wrong:
            raise UsageError(
                f"{self.arrays.path}: {plural(count, 'episode')} of {plural(steps, 'step')} need {plural(expected[0], 'row')}; there "
                f"are {found[0]:,} of actions and {found[1]:,} of observations",
                hint="ends, or final_observation, of the mapping is not right for these files",
            )

    def _ask(self, flagged: set[bool]) -> None:
        """Raise `MappingQuestionError` for what nothing says."""
        ends, path = self.mapping.ends, self.arrays.path.name
        results = [k for k in self.keys if k[0] == "next" and k[1:2] != ("observation",)]
        for key in self.keys:
            rows = {self._rows_of(name, f"leaves.{join_key(key)}") for name in self.keys[key]}
            if True in rows and key in results and self.mapping.reward_of is None:
                why = (
                    f"{path} has {join_key(key)} for each observation: of which action is not known"
                )
                raise MappingQuestionError("reward_of", why, _OF)
        if True in flagged and self._own_ends and ends.flags_of is None:
            why = f"{path} has flags for each observation: of which action is not known"
            raise MappingQuestionError("ends.flags_of", why, _OF)
        if ends.terminated is None and ends.otherwise is None:
            why = f"{path}: it is not known how episodes end"
            raise MappingQuestionError("ends.otherwise", why, _KINDS)

    # ---- reading -----------------------------------------------------------------------------------

    def read(self, *, keep: bool) -> Iterator[EpisodeBatch]:
        """Yield whole episodes, some megabytes at a time; raises `FormatError`."""
        names = list(dict.fromkeys(name for name, _ in self.names))
        states = {n: self._rows_of(n, place) for n, place in self.names}
        shapes = {name: self._columns[name].shape[1:] for name in names}
        size = sum(self._columns[n].dtype.itemsize * prod(shapes[n]) for n in names)
        sizes = np.full(len(self.lengths), 1) if self.padded else self.lengths
        runs = runs_within(sizes * max(1, size), PART_BYTES)
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        facts = self._facts()
        steps = [(int(starts[a]), int(starts[b])) for a, b in runs]
        groups = {
            False: steps,
            True: [(s + a, t + b) for (s, t), (a, b) in zip(steps, runs, strict=True)],
        }
        blocks: list[Iterator[Block]] = [
            self.arrays.blocks(some, runs if self.padded else groups[kind])
            for kind in (False, True)
            if (some := [name for name in names if states[name] == kind])
        ]
        for (first, stop), *found in zip(runs, *blocks, strict=True):
            columns = {name: values for block in found for name, values in block.items()}
            lengths = self.lengths[first:stop]
            if self.padded:
                for name, values in columns.items():
                    used = np.arange(values.shape[1]) < (lengths + states[name])[:, None]
                    columns[name] = values[used]
            part = {key: values[first:stop] for key, values in facts.items()}
            yield self._batch(columns, states, lengths, part, keep=keep)

    def _facts(self) -> dict[Key, NDArray[Any]]:
        found = {}
        for leaf, name in self.mapping.episodes.items():
            self._column(name, f"episodes.{leaf}")
            values = np.atleast_1d(self.arrays.read(name))
            if len(values) != len(self.lengths):
                raise UsageError(
                    f"The mapping's episodes.{leaf}: {name!r} has {plural(len(values), 'row')}, expected "
                    f"{len(self.lengths):,}, one for each episode"
                )
            found[split_key(leaf)] = values
        return found

    def _batch(
        self,
        columns: Block,
        states: Mapping[str, bool],
        lengths: NDArray[np.int64],
        facts: Mapping[Key, NDArray[Any]],
        *,
        keep: bool,
    ) -> EpisodeBatch:
        """Return the rows of whole episodes as a batch."""
        firsts = np.zeros(int(lengths.sum()) + len(lengths), bool)
        firsts[np.cumsum(lengths + 1) - lengths - 1] = True
        lasts = np.roll(firsts, -1)

        def of_steps(values: NDArray[Any], name: str, row: str | None) -> NDArray[Any]:
            return values[~(firsts if row == "row_before" else lasts)] if states[name] else values

        mapping = self.mapping
        steps: dict[Key, NDArray[Any]] = {}
        before: dict[Key, NDArray[Any]] = {}
        after: dict[Key, NDArray[Any]] = {}
        for key, names in self.keys.items():
            values = columns[names[0]]
            if key in self._stacked:
                values = self._side_by_side(key, names, columns)
            if key[0] in {"action", "next", "extra"}:
                row = mapping.reward_of if key[0] == "next" else mapping.action_of
                values = of_steps(values, names[0], row)
                if key[:2] == ("next", "observation"):
                    after[key[1:]] = values
                else:
                    steps[key] = values.reshape(len(values), -1) if key[0] == "next" else values
            elif key[0] == "observation" or states[names[0]]:
                before[key] = values
            else:
                steps[key] = values
        row = mapping.ends.flags_of if self._own_ends else "row_before"
        marks = {
            field: of_steps(self._flags(columns[name], 1, field), name, row)[:, None]
            for field, name in mapping.ends.flags.items()
        }
        ends = np.zeros((int(lengths.sum()), 1), bool)
        ends[np.cumsum(lengths) - 1] = True
        nothing = np.zeros_like(ends)
        terminated, truncated = (
            marks.get(kind, nothing).copy() for kind in ("terminated", "truncated")
        )
        unsaid = ends & ~terminated & ~truncated
        (terminated if mapping.ends.otherwise == "terminated" else truncated)[unsaid] = True
        warnings: tuple[str, ...] = ()
        if after:
            jumps = self._jumps(before, after)
            if keep:
                steps |= {**before, **{next_of(key): column for key, column in after.items()}}
                before = {}
            elif (jumps & ~ends).any():
                truncated |= jumps & ~ends & ~terminated
                pieces = lengths_of((ends | jumps)[:, 0])
                whole = np.searchsorted(np.cumsum(lengths), np.cumsum(pieces))
                facts = {key: values[whole] for key, values in facts.items()}
                lengths, warnings = pieces, (JUMPS,)
        last = np.cumsum(lengths) - 1
        if self.final in {"missing", "next_array"}:
            final = {key: column[last] for key, column in after.items()}
            before = {key: with_final_rows(c, lengths, final.get(key)) for key, c in before.items()}
        known = np.full(len(lengths), self.final != "missing")
        flags = {TERMINATED: terminated, TRUNCATED: truncated}
        return EpisodeBatch(lengths, {**steps, **flags}, before, known, facts, warnings=warnings)

    def _side_by_side(self, key: Key, names: Sequence[str], columns: Block) -> NDArray[Any]:
        found = [columns[name] for name in names]
        if any(one.ndim != 1 or one.dtype == object for one in found):
            raise UsageError(
                f"The mapping's leaves.{join_key(key)} has arrays that are not single numbers a row"
            )
        return np.stack(found, axis=1)

    def _jumps(self, before: Mapping[Key, Any], after: Mapping[Key, Any]) -> NDArray[np.bool_]:
        """Return which rows `[N, 1]` have a next observation that is not the one of the row after."""
        jumps = np.zeros((len(next(iter(after.values()))), 1), bool)
        for key in {k for k in before if k[0] == "observation"} | after.keys():
            one, other = before.get(key), after.get(key)
            if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
                raise UsageError(
                    f"{join_key(key)} and next/{join_key(key)} differ in dtype or shape, or one is not mapped"
                )
            text = one.dtype == object
            differ = (
                np.flatnonzero(other[:-1] != one[1:])
                if text
                else differing_rows(other[:-1], one[1:])
            )
            jumps[differ] = True
        return jumps


_CUTS = ("episode", "lengths", "offsets")
