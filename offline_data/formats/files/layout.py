"""Places of the episodes in arrays: rows of steps and states, and where episodes end.

```
rows of a part                 0    1    2    3    4    5
ends.episode                   7    7    7    9    9    9     ends where the number changes
lengths, offsets, cuts                   3              3     ends where they say
ends.done, or the other flags  .    .    X    .    .    .     ends at a flag
the part itself                                         X     always ends
```

A numbering decides where episodes end, else flags do; flags given together with a numbering only say why. The parts
of a mapping with `each` are one table only if it says so.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import FormatError, UsageError
from offline_data.base.ids import did_you_mean
from offline_data.base.json import shown
from offline_data.base.plurals import plural
from offline_data.episode.cut import lengths_of, runs_within
from offline_data.episode.fields import join_key, split_key
from offline_data.formats.base import PART_BYTES
from offline_data.formats.files.mapping import NUMBERINGS, MappingQuestionError
from offline_data.formats.files.rows import OrderedArrays, order_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from offline_data.episode.fields import Key
    from offline_data.formats.files.mapping import FileMapping, Final
    from offline_data.raw.arrays import Arrays, NamedArray

WHOSE = "The mapping's"
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
PARTS = {
    "episodes": "an episode begins with each part, and ends inside a part count",
    "table": "the rows of all parts are one table, which the ends divide",
}
"""Choices of `parts`, with their meaning."""
_WHOLE = {"episodes": "the file is one episode"}
_PADDING = {
    "zeros": "rows of zeros at the end of an episode are padding",
    "none": "every row is a step",
}


class Layout:
    """Places of the episodes in opened arrays.

    Raises `UsageError` where the mapping does not fit the arrays, `MappingQuestionError` where it does not say
    enough, and `FormatError` for values that are not what they should be.

    Attributes:
        arrays: The arrays, with the rows of an episode one after the other.
        final: Place of the final observation.
        lengths: `[E]` steps of each episode.
        whose: Whose mapping it is, for messages.
        flags_of_episodes: `[E]` flags by field, where they have one value for each episode.
        names: Arrays to read, each with its place in the mapping for messages.
        flags: Arrays of flags of rows by field; those of episodes are not among them.
        numbers: `[E]` names of episodes, where rows have them and they are not 0, 1, 2, … or 1, 2, …
        numbered: Whether `ends` has a numbering, which decides where episodes end.
    """

    numbers: NDArray[Any] | None = None

    def __init__(self, arrays: Arrays, mapping: FileMapping, whose: str = WHOSE) -> None:
        self.arrays, self.mapping, self.whose = arrays, mapping, whose
        self.numbered = any(vars(mapping.ends)[field] for field in NUMBERINGS)
        self.keys = mapping.keys
        self.flags = flags = {} if mapping.ends.flags_of == "episode" else mapping.ends.flags
        listed = (leaf for leaf, names in mapping.leaves.items() if not isinstance(names, str))
        self.stacked = set(map(split_key, listed))
        self.names = [(n, f"leaves.{join_key(key)}") for key in self.keys for n in self.keys[key]]
        self.names += [(name, f"ends.{field}") for field, name in flags.items()]
        self.described = {name: self.column(name, place) for name, place in self.names}
        self._check_numbers()
        self.padded = self._is_padded()
        self._acts = self._width("action", lambda key: key[0] == "action")
        self._seen = self._width("observation", lambda key: key[0] == "observation")
        self.final = self._find_final()
        flagged = {self.has_states(name, f"ends.{field}") for field, name in flags.items()}
        whole = mapping.each is not None and mapping.parts is None
        self.flags_end = not (self.numbered or whole)
        self.lengths = self._find_lengths()
        self._check_rows()
        self._ask(flagged)
        own = () if flags else mapping.ends.flags.items()
        read = {field: self.read_one_each(name, f"ends.{field}") for field, name in own}
        self.flags_of_episodes = {field: self.as_flags(read[field], 1, field) for field in read}

    # ---- what the arrays are ---------------------------------------------------------------------

    def column(self, name: str, place: str) -> NamedArray:
        column = self.arrays.columns.get(name)
        if column is None:
            raise UsageError(
                f"{self.whose} {place} is {name!r}; {self.arrays.path} has no such array",
                hint=did_you_mean(name, self.arrays.columns) or self._list_arrays(),
            )
        if column.problem:
            raise FormatError(
                f"{self.whose} {place}: {name!r} of {self.arrays.path} {column.problem}"
            )
        return column

    def read_one_each(self, name: str, place: str) -> NDArray[Any]:
        """Read an array of one value for each episode, `[E, …]`; of one episode, also a single value."""
        self.column(name, place)
        values = np.atleast_1d(self.arrays.read(name))
        if len(values) != len(self.lengths):
            raise UsageError(
                f"{self.whose} {place}: {name!r} has {plural(len(values), 'row')}, expected "
                f"{len(self.lengths):,}, one for each episode"
            )
        return values

    def _list_arrays(self) -> str:
        names = list(self.arrays.columns)[:12]
        return (
            f"it has {', '.join(names)}"
            if names
            else (
                "it has no arrays of its own; if its files or groups have, name them by a line such as "
                'each = "*.npz", or "data/demo_*" for groups'
            )
        )

    def _check_numbers(self) -> None:
        for key, names in self.keys.items():
            for name in names if key[0] in {"action", "next"} else ():
                if self.described[name].dtype == object:
                    raise FormatError(
                        f"{self.whose} leaves.{join_key(key)}: {name!r} of {self.arrays.path} is text, "
                        "expected numbers"
                    )

    def _is_padded(self) -> bool:
        rows, each = self.mapping.rows, self.mapping.each
        shapes = [self.described[name].shape for name, _ in self.names]
        (act, *_) = self.keys[next(key for key in self.keys if key[0] == "action")]
        shape = self.described[act].shape
        padded = all(len(one) > 1 and one[0] == shape[0] and one[1] > 1 for one in shapes)
        if rows is None and each is None and padded and len(shape) > 2:
            where = f"{self.arrays.path.name}: {act!r} has shape {list(shape)}"
            raise MappingQuestionError("rows", f"{where}; it is not known what a row is", _ROWS)
        least = 2 if rows == "episodes" else 1
        for (name, place), one in zip(self.names, shapes, strict=True):
            if len(one) < least:
                raise UsageError(
                    f"{self.whose} {place}: {name!r} has shape {list(one)}, expected "
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
                f"{self.whose} final_observation is {given!r}, and there is "
                f"{'a' if after else 'no'} feature next/observation"
            )
        if after:
            return "next_array"
        if given is None:
            why = f"{said}: it is not known where the observation after the last action is"
            raise MappingQuestionError("final_observation", why, _FINAL)
        return given

    def has_states(self, name: str, place: str) -> bool:
        """Return True if an array has a row for each state; raises `UsageError` for other numbers."""
        size = self._size(name)
        if self.final == "extra_row" and size == self._seen:
            return True
        if size != self._acts:
            more = f", or {self._seen:,}" if self.final == "extra_row" else ""
            raise UsageError(
                f"{self.whose} {place}: {name!r} has {plural(size, 'row')}; "
                f"expected {self._acts:,}{more} as the actions"
            )
        return self.final == "last_row"

    # ---- where episodes end ------------------------------------------------------------------------

    def _find_lengths(self) -> NDArray[np.int64]:
        rows, states = self._padded_lengths() if self.padded else self._rows_of_episodes()
        lengths = rows - int(states)
        if len(lengths) and lengths.min() < 1:
            worst = int(lengths.argmin())
            has = plural(max(0, int(rows[worst])), "row")
            raise FormatError(f"{self.arrays.path}: episode {worst} has {has}, too few for a step")
        return lengths.astype(np.int64)

    def _rows_of_episodes(self) -> tuple[NDArray[np.int64], bool]:
        """Return the rows `[E]` of each episode, and whether there is one for each state."""
        ends, part = self.mapping.ends, self.mapping.each is not None
        if ends.cuts:
            begins = np.empty(0, np.int64)
            if self.column(ends.cuts, "ends.cuts").shape != (
                0,
            ):  # of any dtype: numpy's is float64
                begins = self._whole_numbers(ends.cuts, "ends.cuts")
            return np.diff(begins, prepend=0, append=self._acts), self.final == "last_row"
        if ends.lengths or ends.offsets:
            name = str(ends.lengths or ends.offsets)
            rows = self._whole_numbers(name, "ends.lengths" if ends.lengths else "ends.offsets")
            if ends.offsets:  # also those that begin with 0
                rows = np.diff(rows) if rows[0] == 0 and len(rows) > 1 else np.diff(rows, prepend=0)
            states = self.final in {"last_row", "extra_row"} and int(rows.sum()) == self._seen
            return rows, states
        if ends.episode:
            last, states = (
                self._read_changes(ends.episode),
                self.has_states(ends.episode, "ends.episode"),
            )
        elif self.flags:
            last, states = self._read_marks()
        elif part or self.mapping.parts == "episodes":
            return np.array([self._acts]), self.final == "last_row"
        else:
            raise self._no_ends()
        if part and self.mapping.parts is None:
            self._check_part(last, states)
            return np.array([len(last)]), states
        return lengths_of(last), states

    def _read_changes(self, name: str) -> NDArray[np.bool_]:
        """Return the last row of each number, and set `arrays` to the order that they need."""
        numbers = self._one_column(name, "ends.episode")
        order = order_of(numbers)
        if order is not None and not self.mapping.interleaved:
            row = int(order[np.flatnonzero(np.diff(order) != 1)[0] + 1])
            raise UsageError(
                f"{self.whose} ends.episode: {name!r} of {self.arrays.path} is "
                f"{shown(numbers[row : row + 1].tolist()[0])} again in row {row}, after other numbers",
                hint="if rows of several environments alternate, add a line: interleaved = true",
            )
        if order is not None:
            self.arrays, numbers = OrderedArrays(self.arrays, order), numbers[order]
        changes = numbers[1:] != numbers[:-1]
        named = numbers[np.append(True, changes)]
        counted = named.dtype.kind in "iu" and np.array_equal(
            named - named[0], np.arange(len(named))
        )
        if not counted or named[0] not in {0, 1} or self.mapping.each is not None:
            self.numbers = named
        return np.append(changes, True)

    def _check_part(self, last: NDArray[np.bool_], states: bool) -> None:
        """Ask what a part is, if an episode ends before its last row."""
        within = len(last) - 1 - int(states)
        if not last[:within].any():
            return
        ends, row = self.mapping.ends, int(last.argmax())
        place, name = next(
            iter(({"episode": ends.episode} if ends.episode else self.flags).items())
        )
        why = (
            f"{self.arrays.path.name} is a part, and has an end in row {row} of {len(last):,} "
            f"(ends.{place}, {name!r})"
        )
        raise MappingQuestionError("parts", why, PARTS)

    def _no_ends(self) -> MappingQuestionError:
        one_a_row = [
            name
            for name, column in self.arrays.columns.items()
            if not column.problem and column.shape in {(self._acts,), (self._acts, 1)}
        ]
        names = ", ".join(one_a_row[:12]) or "none"
        why = (
            f"The mapping does not say where the episodes of {self.arrays.path} end: "
            'ends.done = "NAME" (or terminated, truncated: flags), ends.episode = "NAME" (number of the '
            "episode), ends.lengths, ends.offsets or ends.cuts; or each, the groups or files that are an episode. "
            f"Arrays of one value a row: {names}"
        )
        return MappingQuestionError("parts", why, _WHOLE)

    def _padded_lengths(self) -> tuple[NDArray[np.int64], bool]:
        ends = self.mapping.ends
        for place in ("episode", "offsets", "cuts"):
            if getattr(ends, place):
                raise UsageError(f"{self.whose} ends.{place} is for rows of steps, not of episodes")
        count = self.described[self.names[0][0]].shape[0]
        if ends.lengths:
            rows = self._lengths_or_mask(ends.lengths)
            if len(rows) != count:
                raise UsageError(
                    f"{self.whose} ends.lengths: {ends.lengths!r} has {plural(len(rows), 'row')}, expected {count:,}"
                )
            return rows, int(rows.max()) > self._acts or self.final == "last_row"
        if self.flags:
            marks, states = self._read_marks()
            return np.where(marks.any(axis=1), marks.argmax(axis=1) + 1, marks.shape[1]), states
        return self._acts - self._count_padding(count), self.final == "last_row"

    def _lengths_or_mask(self, name: str) -> NDArray[np.int64]:
        column = self.column(name, "ends.lengths")
        if column.dtype != bool or len(column.shape) < 2:
            return self._whole_numbers(name, "ends.lengths")
        mask = self.arrays.read(name).reshape(column.shape[0], -1)
        if (mask[:, 1:] & ~mask[:, :-1]).any() or mask.shape[1] not in {self._acts, self._seen}:
            raise UsageError(
                f"{self.whose} ends.lengths: {name!r} is a mask {list(mask.shape)}, expected "
                f"[{len(mask)}, {self._acts}] with the rows of an episode first"
            )
        return np.asarray(mask.sum(axis=1), np.int64)

    def _count_padding(self, count: int) -> NDArray[np.int64]:
        """Return how many rows of zeros or NaN, in all arrays, end each episode; asks if they count."""
        if self.mapping.padding == "none":
            return np.zeros(count, np.int64)
        found = np.full(count, self._acts)
        for name in dict.fromkeys(name for name, _ in self.names):
            column = self.described[name]
            size = max(1, column.dtype.itemsize * prod(column.shape[1:]))
            runs = runs_within(np.full(count, size), PART_BYTES)
            for (first, stop), block in zip(runs, self.arrays.blocks([name], runs), strict=True):
                used = block[name].reshape(stop - first, column.shape[1], -1)
                used = (used != 0) & (used == used)  # noqa: PLR0124 -- NaN differs from itself
                last = used.any(axis=2)[:, ::-1]
                empty = np.where(last.any(axis=1), last.argmax(axis=1), column.shape[1])
                found[first:stop] = np.minimum(found[first:stop], empty)
        if found.any() and self.mapping.padding is None:
            episode = int(found.argmax())
            why = (
                f"{self.arrays.path.name}: the last {plural(int(found[episode]), 'row')} of episode "
                f"{episode} are zeros in all arrays, and nothing says how long episodes are"
            )
            raise MappingQuestionError("padding", why, _PADDING)
        return found

    def _read_marks(self) -> tuple[NDArray[np.bool_], bool]:
        """Return the rows that are marked as last ones, and whether there is one for each state."""
        flags, axes = self.flags, 1 + int(self.padded)
        flags = {"done": flags["done"]} if "done" in flags else flags
        found = [self.as_flags(self.arrays.read(n), axes, field) for field, n in flags.items()]
        if len({one.shape for one in found}) > 1:
            raise UsageError(f"The arrays of ends differ in rows: {', '.join(flags.values())}")
        return np.logical_or.reduce(found), self.has_states(next(iter(flags.values())), "ends")

    def _whole_numbers(self, name: str, place: str) -> NDArray[np.int64]:
        values = self._one_column(name, place)
        if values.dtype.kind not in "iu" or not len(values) or int(values.max()) > self._seen:
            found = f"{values.dtype} up to {values.max()}" if len(values) else "empty"
            raise UsageError(
                f"{self.whose} {place}: {name!r} is {found}, expected whole numbers up to {self._seen:,}"
            )
        return values.astype(np.int64)

    def _one_column(self, name: str, place: str) -> NDArray[Any]:
        column = self.column(name, place)
        if prod(column.shape[1:]) != 1 or not column.shape:
            raise UsageError(
                f"{self.whose} {place}: {name!r} has shape {list(column.shape)}, expected [N]"
            )
        return self.arrays.read(name).reshape(-1)

    def as_flags(self, values: NDArray[Any], axes: int, field: str) -> NDArray[np.bool_]:
        """Return values as flags, without the axes of one row."""
        where = f"{self.whose} ends.{field}: {self.mapping.ends.flags[field]!r}"
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
            rows = {self.has_states(name, f"leaves.{join_key(key)}") for name in self.keys[key]}
            if True in rows and key in results and self.mapping.reward_of is None:
                why = (
                    f"{path} has {join_key(key)} for each observation: of which action is not known"
                )
                raise MappingQuestionError("reward_of", why, _OF)
        if True in flagged and not self.flags_end and ends.flags_of is None:
            why = f"{path} has flags for each observation: of which action is not known"
            raise MappingQuestionError("ends.flags_of", why, _OF)
        if ends.terminated is None and ends.otherwise is None:
            why = f"{path}: it is not known how episodes end"
            raise MappingQuestionError("ends.otherwise", why, _KINDS)
