"""Checkpoints of Dopamine's replay buffer: the rows of each episode in its files.

A checkpoint is a ring buffer of `capacity` rows. The first row of an episode is preceded by `pads` rows
of zeros; the checkpoint is written when all rows except the last are new, so that the last row is from
the previous round:

```
checkpoint 0   0 0 0 a a A 0 0 0 b b .      row of zeros: 0; A: terminal
checkpoint 1   b B 0 0 0 c c c c c c b      its last row follows row 10 of checkpoint 0
joined         0 0 0 a a A 0 0 0 b b b b B 0 0 0 c c c …
```

The checkpoint at the end of training has new rows up to any position, followed by old ones. `add_count`,
the number of rows ever added, reveals both; only in that checkpoint it restarts at row 0. A checkpoint is
due after a step, not after a zero row: if such a row is the last but one, it is left out, and numbering
continues. See `circular_replay_buffer.py` of google/dopamine and `logged_replay_buffer.py` of
google-research/batch_rl.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.raw.npy import open_rows

LEAVES = ("observation", "action", "reward", "terminal")  # `$store$_<name>_ckpt.<number>.gz`
COUNTS = ("add_count", "invalid_range")  # other files: `<name>_ckpt.<number>.gz`

_SMALL = 1 << 28  # maximum size of any file but that of the frames; published ones have 8 MB


def file_of(name: str, number: int) -> str:
    """Return the name of a checkpoint's file.

    Example:
        >>> file_of("reward", 3), file_of("add_count", 3)
        ('$store$_reward_ckpt.3.gz', 'add_count_ckpt.3.gz')
    """
    prefix = "$store$_" if name in LEAVES else ""
    return f"{prefix}{name}_ckpt.{number}.gz"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint without its actions, rewards and frames."""

    number: int
    added: int  # number of rows ever added when it was written
    capacity: int
    pads: int  # number of zero rows before an episode
    ends: NDArray[np.int64]  # terminal rows, ascending

    @property
    def fresh(self) -> int:
        """Number of rows added since the previous checkpoint: rows 0 up to this one."""
        return self.added % self.capacity

    @property
    def stale_end(self) -> bool:
        """Whether the last row, from the previous round, is terminal."""
        return bool(len(self.ends)) and int(self.ends[-1]) == self.capacity - 1

    @property
    def first(self) -> bool:
        """Whether the log starts with it."""
        return self.number == 0 and self.added < self.capacity

    @property
    def repeats(self) -> bool:
        """Whether it is the previous checkpoint, written again when training ended at its last row."""
        return self.number > 0 and self.added == self.capacity - 1

    def follows(self, before: Checkpoint) -> bool:
        """Return True if its row 0 was added directly after the last row of the round of `before`."""
        same = (self.capacity, self.pads) == (before.capacity, before.pads)
        if not same or self.number != before.number + 1 or before.fresh != self.capacity - 1:
            return False
        if self.added >= self.capacity:
            return self.added - before.added == self.capacity
        # the last checkpoint counts from 0: its old rows must be those of `before`; without a terminal
        # to tell, a checkpoint may be missing, and rows that are not consecutive must not be joined
        theirs, mine = (
            c.ends[(c.ends >= self.fresh) & (c.ends < before.fresh)] for c in (before, self)
        )
        return len(mine) > 0 and np.array_equal(theirs, mine)


def read_checkpoint(folder: Path, number: int) -> Checkpoint:
    """Read the terminals and counts of a checkpoint; raises `FormatError` naming the file."""
    path = folder / file_of("terminal", number)
    terminal = read_whole(path, "ub")
    if terminal.ndim != 1 or not len(terminal):
        raise FormatError(f"{path} is {list(terminal.shape)}, expected one row for each step")
    if terminal.max() > 1:
        raise FormatError(f"{path} has the value {terminal.max()}, expected 0 and 1")
    added = read_whole(folder / file_of("add_count", number), "iu")
    path = folder / file_of("invalid_range", number)
    around = read_whole(path, "iu")
    capacity = len(terminal)
    if added.shape or added < 0:
        raise FormatError(f"{folder / file_of('add_count', number)} is not a count: {added!r}")
    if around.ndim != 1 or len(around) < 2 or around[1] != added % capacity:
        raise FormatError(
            f"{path} is {around.tolist()!r:.80}, which does not fit {plural(added, 'row')} added "
            "to a buffer "
            f"of {capacity}: expected {int(added) % capacity} as the second"
        )
    ends = np.flatnonzero(terminal).astype(np.int64)
    return Checkpoint(number, int(added), capacity, len(around) - 2, ends)


