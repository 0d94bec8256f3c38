"""Episodes of arrays, as a mapping says; read in blocks of whole episodes.

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
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.autoreset import undo_autoreset
from offline_data.episode.cut import lengths_of, runs_within, with_final_rows
from offline_data.episode.fields import TERMINATED, TRUNCATED, Key, join_key, next_of, split_key
from offline_data.episode.joining import concatenate, join_episodes
from offline_data.episode.notes import count_rows
from offline_data.formats.base import PART_BYTES, RawDataset, Shard, SourceInfo
from offline_data.formats.files.images import ImageArrays
from offline_data.formats.files.layout import Layout
from offline_data.formats.files.mapping import MappingQuestionError
from offline_data.formats.files.rows import JoinedArrays
from offline_data.formats.flat.next_column import differing_rows
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
OTHERWISE = "Episodes whose last row has neither flag are {}."


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
        mapping = self.mapping
        with open_files(self.path) as arrays:
            parts = find_parts(arrays, mapping.each)
            with open_part(arrays, parts, mapping) as opened:
                first = Layout(opened, mapping)
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
                return concatenate(list(self._read_part(opened)))
        except MappingQuestionError:
            raise
        except UsageError as error:  # the mapping fits the first part
            raise FormatError(error.message, hint=error.shell_hint) from error

    def _read_part(self, arrays: Arrays) -> Iterator[EpisodeBatch]:
        batches = read_episodes(Layout(arrays, self.mapping), keep=self.keep_episodes)
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


def read_episodes(layout: Layout, *, keep: bool) -> Iterator[EpisodeBatch]:
    """Yield whole episodes, some megabytes at a time; raises `FormatError`.

    `keep`: whether episodes continue where a next observation is not that of the row after.
    """
    names = list(dict.fromkeys(name for name, _ in layout.names))
    states = {n: layout.has_states(n, place) for n, place in layout.names}
    shapes = {name: layout.described[name].shape[1:] for name in names}
    size = sum(layout.described[n].dtype.itemsize * prod(shapes[n]) for n in names)
    sizes = np.full(len(layout.lengths), 1) if layout.padded else layout.lengths
    runs = runs_within(sizes * max(1, size), PART_BYTES)
    starts = np.concatenate([[0], np.cumsum(layout.lengths)])
    facts = _read_facts(layout)
    steps = [(int(starts[a]), int(starts[b])) for a, b in runs]
    groups = {
        False: steps,
        True: [(s + a, t + b) for (s, t), (a, b) in zip(steps, runs, strict=True)],
    }
    blocks: list[Any] = [
        layout.arrays.blocks(some, runs if layout.padded else groups[kind])
        for kind in (False, True)
        if (some := [name for name in names if states[name] == kind])
    ]
    with ExitStack() as stack:  # after an error, files are closed before it is handled
        for reading in blocks:
            stack.callback(reading.close)
        for (first, stop), *found in zip(runs, *blocks, strict=True):
            columns = {name: values for block in found for name, values in block.items()}
            lengths = layout.lengths[first:stop]
            if layout.padded:
                for name, values in columns.items():
                    used = np.arange(values.shape[1]) < (lengths + states[name])[:, None]
                    columns[name] = values[used]
            part = {key: values[first:stop] for key, values in facts.items()}
            yield _batch_of(layout, columns, states, (first, stop), part, keep=keep)


def _read_facts(layout: Layout) -> dict[Key, NDArray[Any]]:
    found = {}
    for leaf, name in layout.mapping.episodes.items():
        layout.column(name, f"episodes.{leaf}")
        values = np.atleast_1d(layout.arrays.read(name))
        if len(values) != len(layout.lengths):
            raise UsageError(
                f"The mapping's episodes.{leaf}: {name!r} has {plural(len(values), 'row')}, expected "
                f"{len(layout.lengths):,}, one for each episode"
            )
        found[split_key(leaf)] = values
    if (
        layout.numbers is not None
        and layout.mapping.ends.episode not in layout.mapping.episodes.values()
    ):
        found.setdefault(("id",), layout.numbers)
    return found


def _batch_of(
    layout: Layout,
    columns: Block,
    states: Mapping[str, bool],
    run: tuple[int, int],
    facts: Mapping[Key, NDArray[Any]],
    *,
    keep: bool,
) -> EpisodeBatch:
    """Return the rows of a run of whole episodes as a batch."""
    lengths = layout.lengths[slice(*run)]
    firsts = np.zeros(int(lengths.sum()) + len(lengths), bool)
    firsts[np.cumsum(lengths + 1) - lengths - 1] = True
    lasts = np.roll(firsts, -1)

    def of_steps(values: NDArray[Any], name: str, row: str | None) -> NDArray[Any]:
        return values[~(firsts if row == "row_before" else lasts)] if states[name] else values

    mapping = layout.mapping
    steps: dict[Key, NDArray[Any]] = {}
    before: dict[Key, NDArray[Any]] = {}
    after: dict[Key, NDArray[Any]] = {}
    for key, names in layout.keys.items():
        values = columns[names[0]]
        if key in layout.stacked:
            values = _side_by_side(key, names, columns)
        if key[0] in {"action", "next", "extra"}:
            row = mapping.reward_of if key[0] == "next" else mapping.action_of
            values = of_steps(values, names[0], row)
            if key[:2] == ("next", "observation"):
                after[key[1:]] = values
            else:
                flat = key[0] == "next" and values.ndim == 1
                steps[key] = values.reshape(-1, 1) if flat else values
        elif key[0] == "observation" or states[names[0]]:
            before[key] = values
        else:
            steps[key] = values
    row = mapping.ends.flags_of if not layout.flags_end else "row_before"
    marks = {
        field: of_steps(layout.as_flags(columns[name], 1, field), name, row)[:, None]
        for field, name in mapping.ends.flags.items()
    }
    ends = np.zeros((int(lengths.sum()), 1), bool)
    ends[np.cumsum(lengths) - 1] = True
    nothing = np.zeros_like(ends)
    terminated, truncated = (
        marks.get(kind, nothing).copy() for kind in ("terminated", "truncated")
    )
    unsaid = ends & ~terminated & ~truncated
    if (done := marks.get("done")) is not None:
        if layout.numbered and (done & ~ends).any():
            raise _inside(layout, run, np.flatnonzero(done & ~ends)[0])
        truncated |= unsaid & ~done
        unsaid &= done
    (terminated if mapping.ends.otherwise == "terminated" else truncated)[unsaid] = True
    warnings: tuple[str, ...] = ()
    if after:
        jumps = _find_jumps(before, after)
        if keep:
            steps |= {**before, **{next_of(key): column for key, column in after.items()}}
            before = {}
        elif count := int((jumps & ~ends).sum()):
            truncated |= jumps & ~ends & ~terminated
            pieces = lengths_of((ends | jumps)[:, 0])
            whole = np.searchsorted(np.cumsum(lengths), np.cumsum(pieces))
            facts = {key: values[whole] for key, values in facts.items()}
            lengths, warnings = pieces, (count_rows(count, JUMPS),)
    last = np.cumsum(lengths) - 1
    if layout.final in {"missing", "next_array"}:
        final = {key: column[last] for key, column in after.items()}
        before = {key: with_final_rows(c, lengths, final.get(key)) for key, c in before.items()}
    known = np.full(len(lengths), layout.final != "missing")
    flags = {TERMINATED: terminated, TRUNCATED: truncated}
    return EpisodeBatch(lengths, {**steps, **flags}, before, known, facts, warnings=warnings)


def _inside(layout: Layout, run: tuple[int, int], row: int) -> FormatError:
    """Return the error for a flag `done` before the last row of an episode."""
    episode = run[0] + int(np.searchsorted(np.cumsum(layout.lengths[slice(*run)]), row, "right"))
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


def _find_jumps(before: Mapping[Key, Any], after: Mapping[Key, Any]) -> NDArray[np.bool_]:
    """Return which rows `[N, 1]` have a next observation that is not the one of the row after."""
    jumps = np.zeros((len(next(iter(after.values()))), 1), bool)
    for key in {k for k in before if k[0] == "observation"} | after.keys():
        one, other = before.get(key), after.get(key)
        if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
            raise UsageError(
                f"{join_key(key)} and next/{join_key(key)} differ in dtype or shape, or one is not mapped"
            )
        if one.dtype == object:
            differ = np.flatnonzero(other[:-1] != one[1:])
        elif hasattr(one, "images"):
            differ = np.flatnonzero(~other[:-1].same_rows(one[1:]))
        else:
            differ = differing_rows(other[:-1], one[1:])
        jumps[differ] = True
    return jumps
