"""Episodes of arrays, read in runs of whole ones: as a mapping says, or a published format.

```
final_observation       actions and flags      observations           final
missing                 a0  a1  a2             s0  s1  s2             not known: s2 again
next_array              a0  a1  a2             s0  s1  s2             s3 of next/observation
last_row                a0  a1  a2  (a3)       s0  s1  s2  s3         a3 leads nowhere, and is omitted
extra_row               a0  a1  a2             s0  s1  s2  s3
rewards of the row before, if there is a row for each observation:  (r0) r1  r2  r3
```

Arrays have a row for each step or, in the last two forms, for each state, of which an episode has one more.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import FormatError, UsageError
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.autoreset import undo_autoreset
from offline_data.episode.cut import runs_within
from offline_data.episode.fields import Key, join_key, split_key
from offline_data.episode.joining import concatenate, join_episodes
from offline_data.formats.base import PART_BYTES, RawDataset, Shard, SourceInfo
from offline_data.formats.files.images import ImageArrays
from offline_data.formats.files.layout import WHOSE, Layout
from offline_data.formats.files.mapping import MappingQuestionError
from offline_data.formats.files.rows import JoinedArrays
from offline_data.raw.arrays import open_arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.formats.files.mapping import FileMapping
    from offline_data.raw.arrays import Arrays, Block

JUMPS = (
    "next/observation is not the observation of the row after: episodes end there, as truncated "
    "(--keep-episodes keeps them whole, and stores both)."
)
NOTES = {
    "missing": "The observation after the last action of an episode is not in the files.",
    "next_array": "The final observation of every episode is that of next/observation.",
    "last_row": "The last row of an episode is its final observation; its action is omitted.",
    "extra_row": "Episodes have an observation more than actions: the final one.",
}
_APART = "convert episodes with different arrays separately"
OTHERWISE = "Episodes whose last row has neither flag are {}."


@dataclass(frozen=True)
class MappedEpisodes(RawDataset):
    """The episodes of a file or folder."""

    path: Path
    mapping: FileMapping
    info: SourceInfo
    keep_episodes: bool = False
    skip_bad: bool = False
    whose: str = WHOSE
    """Whose mapping it is, for messages."""
    known: frozenset[str] | None = None
    """Arrays that a part may have: those of the first. None: any, of which the mapping names some."""

    def shards(self) -> Sequence[Shard]:
        """Return the only shard."""
        return (Shard("all episodes"),)

    def describe(self) -> MappedEpisodes:
        """Return the same with notes and counts; raises `MappingQuestionError`, `UsageError`, `FormatError`."""
        mapping = self.mapping
        with open_files(self.path) as arrays:
            parts = find_parts(arrays, mapping.each)
            parts = (
                parts if mapping.parts == "table" else from_readable(arrays, parts, self.skip_bad)
            )
            with open_part(arrays, parts, mapping) as opened:
                first = Layout(opened, mapping, self.whose)
                used = {name for name, _ in first.names} | {*mapping.episodes.values()}
                used |= {*mapping.ends.arrays.values()}
                left = [
                    Dropped(
                        name, f"It {column.problem}." if column.problem else "It is not mapped."
                    )
                    for name, column in opened.columns.items()
                    if name not in used
                ]
        notes = [NOTES[first.final]]
        if mapping.ends.otherwise:
            notes.append(OTHERWISE.format(mapping.ends.otherwise))
        info = replace(self.info, notes=(*self.info.notes, *notes), dropped=tuple(left))
        if (mapping.each is None or mapping.parts == "table") and mapping.autoreset is None:
            info = replace(info, episodes=len(first.lengths), transitions=int(first.lengths.sum()))
            if "next/observation" in map(join_key, mapping.keys):
                info = replace(info, episodes=None)  # they may be cut
        return replace(self, info=info)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 - there is only one
        """Read the episodes in order, some megabytes at a time; raises `FormatError`."""
        with open_files(self.path) as arrays:
            parts = find_parts(arrays, self.mapping.each)
            if self.mapping.each is None or self.mapping.parts == "table":
                with open_part(arrays, parts, self.mapping) as opened:
                    yield from self._read_part(opened)
                return
            readings: Iterator[tuple[str, Callable[[], EpisodeBatch]]] = (
                (f"{self.path}, {part}", partial(self._read_whole, arrays, part)) for part in parts
            )
            yield from join_episodes(readings, skip_bad=self.skip_bad)

    def _read_whole(self, arrays: Arrays, part: str) -> EpisodeBatch:
        try:
            with arrays.below(part) as opened:
                if self.known is not None and (new := opened.columns.keys() - self.known):
                    problem = (
                        f"It has {', '.join(sorted(new))}, which the first episode does not have"
                    )
                    raise FormatError(problem, hint=_APART)
                return concatenate(list(self._read_part(opened)))
        except MappingQuestionError:
            raise
        except UsageError as error:  # the mapping fits the first part
            raise FormatError(error.message, hint=error.shell_hint) from error

    def _read_part(self, arrays: Arrays) -> Iterator[EpisodeBatch]:
        batches = read_episodes(Layout(arrays, self.mapping, self.whose), keep=self.keep_episodes)
        if self.mapping.autoreset is None:
            return batches
        return undo_autoreset(batches, self.mapping.autoreset)


@contextmanager
def open_files(path: Path) -> Iterator[Arrays]:
    """Open the arrays of a file or folder; rows of JPEG or PNG bytes are images."""
    with open_arrays(path) as arrays:
        yield ImageArrays(arrays)


def find_parts(arrays: Arrays, each: str | None) -> list[str]:
    """Return the groups, or files of a folder, that a pattern names, in natural order; none without one.

    Raises `FormatError` if there are none.
    """
    if each is None:
        return []
    parent, _, last = each.rpartition("/")
    start = f"{parent}/" if parent else ""
    found = [start + name for name in arrays.groups(parent) if fnmatchcase(name, last)]
    if not found:
        raise FormatError(f"{arrays.path} has no groups or files {each}")
    return found


def from_readable(arrays: Arrays, parts: list[str], skip_bad: bool) -> list[str]:
    """Return parts without damaged ones before the first that can be opened; raises unless `skip_bad`."""
    for n, part in enumerate(parts):
        try:
            with arrays.below(part):
                return parts[n:]
        except FormatError:
            if not skip_bad or n == len(parts) - 1:
                raise
    return parts


@contextmanager
def open_part(arrays: Arrays, parts: Sequence[str], mapping: FileMapping) -> Iterator[Arrays]:
    """Open the first of some parts, or all of them as one table; without parts, all arrays."""
    if not parts:
        yield arrays
    elif mapping.parts == "table":
        yield JoinedArrays(arrays, parts)
    else:
        with arrays.below(parts[0]) as opened:
            yield opened


def read_runs(
    arrays: Arrays, states: Mapping[str, bool], lengths: NDArray[np.int64], *, padded: bool = False
) -> Iterator[tuple[slice, Block]]:
    """Yield runs of whole episodes of some megabytes, each with the rows of its arrays.

    Args:
        arrays: The arrays, with the rows of an episode one after the other.
        states: Names of those to read, and whether they have a row for each state.
        lengths: `[E]` steps of each episode.
        padded: Whether their rows are episodes, `[E, T, …]`, of which the first steps are read.
    """
    columns = {name: arrays.columns[name] for name in states}
    size = sum(one.dtype.itemsize * prod(one.shape[1:]) for one in columns.values())
    runs = runs_within((np.ones_like(lengths) if padded else lengths) * max(1, size), PART_BYTES)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    blocks: list[Any] = []
    for kind in (False, True):
        ranges = [(int(starts[a]) + a * kind, int(starts[b]) + b * kind) for a, b in runs]
        if some := [name for name in states if states[name] == kind]:
            blocks.append(arrays.blocks(some, runs if padded else ranges))
    with ExitStack() as stack:  # after an error, files are closed before it is handled
        for reading in blocks:
            stack.callback(reading.close)
        for run, *found in zip(runs, *blocks, strict=True):
            rows = {name: values for block in found for name, values in block.items()}
            if padded:
                for name, values in rows.items():
                    used = lengths[slice(*run), None] + states[name]
                    rows[name] = values[np.arange(values.shape[1]) < used]
            yield slice(*run), rows


def steps_of(values: Any, lengths: NDArray[np.int64], row: str | None = None) -> Any:
    """Return the rows of steps of a column that may have one for each state, `[N + E, …]`.

    Of these, the first row of each episode is left out if `row` is `row_before`, else the last one.

    Example:
        >>> steps_of(np.array([0, 1, 2, 7, 8]), np.array([2, 1]), "row_before").tolist()
        [1, 2, 8]
    """
    if len(values) == lengths.sum():
        return values
    kept = np.ones(len(values), bool)
    kept[np.cumsum(lengths + 1) - 1 - (lengths if row == "row_before" else 0)] = False
    return values[kept]


def read_episodes(layout: Layout, *, keep: bool) -> Iterator[EpisodeBatch]:
    """Yield whole episodes, some megabytes at a time; raises `FormatError`.

    `keep`: whether episodes continue where a next observation is not that of the row after.
    """
    states = {name: layout.has_states(name, place) for name, place in layout.names}
    facts = _read_facts(layout)
    for run, columns in read_runs(layout.arrays, states, layout.lengths, padded=layout.padded):
        part = {key: values[run] for key, values in facts.items()}
        yield _batch_of(layout, columns, run, part, keep=keep)


def _read_facts(layout: Layout) -> dict[Key, NDArray[Any]]:
    found = {}
    for leaf, name in layout.mapping.episodes.items():
        found[split_key(leaf)] = layout.read_one_each(name, f"episodes.{leaf}")
    if (
        layout.numbers is not None
        and layout.mapping.ends.episode not in layout.mapping.episodes.values()
    ):
        found.setdefault(("id",), layout.numbers)
    return found


def _batch_of(
    layout: Layout, columns: Block, run: slice, facts: Mapping[Key, NDArray[Any]], *, keep: bool
) -> EpisodeBatch:
    """Return the rows of a run of whole episodes as a batch."""
    mapping, lengths = layout.mapping, layout.lengths[run]
    count = int(lengths.sum())
    steps: dict[Key, NDArray[Any]] = {}
    before: dict[Key, NDArray[Any]] = {}
    after: dict[Key, NDArray[Any]] = {}
    for key, names in layout.keys.items():
        values = columns[names[0]]
        if key in layout.stacked:
            values = _side_by_side(key, names, columns)
        if key[0] in {"action", "next", "extra"}:
            row = mapping.reward_of if key[0] == "next" else mapping.action_of
            values = steps_of(values, lengths, row)
            if key[:2] == ("next", "observation"):
                after[key[1:]] = values
            else:
                flat = key[0] == "next" and values.ndim == 1
                steps[key] = values.reshape(-1, 1) if flat else values
        else:
            (before if key[0] == "observation" or len(values) > count else steps)[key] = values
    _check_alike(before, after)
    of = mapping.ends.flags_of if not layout.flags_end else "row_before"
    marks = {
        field: steps_of(layout.as_flags(columns[name], 1, field), lengths, of)
        for field, name in layout.flags.items()
    }
    ends = np.zeros(count, bool)
    ends[np.cumsum(lengths) - 1] = True
    nothing = np.zeros_like(ends)
    for field, values in layout.flags_of_episodes.items():
        marks[field] = nothing.copy()
        marks[field][ends] = values[run]
    done, terminated, truncated = (
        marks.get(kind, nothing) for kind in ("done", "terminated", "truncated")
    )
    if layout.numbered and (done & ~ends).any():
        raise _inside(layout, run, np.flatnonzero(done & ~ends)[0])
    if mapping.ends.otherwise == "terminated":
        unsaid = ends & ~terminated & ~truncated
        terminated = terminated | (unsaid & done if "done" in marks else unsaid)
    return assemble(
        lengths,
        steps,
        before,
        terminated=terminated,
        truncated=truncated,
        after=after,
        jumps=JUMPS,
        keep=keep,
        episodes=facts,
    )


def _inside(layout: Layout, run: slice, row: int) -> FormatError:
    """Return the error for a flag `done` before the last row of an episode."""
    episode = run.start + int(np.searchsorted(np.cumsum(layout.lengths[run]), row, "right"))
    ends = layout.mapping.ends
    return FormatError(
        f"{layout.arrays.path}: ends.done, {ends.done!r}, is set before the last row of episode {episode}",
        hint="leave ends.done out of the mapping, or what else says where episodes end",
    )


def _side_by_side(key: Key, names: Sequence[str], columns: Block) -> NDArray[Any]:
    found = [columns[name] for name in names]
    if any(one.ndim != 1 or one.dtype == object for one in found):
        raise UsageError(
            f"The mapping's leaves.{join_key(key)} has arrays that are not single numbers a row"
        )
    return np.stack(found, axis=1)


def _check_alike(before: Mapping[Key, Any], after: Mapping[Key, Any]) -> None:
    """Raise `UsageError` unless next observations, if any, are as the observations."""
    seen = {key for key in before if key[0] == "observation"} if after else set()
    for key in seen | after.keys():
        one, other = before.get(key), after.get(key)
        if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
            raise UsageError(
                f"{join_key(key)} and next/{join_key(key)} differ in dtype or shape, or one is not mapped"
            )
