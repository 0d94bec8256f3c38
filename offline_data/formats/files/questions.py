"""Questions about files that only their user can answer, and the answers by name.

A question is a `MappingQuestionError`: its `name`, the sentence and the choices are shown by the
command line, `Inspection` and the error of an incomplete mapping alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from offline_data.base.errors import OfflineDataError, UsageError
from offline_data.base.ids import did_you_mean
from offline_data.base.plurals import join_names, plural
from offline_data.formats.files.mapping import MappingQuestionError
from offline_data.formats.files.rows import order_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from offline_data.formats.files.mapping import FileMapping
    from offline_data.raw.arrays import Arrays

Answer: TypeAlias = "str | Sequence[str] | None"
"""A value, or one or several arrays of a leaf; None leaves an optional question open."""
LEAVES = ("observation", "action")
"""Leaves whose arrays are requested, if no name tells them; an answer may be several columns."""
_FILE_IS_EPISODE = "episodes"
_MOST = 1 << 24
"""Rows of a column up to which it is read to see whether it numbers episodes."""


class Answers:
    """Answers by the names of questions."""

    def __init__(self, given: Mapping[str, Answer]) -> None:
        self._given = given
        self._asked: dict[str, MappingQuestionError] = {}

    def values_for(self, question: MappingQuestionError) -> tuple[str, ...]:
        """Return the choices that answer a question; empty without an answer, or with a wrong one."""
        self._asked[question.name] = question
        value = self._given.get(question.name) or ()
        values = (value,) if isinstance(value, str) else tuple(value)
        fits = len(values) == 1 or question.several
        return values if fits and all(one in question.choices for one in values) else ()

    def settle(self, question: MappingQuestionError, mapping: FileMapping) -> FileMapping | None:
        """Return the mapping with the answer to a question; None if it is open."""
        values = self.values_for(question)
        if values:
            return question.answered(mapping, values[0])
        skipped = question.optional and self._given.get(question.name, question) is None
        return mapping if skipped else None

    def check(self, *, whole: bool) -> None:
        """Raise `UsageError` for an answer that is not a choice, or to no question if that was the `whole` list."""
        for name, value in self._given.items():
            question = self._asked.get(name)
            if question is None and not whole:
                continue
            if question is None:
                asked = f"; the questions are {', '.join(self._asked)}" if self._asked else ""
                raise UsageError(
                    f"There is no question {name!r} about these files{asked}",
                    hint=did_you_mean(name, self._asked),
                )
            optional = question.optional and value is None
            if not optional and not self.values_for(question):
                choices = join_names(map(repr, question.choices), 20)
                raise UsageError(
                    f"{name} is {value!r}; expected one of {choices}",
                    hint=did_you_mean(str(value), question.choices),
                )


def ask_for_leaf(leaf: str, arrays: Arrays, roles: Mapping[str, str]) -> list[MappingQuestionError]:
    """Return the question which arrays are a leaf, if there are arrays of numbers without a meaning."""
    choices = {
        name: f"{column.dtype} {list(column.shape)}"
        for name, column in arrays.columns.items()
        if roles[name] in {"", "info", "time"}
        and column.shape
        and not column.problem
        and column.dtype.kind in "biuf"
    }
    why = f"{arrays.path.name}: no name tells which array is the {leaf}"
    return [MappingQuestionError(f"leaves.{leaf}", why, choices)] if choices else []


def ask_for_ends(arrays: Arrays, used: Collection[str], rows: int) -> MappingQuestionError | None:
    """Return the question which array says where episodes end, or whether the file is one episode.

    None if no array of the `rows` rows does: the file then is one episode, or needs another mapping.
    """
    found = {
        name: ending
        for name, column in arrays.columns.items()
        if name not in used and not column.problem and column.dtype.kind in "biuO"
        if column.shape in {(rows,), (rows, 1)} and 1 < rows <= _MOST
        if (ending := _ending_of(arrays, name)) is not None
    }
    if not found:
        return None
    found = dict(sorted(found.items(), key=lambda item: item[1].field == "done"))
    choices = {name: ending.meaning for name, ending in found.items()}
    likely = [name for name, ending in found.items() if ending.likely]
    numbers = [name for name in likely if found[name].field == "episode"]
    places = {name: f"ends.{ending.field}" for name, ending in found.items()}
    if _FILE_IS_EPISODE not in found:
        choices[_FILE_IS_EPISODE], places[_FILE_IS_EPISODE] = "the file is one episode", "parts"
    why = f"{arrays.path.name}: it is not known where episodes end"
    default = next((some[0] for some in (numbers, likely) if len(some) == 1), None)
    return MappingQuestionError("ends.episode", why, choices, places, default)


class _Ending(NamedTuple):
    """An array that may say where episodes end."""

    field: str
    """Of `Ends`: `episode` or `done`."""
    meaning: str
    likely: bool


def _ending_of(arrays: Arrays, name: str) -> _Ending | None:
    try:
        values = arrays.read(name).reshape(-1)
    except OfflineDataError:
        return None
    if _are_flags(values):
        count = plural((values != 0).sum(), "episode")
        return _Ending("done", f"flags of last rows: {count}", bool(values[-1]))
    lengths = _lengths_of_runs(values)
    if lengths is None:
        return None
    least, most = int(lengths.min()), int(lengths.max())
    span = f"{least}" if least == most else f"{least} to {most}"
    meaning = f"number of the episode: {len(lengths):,} of {span} rows"
    return _Ending("episode", meaning, _counts_up(values))


def _are_flags(values: NDArray[Any]) -> bool:
    """Return True for 0 and 1, of which no two 1 follow each other."""
    if values.dtype.kind not in "biu" or not ((values == 0) | (values == 1)).all():
        return False
    marked = values != 0
    return bool(marked.any() and not (marked[1:] & marked[:-1]).any())


def _lengths_of_runs(values: NDArray[Any]) -> NDArray[np.int64] | None:
    """Return the rows of each number, if there are several, in one run each, of two rows or more on average."""
    begins = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    if values.dtype.kind == "b" or not 1 < len(begins) <= len(values) // 2:
        return None
    return None if order_of(values) is not None else np.diff(begins, append=len(values))


def _counts_up(values: NDArray[Any]) -> bool:
    """Return True for whole numbers such as 0, 0, 1, 2, 2: each equal to the last, or one more."""
    return values.dtype.kind in "iu" and bool(
        np.isin(np.diff(values.astype(np.int64)), (0, 1)).all()
    )
