"""Rows of replay buffers, in memory or mapped, as episodes.

```
row                  0     1     2     3     4              a ring that is full, its oldest row being 2
observation          s3    s4    s0    s1    s2
next observation     s4    s5    s1    s2    s3             in order of time: rows 2, 3, 4, 0, 1
```

An episode ends at its flags, and where a next observation is not the observation of the row after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode.batch import EpisodeBatch
from offline_data.episode.fields import (
    DONE,
    RESERVED_ROOTS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    join_key,
    next_of,
)
from offline_data.episode.joining import BATCH_BYTES
from offline_data.episode.notes import count_episodes
from offline_data.formats.base import RawDataset, Shard, SourceInfo

NOTE_OLDEST = "The buffer was full: its oldest episodes may lack their first steps."
NOTE_CUT = (
    "no end flag is set where the next observation is not the following row's; the last step is marked "
    "truncated."
)
NEITHER = "It is neither numbers nor a text for each row."  # why a leaf is dropped

_TRAJECTORIES: Key = ("collector", "traj_ids")
_CHUNK_BYTES = 4 << 20  # of rows that are compared at once


@dataclass(frozen=True)
class BufferRows:
    """Rows of a buffer, and their order."""

    steps: Mapping[Key, NDArray[Any]]  # `[R, …]` step leaves; flags and rewards `[R, 1]`
    seen: Mapping[Key, NDArray[Any]]  # `[R, …]` observations before the action
    after: Mapping[Key, NDArray[Any]]  # `[R, …]` after it; empty where the buffer has none
    sequences: Sequence[NDArray[np.int64]]
    """Rows in the order of time; of each environment or trajectory."""
    last_known: Sequence[int] | None = None
    """If `after` is empty: for each sequence, the row of `seen` after its last action (-1: unknown)."""
    info: SourceInfo = field(default_factory=SourceInfo)
    whole: bool = False
    """Whether an episode without an end flag is an error: rows may have been written over."""


def rows_of_ted(
    columns: Mapping[Key, NDArray[Any]],
    count: int,
    oldest: int,
    info: SourceInfo,
    *,
    whole: bool = False,
) -> BufferRows:
    """Return the first `count` rows of a TED tensordict, of which `oldest` is the first in time.

    Rows of a collector's trajectories are put together. Raises `FormatError`.
    """
    flags = [key for key in (DONE, TERMINATED, TRUNCATED) if key in columns]
    if not flags or ("action",) not in {key[:1] for key in columns}:
        raise FormatError(
            "The storage does not hold transitions as TED: it has "
            f"{', '.join(sorted(map(join_key, columns)))}",
            hint="expected action, observation and next/observation, next/reward, next/done",
        )
    single = {
        key: _single(key, columns[key], count)
        for key in (*flags, REWARD, _TRAJECTORIES)
        if key in columns
    }
    rows = np.roll(np.arange(count), -oldest)
    sequences = [rows]
    if count and _TRAJECTORIES in single:
        ids = single[_TRAJECTORIES][rows, 0]
        order = np.argsort(ids, kind="stable")
        starts = np.flatnonzero(np.diff(ids[order])) + 1
        sequences = [rows[part] for part in sorted(np.split(order, starts), key=lambda one: one[0])]
    truncated = single.get(TRUNCATED, np.zeros((count, 1), bool)).astype(bool)
    done = single.get(DONE, truncated).astype(bool)
    steps: dict[Key, NDArray[Any]] = {
        TERMINATED: single.get(TERMINATED, done & ~truncated).astype(bool),
        TRUNCATED: truncated,
    }
    seen, after = {}, {}
    for key, column in columns.items():
        if key[0] in RESERVED_ROOTS or key[0] == "_weight":
            continue
        if next_of(key) in columns and key[0] not in {"action", "collector"}:
            seen[key], after[key] = column, columns[next_of(key)]
        else:
            steps[key] = column
    for key, column in columns.items():
        if key[0] == "next" and key[1:] not in seen and key not in {DONE, TERMINATED, TRUNCATED}:
            steps[key] = single.get(key, column)
    return BufferRows(steps, seen, after, sequences, whole=whole, info=info)


def _single(key: Key, column: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the only value of each row, `[count, 1]`."""
    if column.shape not in {(count,), (count, 1)} or column.dtype.kind not in "biuf":
        raise FormatError(
            f"{join_key(key)!r} is {column.dtype} {list(column.shape)}; expected numbers [{count}, 1]",
            hint="rows must be single steps of one environment: reshape(-1) before storing them",
        )
    return column.reshape(count, 1)


