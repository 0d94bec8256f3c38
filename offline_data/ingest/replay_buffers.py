"""Replay buffers of Stable-Baselines3, TorchRL and d3rlpy as episodes; none of them is imported.

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

from offline_data.episodes.batch import EpisodeBatch
from offline_data.episodes.fields import (
    DONE,
    RESERVED_ROOTS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    join_key,
    next_of,
)
from offline_data.episodes.joining import BATCH_BYTES
from offline_data.errors import FormatError
from offline_data.plurals import plural
from offline_data.readers.flat_arrays import array_of
from offline_data.sources.base import RawDataset, Shard, SourceInfo
from offline_data.store.environments import space_to_json

NOTE_OLDEST = "The buffer was full: its oldest episodes may lack their first steps."
NOTE_CUT = (
    "Some episodes end without an end flag, where the next observation is not the following row's; their "
    "last step is marked truncated."
)
NOTE_SCALED = (
    "Actions are as the buffer has them; Stable-Baselines3 scales those of a Box to [-1, 1]."
)
NOTE_ENDS = "The buffer does not tell time limits from other ends: every end is terminated."
NOTE_NO_FINAL = (
    "The buffer (optimize_memory_usage) has not kept the observation after most episodes."
)

_TRAJECTORIES: Key = ("collector", "traj_ids")
_CHUNK = 4096  # rows that are compared at once
_RINGS = {"RoundRobinWriter", "TensorDictRoundRobinWriter"}
_FIXED = {"ImmutableDatasetWriter"}


@dataclass(frozen=True)
class BufferRows:
    """Rows of a buffer, and their order."""

    steps: Mapping[Key, NDArray[Any]]
    """`[R, …]` columns of step leaves; flags and rewards `[R, 1]`."""
    seen: Mapping[Key, NDArray[Any]]
    """`[R, …]` observations before the action."""
    after: Mapping[Key, NDArray[Any]]
    """`[R, …]` observations after it; empty where the buffer has none."""
    sequences: Sequence[NDArray[np.int64]]
    """Rows in the order of time; of each environment or trajectory."""
    last_known: Sequence[int] | None = None
    """Without `after`: the row whose `seen` follows the last of each sequence."""
    info: SourceInfo = field(default_factory=SourceInfo)


def episodes_of_buffer(buffer: Any) -> Any:
    """Return the episodes of a replay buffer as raw data or an iterable; None if it is not one.

    Raises `FormatError` if the buffer has lost their order, or is of a kind that is not read.
    """
    names = {
        f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(buffer).__mro__
    }
    if "stable_baselines3.ReplayBuffer" in names:
        return BufferDataset(_rows_of_sb3(buffer))
    if "d3rlpy.ReplayBufferBase" in names:
        return list(buffer.episodes)
    if "torchrl.ReplayBuffer" in names:
        return BufferDataset(_rows_of_torchrl(buffer._storage, buffer._writer))
    if "torchrl.Storage" in names:
        return BufferDataset(_rows_of_torchrl(buffer, None))
    return None


def _rows_of_sb3(buffer: Any) -> BufferRows:
    """Rows are `[buffer_size, n_envs]`; `pos` is the next one to be written."""
    size, count, pos = buffer.buffer_size, buffer.n_envs, int(buffer.pos)
    sparing = bool(buffer.optimize_memory_usage)
    oldest = pos + sparing  # the observation in row `pos` is that after the newest step
    times = np.arange(oldest, pos + size) % size if buffer.full else np.arange(pos)

    def flat(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        rows: NDArray[Any] = array.reshape(size * count, *shape)
        return rows

    def observations(name: str) -> dict[Key, NDArray[Any]]:
        value, space = getattr(buffer, name), buffer.observation_space
        if not isinstance(value, Mapping):
            return {("observation",): flat(value, space.shape)}
        return {("observation", k): flat(array, space[k].shape) for k, array in value.items()}

    timeouts = flat(buffer.timeouts, (1,)).astype(bool)
    box = type(buffer.action_space).__name__ == "Box"
    spaces = {"observation": space_to_json(buffer.observation_space)}
    if not box:
        spaces["action"] = space_to_json(buffer.action_space)
    notes = {
        NOTE_OLDEST: buffer.full,
        NOTE_SCALED: box,
        NOTE_ENDS: not buffer.handle_timeout_termination,
        NOTE_NO_FINAL: sparing,
    }
    return BufferRows(
        {
            ("action",): flat(buffer.actions, buffer.action_space.shape),
            REWARD: flat(buffer.rewards, (1,)),
            TERMINATED: flat(buffer.dones, (1,)).astype(bool) & ~timeouts,
            TRUNCATED: timeouts,
        },
        observations("observations"),
        {} if sparing else observations("next_observations"),
        [times * count + number for number in range(count)],
        [pos % size * count + number for number in range(count)],
        SourceInfo(spaces=spaces, notes=tuple(note for note, holds in notes.items() if holds)),
    )


def _rows_of_torchrl(storage: Any, writer: Any) -> BufferRows:
    """Rows are those of a TED tensordict; `_cursor` of the writer is the next one to be written."""
    count, full = len(storage), len(storage) >= storage.max_size
    if getattr(storage, "ndim", 1) != 1:
        raise FormatError(f"The storage has {storage.ndim} dimensions; expected 1")
    columns = _columns(getattr(storage, "_storage", storage), count)
    rows = np.arange(count)
    kind = type(writer).__name__
    if kind in _RINGS and full:
        rows = np.roll(rows, -int(writer._cursor))
    elif kind not in {*_RINGS, *_FIXED} and (full or writer is not None):
        said = (
            f"a {kind} writes in no order of time"
            if writer
            else "a full storage says no oldest row"
        )
        raise FormatError(
            f"The order of episodes is lost: {said}",
            hint="convert the ReplayBuffer of a storage; its writer must be a round-robin one",
        )
    sequences = [rows]
    if _TRAJECTORIES in columns:
        ids = columns[_TRAJECTORIES].reshape(count)[rows]
        order, starts = (
            np.argsort(ids, kind="stable"),
            np.unique(np.sort(ids), return_index=True)[1],
        )
        sequences = sorted(
            np.split(rows[order], starts[1:]), key=lambda part: np.where(rows == part[0])[0][0]
        )
    flags = [key for key in (DONE, TERMINATED, TRUNCATED) if key in columns]
    if not flags or ("action",) not in {key[:1] for key in columns}:
        raise FormatError(
            "The storage does not hold transitions as TED: it has "
            f"{', '.join(sorted(map(join_key, columns)))}",
            hint="expected action, observation and next/observation, next/reward, next/done",
        )
    truncated = columns.get(TRUNCATED, np.zeros((count, 1), bool))
    done = columns.get(DONE, truncated)
    given = columns.get(TERMINATED, done.astype(bool) & ~truncated.astype(bool))
    steps: dict[Key, NDArray[Any]] = {
        TERMINATED: given.reshape(count, 1).astype(bool),
        TRUNCATED: truncated.reshape(count, 1).astype(bool),
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
            steps[key] = column.reshape(count, 1) if key == REWARD else column
    notes = (NOTE_OLDEST,) if full else ()
    return BufferRows(steps, seen, after, sequences, info=SourceInfo(notes=notes))


def _columns(stored: Any, count: int) -> dict[Key, NDArray[Any]]:
    """Return the leaves of a tensordict, or of a list of them, as arrays of `count` rows."""
    if isinstance(stored, list):
        every = [_columns(one[None], 1) for one in stored[:count]]
        return (
            {key: np.concatenate([one[key] for one in every]) for key in every[0]} if every else {}
        )
    if not hasattr(stored, "batch_size"):
        raise FormatError(f"The storage holds a {type(stored).__name__}; expected a TensorDict")
    leaves = stored.items(include_nested=True, leaves_only=True)
    return {
        (key,) if isinstance(key, str) else tuple(key): array_of(leaf[:count], str(key))
        for key, leaf in leaves
    }


class BufferDataset(RawDataset):
    """The episodes of a buffer, in the order of their last step in each sequence."""

    own_thread = False

    def __init__(self, rows: BufferRows) -> None:
        self.info, self._rows = rows.info, rows
        joints = breaks = 0
        self._episodes: list[tuple[NDArray[np.int64], int]] = []
        """Rows of each episode, and the row whose observation is its last; -1: unknown."""
        for number, sequence in enumerate(rows.sequences):
            ends = self._ends(sequence)
            cuts = self._breaks(sequence) & ~ends[:-1]
            joints, breaks = joints + int((~ends[:-1]).sum()), breaks + int(cuts.sum())
            ends[:-1] |= cuts
            if not len(ends):
                continue
            ends[-1] = True
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
        self._notes = (NOTE_CUT,) if breaks else ()

    def _ends(self, sequence: NDArray[np.int64]) -> NDArray[np.bool_]:
        steps = self._rows.steps
        found: NDArray[np.bool_] = (steps[TERMINATED] | steps[TRUNCATED])[sequence, 0]
        return found

    def _breaks(self, sequence: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return for all rows but the last whether the next row does not follow."""
        found = np.zeros(max(0, len(sequence) - 1), bool)
        for key, after in self._rows.after.items():
            for first in range(0, len(found), _CHUNK):
                rows = sequence[first : first + _CHUNK + 1]
                ours, theirs = after[rows[:-1]], self._rows.seen[key][rows[1:]]
                same = ours == theirs
                if ours.dtype.kind in "fc":
                    same |= np.isnan(ours) & np.isnan(theirs)
                found[first : first + _CHUNK] |= ~same.reshape(len(same), -1).all(axis=1)
        return found

    def shards(self) -> Sequence[Shard]:
        """Return the only shard."""
        return (Shard("the buffer", episodes=len(self._episodes)),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 - there is only one
        """Read its episodes in batches."""
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
        return EpisodeBatch(lengths, steps, seen, known, notes=self._notes)
