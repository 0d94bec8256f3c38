"""Parents with one of everything, runs of the engine without torch, and executors that misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.progress import SILENT, Progress, SilentProgress
from offline_data.episode import Key
from offline_data.pipeline.jobs.processes.protocol import dumps, loads
from offline_data.pipeline.preprocess import plan as planning
from offline_data.pipeline.preprocess.engine import preprocess
from offline_data.pipeline.preprocess.job import Job, RunOptions, Stage
from offline_data.store.layout import LayoutName
from offline_data.store.library import Stored
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    import pytest  # programs that tests start do without it

LENGTHS = [3, 1, 4, 2, 7, 1, 5]


def rich_batch(lengths: Sequence[int] = LENGTHS, unknown_final: Sequence[int] = (3,)) -> Any:
    """Make toy episodes with leaves of every kind; every value tells its row."""
    batch = toy_batch(lengths, text=True, unknown_final=unknown_final)
    codes: NDArray[Any] = batch.observations["info", "code"]
    before = np.delete(codes, np.cumsum(batch.lengths + 1) - 1)
    episodes = np.arange(len(batch.lengths))
    pixels = np.arange(40 * 40 * 3).reshape(40, 40, 3)
    observations: dict[Key, Any] = {
        **batch.observations,
        ("observation", "image"): ((codes[:, None, None, None] * 7 + pixels) % 255 + 1).astype(
            "u1"
        ),
        ("observation", "half"): (codes[:, None] % 1000 + np.array([0.25, 0.5, 0.75])).astype("f2"),
        ("state",): np.stack([codes + 0.5j, codes - 2j], axis=1).astype("c8"),
        ("info", "nothing"): np.zeros((len(codes), 0), np.float32),
    }
    steps: dict[Key, Any] = {
        **batch.steps,
        ("intent",): np.stack([before, -before], axis=1).astype(np.int16),
        ("plan", "words"): np.array([f"plan {code % 5}" for code in before], object),
        ("next", "info", "cost"): (before / 3).astype(np.float32),
        ("next", "info", "even"): before % 2 == 0,
    }
    extras: dict[Key, Any] = {
        **batch.episodes,
        ("label",): np.array([f"label {number % 3}" for number in episodes], object),
        ("goal",): (episodes[:, None] * 10 + np.array([1.5, 2.5])),
        ("file",): episodes + 7000,
    }
    return replace(batch, observations=observations, steps=steps, episodes=extras)


def write_rich(
    folder: Path, lengths: Sequence[int] = LENGTHS, *, layout: LayoutName = "compact"
) -> Path:
    """Write such episodes as a dataset directory."""
    write_toy(folder, [rich_batch(lengths)], layout=layout, dataset="local:rich@7")
    return folder


def write_plain(folder: Path, lengths: Sequence[int] = LENGTHS, **more: Any) -> Path:
    """Write toy episodes as a dataset directory."""
    write_toy(folder, [toy_batch(lengths, **more)])
    return folder


def make(
    parent: Path,
    stages: Sequence[Stage],
    dest: Path,
    settings: Settings,
    *,
    progress: Progress = SILENT,
    **options: Any,
) -> Stored:
    """Make a dataset as `ds.preprocess` does; without functions no torch is imported."""
    chosen = RunOptions(**{"audit": "all", **options})
    job = Job(parent, tuple(stages), None, dest, chosen)
    return preprocess(job, settings, progress)


def small_groups(monkeypatch: pytest.MonkeyPatch, rows: int = 4, width: int = 200) -> None:
    """Let groups be of few rows, and tasks of few groups: what is large for tests is small."""
    monkeypatch.setattr(planning, "GROUP_BYTES", rows * width)
    monkeypatch.setattr(planning, "TASK_BYTES", 2 * rows * width)


class Shuffled:
    """Runs pickled copies of tasks in this process, last one first."""

    name = "shuffled"

    def __init__(self, *, shards: bool = False) -> None:
        self.shards = shards
        self.ran: list[int] = []
        self.passes = 0

    def run(
        self,
        job: Callable[[Any], Any],
        tasks: Sequence[Any],
        progress: Progress,  # noqa: ARG002 - nobody dies
    ) -> Iterator[tuple[int, Any]]:
        self.passes += 1
        packed = dumps(job)
        for number, task in sorted(enumerate(tasks), reverse=True):
            self.ran.append(task)
            answer = loads(packed)(task)
            yield number, loads(dumps(answer))


class Stopping(Shuffled):
    """Is interrupted after so many tasks."""

    name = "stopping"

    def __init__(
        self, after: int, *, shards: bool = False, by: type[BaseException] = KeyboardInterrupt
    ) -> None:
        super().__init__(shards=shards)
        self.after, self.by = after, by

    def run(
        self, job: Callable[[Any], Any], tasks: Sequence[Any], progress: Progress
    ) -> Iterator[tuple[int, Any]]:
        for found in super().run(job, tasks, progress):
            yield found
            if len(self.ran) == self.after:
                raise self.by


class InOrder:
    """Runs tasks as they are, and is interrupted once: after so many."""

    name, shards = "in order", False

    def __init__(self, after: int) -> None:
        self.after, self.ran = after, 0

    def run(self, job: Any, tasks: Any, progress: Any) -> Any:  # noqa: ARG002 - nobody dies
        for number, task in enumerate(tasks):
            if self.ran == self.after:
                self.after = -1
                raise KeyboardInterrupt
            self.ran += 1
            yield number, job(task)


class Notes(SilentProgress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)