class BufferDataset(RawDataset):
    """The episodes of a buffer, in the order of their last step in each sequence."""

    own_thread = False

    def __init__(self, rows: BufferRows) -> None:
        self.info, self._rows = rows.info, rows
        joints = breaks = 0
        self._episodes: list[tuple[NDArray[np.int64], int]] = []
        """Rows of each episode, and the row whose observation is its last; -1: unknown."""
        self._cut = set[int]()  # last rows of episodes that end where the next row does not follow
        for number, sequence in enumerate(rows.sequences):
            ends = self._ends(sequence)
            cuts = self._breaks(sequence) & ~ends[:-1]
            joints, breaks = joints + int((~ends[:-1]).sum()), breaks + int(cuts.sum())
            ends[:-1] |= cuts
            if not len(ends):
                continue
            if rows.whole and (cuts.any() or not ends[-1]):
                raise _not_whole(cuts, sequence)
            ends[-1] = True
            self._cut.update(sequence[:-1][cuts].tolist())
            parts = np.split(sequence, np.flatnonzero(ends)[:-1] + 1)
            self._episodes += [(part, -1) for part in parts]
            if rows.last_known is not None and not rows.after:
                self._episodes[-1] = parts[-1], rows.last_known[number]
        if 2 * breaks > joints:
            raise FormatError(
                f"The order of episodes is lost: in {plural(breaks, 'row')} of {joints:,} the next observation "
                "is not that of the row after it",
                hint="rows must be in the order of time; of several environments together, keep "
                "collector/traj_ids (TorchRL)",
            )

    def _ends(self, sequence: NDArray[np.int64]) -> NDArray[np.bool_]:
        steps = self._rows.steps
        found: NDArray[np.bool_] = steps[TERMINATED][sequence, 0] | steps[TRUNCATED][sequence, 0]
        return found

    def _breaks(self, sequence: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for all rows but the last whether the next row does not follow."""
        found = np.zeros(max(0, len(sequence) - 1), bool)
        for key, after in self._rows.after.items():
            count = max(1, _CHUNK_BYTES // max(1, after[:1].nbytes))
            for first in range(0, len(found), count):
                rows = sequence[first : first + count + 1]
                ours, theirs = after[rows[:-1]], self._rows.seen[key][rows[1:]]
                same = ours == theirs
                if ours.dtype.kind in "fc":
                    same |= np.isnan(ours) & np.isnan(theirs)
                found[first : first + count] |= ~same.reshape(len(same), -1).all(axis=1)
        return found

    def shards(self) -> Sequence[Shard]:
        return (Shard("the buffer", episodes=len(self._episodes)),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 - there is only one
        columns = (*self._rows.steps.values(), *self._rows.seen.values())
        most = max(1, BATCH_BYTES // max(1, sum(x[:1].nbytes for x in columns)))
        waiting: list[tuple[NDArray[np.int64], int]] = []
        size = 0
        for episode in self._episodes:
            if waiting and size + len(episode[0]) > most:
                yield self._batch(waiting)
                waiting, size = [], 0
            waiting.append(episode)
            size += len(episode[0])
        if waiting:
            yield self._batch(waiting)

    def _batch(self, episodes: Sequence[tuple[NDArray[np.int64], int]]) -> EpisodeBatch:
        lengths = np.array([len(rows) for rows, _ in episodes], np.int64)
        rows = np.concatenate([part for part, _ in episodes])
        ends, after = np.cumsum(lengths), self._rows.after
        steps = {key: column[rows] for key, column in self._rows.steps.items()}
        steps[TRUNCATED][ends - 1] |= ~steps[TERMINATED][ends - 1]
        known = np.array([row >= 0 for _, row in episodes])
        others = np.where(known, [row for _, row in episodes], rows[ends - 1])
        seen = {}
        for key, column in self._rows.seen.items():
            last = after[key][rows[ends - 1]] if after else column[others]
            seen[key] = np.insert(column[rows], ends, last, axis=0)
        known |= bool(after)
        cuts = sum(int(rows[-1]) in self._cut for rows, _ in episodes)
        notes = (count_episodes(cuts, NOTE_CUT),) if cuts else ()
        return EpisodeBatch(lengths, steps, seen, known, notes=notes)


def _not_whole(cuts: NDArray[np.bool_], sequence: NDArray[np.int64]) -> FormatError:
    row = int(sequence[:-1][cuts][0] if cuts.any() else sequence[-1])
    return FormatError(
        f"Row {row} ends an episode without an end flag: in this folder it may be followed by rows that "
        "were not written, or be the newest of a full ring",
        hint="write it by `dumps` of a ReplayBuffer with a round-robin writer, which keeps the order",
    )