def read_whole(path: Path, kinds: str) -> NDArray[Any]:
    """Read a small file; raises `FormatError` unless its items are of one of `kinds`."""
    with open_rows(path, budget=_SMALL) as rows:
        header = rows.header
        if header.dtype.kind not in kinds or not header.dtype.isnative:
            raise FormatError(f"{path} has items {header.dtype}; expected a kind of {kinds}")
        values = rows.read(header.shape[0] if header.shape else 1)
        rows.finish()
    return values.reshape(header.shape)


@dataclass(frozen=True)
class CheckpointRun:
    """Consecutive checkpoints, concatenated, and their episodes.

    Rows are counted from the first row of the first checkpoint; all arrays are int64 `[E]` by
    episode, or `[C]` by checkpoint.
    """

    checkpoints: tuple[Checkpoint, ...]
    offsets: NDArray[np.int64]  # `[C]` row 0 of each checkpoint
    rows: int  # total
    starts: NDArray[np.int64]  # `[E]` first row of each episode
    stops: NDArray[np.int64]  # `[E]` one past the last row
    headless: bool  # whether the first episode may have begun before the first checkpoint
    cut: bool  # whether the last episode continues after the last checkpoint

    @classmethod
    def of(cls, checkpoints: Sequence[Checkpoint]) -> CheckpointRun:
        """Return the run with its episodes; raises `FormatError` for a terminal in a zero row."""
        first, last, pads = checkpoints[0], checkpoints[-1], checkpoints[0].pads
        lengths = [checkpoint.capacity for checkpoint in checkpoints[:-1]] + [last.fresh]
        offsets = np.cumsum([0, *lengths])
        found = []
        for place, checkpoint in enumerate(checkpoints):
            found.append(checkpoint.ends[checkpoint.ends < checkpoint.fresh] + offsets[place])
            if checkpoint is not last and checkpoints[place + 1].stale_end:
                found.append(offsets[place + 1 : place + 2] - 1)
        stops = np.concatenate(found) + 1
        known = first.first or first.stale_end
        begins = pads if known else 0
        starts = np.concatenate([[begins], stops + pads]).astype(np.int64)
        total = int(offsets[-1])
        cut = bool(starts[-1] < total)
        if cut:
            stops = np.append(stops, total)
        starts = starts[: len(stops)]
        if (bad := np.flatnonzero(starts >= stops)).size:
            row = int(stops[bad[0]]) - 1
            where = int(np.searchsorted(offsets[1:], row, "right"))
            raise FormatError(
                f"Checkpoint {checkpoints[where].number} is damaged: row {row - offsets[where]} is "
                f"terminal, within the {plural(pads, 'row')} before an episode"
            )
        headless = not known and bool(len(starts))
        return cls(tuple(checkpoints), offsets[:-1], total, starts, stops, headless, cut)

    def begin_in(self, place: int) -> tuple[int, int]:
        """Return the range of the episodes that begin in a checkpoint."""
        stop = self.offsets[place + 1] if place + 1 < len(self.offsets) else self.rows
        first, last = np.searchsorted(self.starts, [self.offsets[place], stop])
        return int(first), int(last)

    def checkpoints_of(self, place: int) -> range:
        """Return the positions of the checkpoints needed for the episodes that begin in one."""
        first, last = self.begin_in(place)
        if first == last:
            return range(place, place + 1)
        row = int(self.stops[last - 1]) - 1
        until = int(np.searchsorted(self.offsets, row, "right")) - 1
        # the last row of a checkpoint is in the files of the next one
        if until + 1 < len(self.offsets) and row == self.offsets[until + 1] - 1:
            until += 1
        return range(place, until + 1)


def runs_of(checkpoints: Sequence[Checkpoint]) -> list[CheckpointRun]:
    """Divide ordered checkpoints into runs of consecutive ones; drops a repeated one."""
    runs: list[list[Checkpoint]] = []
    for checkpoint in checkpoints:
        if runs and checkpoint.repeats and runs[-1][-1].number == checkpoint.number - 1:
            continue
        if runs and checkpoint.follows(runs[-1][-1]):
            runs[-1].append(checkpoint)
        else:
            runs.append([checkpoint])
    return [CheckpointRun.of(run) for run in runs]
