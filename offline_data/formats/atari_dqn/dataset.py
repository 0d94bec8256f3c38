"""The episodes of a replay log: one shard per checkpoint, frames streamed from gzip."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.episode.joining import join_episodes
from offline_data.formats.atari_dqn.log import Checkpoint, CheckpointRun, file_of, read_whole
from offline_data.formats.base import RawDataset, Shard, SourceInfo
from offline_data.raw.npy import NpyRows, open_rows

COLUMNS = ("observation", "action", "reward")
"""Columns downloaded with a shard; the others are read first, to find the episodes."""

_FRAMES = 1 << 40  # maximum size of a file of frames; published ones have 7 GB
_EPISODE = 1 << 30  # maximum size of an episode, in memory: five times Dopamine's longest


@dataclass(frozen=True, eq=False)
class ReplayLog(RawDataset):
    """The checkpoints of a folder, in order.

    A shard has the episodes that begin in its checkpoint. The frames of a checkpoint are inflated
    once for its own shard and once for the previous one, whose last frame is at their end.
    """

    info: SourceInfo
    folder: Path
    runs: tuple[CheckpointRun, ...]
    skip_bad: bool = False

    def shards(self) -> Sequence[Shard]:
        shards = []
        for run in self.runs:
            for place, checkpoint in enumerate(run.checkpoints):
                numbers = [run.checkpoints[other].number for other in run.checkpoints_of(place)]
                files = tuple(file_of(name, number) for number in numbers for name in COLUMNS)
                first, stop = run.begin_in(place)
                rows = int((run.stops - run.starts)[first:stop].sum())
                name = f"checkpoint {checkpoint.number}"
                shards.append(Shard(name, files, None, stop - first, rows))
        return tuple(shards)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:
        number = int(shard.name.removeprefix("checkpoint "))
        for run in self.runs:
            for place, checkpoint in enumerate(run.checkpoints):
                if checkpoint.number == number:
                    readings = _CheckpointReader(self.folder, run, place).readings()
                    yield from join_episodes(readings, skip_bad=self.skip_bad)


class _CheckpointReader:
    """Reads the episodes that begin in one checkpoint of a run."""

    def __init__(self, folder: Path, run: CheckpointRun, place: int) -> None:
        self._folder, self._run, self._place = folder, run, place
        self._checkpoint = run.checkpoints[place]
        self._number = self._checkpoint.number
        self._begin = int(run.offsets[place])

    def readings(self) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        """Yield readings for `join_episodes`; the frames of an episode are read before its reading."""
        run, pads = self._run, self._checkpoint.pads
        first, stop = run.begin_in(self._place)
        if first == stop:
            return
        action, reward = self._column("action", "iu"), self._column("reward", "f")
        with self._frames(self._checkpoint) as frames:
            at = 0
            for episode in range(first, stop):
                start = int(run.starts[episode]) - self._begin
                length = int(run.stops[episode]) - self._begin - start
                before = max(at, start - pads)
                if before > at:
                    frames.skip(before - at)
                padding = frames.read(start - before)
                shape = (length + 1, *frames.header.shape[1:])
                if np.prod(shape, dtype=np.int64) > _EPISODE:
                    raise FormatError(
                        f"{self._path('terminal')} has no terminal in {plural(length, 'row')} "
                        f"from {start}"
                    )
                seen = np.empty(shape, np.uint8)
                own = min(length, self._checkpoint.fresh - start)
                frames.read_into(seen[:own])
                self._read_on(seen[own:length])
                seen[length] = seen[length - 1]
                at = start + own
                rows = slice(start, start + length)
                read = partial(self._episode, episode, seen, action[rows], reward[rows])
                zeros = (padding, action[before:start], reward[before:start])
                yield f"{self._path('observation')}, row {start}", partial(read, zeros)
            frames.finish()

    def _episode(
        self,
        episode: int,
        seen: NDArray[np.uint8],
        action: NDArray[Any],
        reward: NDArray[Any],
        padding: Sequence[NDArray[Any]],
    ) -> EpisodeBatch:
        run = self._run
        if any(column.any() for column in padding):
            raise FormatError(f"the {self._checkpoint.pads} rows before it are not zeros")
        whole = True
        if run.headless and episode == 0:
            pads = self._pads_at_head(seen, action, reward)
            seen, action, reward = seen[pads:], action[pads:], reward[pads:]
            whole = pads > 0
        flags = np.zeros((2, len(action), 1), bool)
        cut = run.cut and episode == len(run.starts) - 1
        flags[int(cut), -1] = True
        return EpisodeBatch(
            np.array([len(action)]),
            {
                ("action",): action,
                REWARD: reward[:, None],
                TERMINATED: flags[0],
                TRUNCATED: flags[1],
            },
            {("observation",): seen},
            np.zeros(1, bool),
            {
                ("checkpoint",): np.array([self._number]),
                ("initial_observation",): np.array([whole]),
            },
        )

    def _pads_at_head(
        self, seen: NDArray[np.uint8], action: NDArray[Any], reward: NDArray[Any]
    ) -> int:
        """Return the leading zero rows of a headless run, whose other padding is missing."""
        # The first of them is the last row of the checkpoint, not yet overwritten.
        if any(read_whole(self._path(name), "iuf")[-1] for name in ("action", "reward")):
            return 0
        most = min(self._checkpoint.pads, len(action)) - 1
        zeros = [not (seen[row].any() or action[row] or reward[row]) for row in range(most)]
        return [*zeros, False].index(False)

    def _path(self, name: str) -> Path:
        return self._folder / file_of(name, self._number)

    @contextmanager
    def _frames(self, checkpoint: Checkpoint) -> Iterator[NpyRows]:
        path = self._folder / file_of("observation", checkpoint.number)
        with open_rows(path, budget=_FRAMES) as frames:
            shape, dtype = frames.header.shape, frames.header.dtype
            if len(shape) != 3 or shape[0] != checkpoint.capacity or dtype != np.uint8:
                raise FormatError(
                    f"{path} is {list(shape)} of {dtype}; expected "
                    f"{plural(checkpoint.capacity, 'frame')} of "
                    "uint8, height by width"
                )
            yield frames

    def _column(self, name: str, kinds: str) -> NDArray[Any]:
        """Return a column from row 0 of the checkpoint to the end of the last episode."""
        found, before = [], None
        for place in self._run.checkpoints_of(self._place):
            one = self._run.checkpoints[place]
            path = self._folder / file_of(name, one.number)
            column = read_whole(path, kinds)
            if column.shape != (one.capacity,):
                raise FormatError(
                    f"{path} is {list(column.shape)}, and {file_of('terminal', one.number)} has "
                    f"{plural(one.capacity, 'row')}"
                )
            if before is not None and column.dtype != before.dtype:
                raise FormatError(f"{path} has items {column.dtype}, and {before.dtype} before it")
            if before is not None:
                found.append(column[-1:])
            found.append(column[: one.fresh])
            before = column
        return np.concatenate(found)

    def _read_on(self, seen: NDArray[np.uint8]) -> None:
        """Read the frames of an episode that are after the new rows of the checkpoint."""
        place, done = self._place, 0
        while done < len(seen):
            place += 1
            one = self._run.checkpoints[place]
            with self._frames(one) as frames:
                here = min(len(seen) - done - 1, one.fresh)
                frames.read_into(seen[done + 1 : done + 1 + here])
                frames.skip(one.capacity - 1 - here)
                frames.read_into(seen[done : done + 1])
                frames.finish()
            done += 1 + here
