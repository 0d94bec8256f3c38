"""Toy logs of Dopamine's replay buffer, in the format of its training program.

Step `t` of episode `e` has the code `1000·(e + 1) + t + 1`. The action is the code, the reward a tenth
of it, and the frame, 5 × 4, has `t % 255 + 1` above `e % 255 + 1` in its first column, and 200 in its
last element. All rows differ, and only rows before an episode are zero.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.formats.atari_dqn.log import file_of

FRAME = (5, 4)
PADS = 3
"""Number of zero rows before an episode."""


@dataclass
class ToyLog:
    """The rows added to a replay buffer during training, and when it was written."""

    capacity: int
    rows: list[tuple[int, int] | None] = field(default_factory=list)
    """Episode and step of each added row, None for a zero row."""
    written: list[tuple[int, int]] = field(default_factory=list)
    """For each checkpoint: first row, as an index into `rows`, and one past the last new row."""


def toy_step(episode: int, step: int) -> dict[str, Any]:
    """Return the recorded values of a step, except its terminal."""
    code = 1000 * (episode + 1) + step + 1
    frame = np.zeros(FRAME, np.uint8)
    frame[0, 0], frame[1, 0], frame[-1, -1] = step % 255 + 1, episode % 255 + 1, 200
    return {"observation": frame, "action": code, "reward": code / 10}


def write_replay_log(
    folder: Path, lengths: Sequence[int], *, capacity: int = 40, final: bool = False
) -> ToyLog:
    """Play episodes and write the resulting checkpoints to `folder`, which is created if missing.

    Args:
        folder: Output folder.
        lengths: Number of steps of each episode; the last one is terminal.
        capacity: Number of rows of the buffer.
        final: Whether the buffer is written at the end of training.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = ToyLog(capacity)
    ring: dict[str, NDArray[Any]] = {
        "observation": np.zeros((capacity, *FRAME), np.uint8),
        "action": np.zeros(capacity, np.int32),
        "reward": np.zeros(capacity, np.float32),
        "terminal": np.zeros(capacity, np.uint8),
    }

    def add(row: tuple[int, int] | None, *, terminal: bool = False) -> None:
        values = {"observation": 0, "action": 0, "reward": 0} if row is None else toy_step(*row)
        for name, value in {**values, "terminal": terminal}.items():
            ring[name][len(log.rows) % capacity] = value
        log.rows.append(row)

    def write(added: int) -> None:
        cursor = len(log.rows) % capacity
        columns = {
            **ring,
            "add_count": np.array(added),
            "invalid_range": (cursor - 1 + np.arange(PADS + 2)) % capacity,
        }
        for name, column in columns.items():
            write_gz(folder / file_of(name, len(log.written)), column)
        log.written.append((len(log.rows) - cursor, len(log.rows)))

    for episode, length in enumerate(lengths):
        for _ in range(PADS):
            add(None)
        for step in range(length):
            add((episode, step), terminal=step == length - 1)
            if len(log.rows) % capacity == capacity - 1:
                write(len(log.rows))
    if final:
        write(len(log.rows) % capacity)
    return log


def write_gz(path: Path, values: NDArray[Any]) -> Path:
    """Write an array in the log's format."""
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        np.save(file, values, allow_pickle=False)
    return path
