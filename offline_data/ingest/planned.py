"""One plan, done by programs that batch queues start: each runs its tasks, the last one publishes.

A plan is one JSON file, changed under a lock, on a filesystem that all machines see.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from offline_data.errors import (
    FormatError,
    ManifestError,
    NewerFormatError,
    NotFoundError,
    UsageError,
)
from offline_data.files import disk_errors, write_durably
from offline_data.ingest.options import Stored
from offline_data.store.library import entry_at, has_manifest
from offline_data.strict_json import read_json, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from offline_data.config import Settings
    from offline_data.progress import Progress

FORMAT_VERSION = 1

MAX_BYTES = 256 << 20
"""Bytes of the largest plan that is read: one of shards has about 500 for each raw file."""


class PlanFile(ABC):
    """What is to be made, and how far it is, as a file has it; of either kind."""

    command: ClassVar[str]
    """The command that writes such plans."""
    shape: ClassVar[dict[str, Any]]
    """What the fields of the file may be; see `check_shape`."""
    file: Path
    id: str
    """Of the new dataset."""
    destination: Path
    """Where the new dataset goes."""
    tasks: int
    """Number of tasks."""
    generation: int = 0
    """How often the data asked for another plan."""
    published: bool
    """Whether the dataset has been made."""

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the file of a plan.

        Raises:
            NotFoundError: There is none.
            NewerFormatError, ManifestError: It cannot be read.
            AccessError: It may not be read.
        """
        makes = f"`offline-data {cls.command} … --plan-only --plan FILE`"
        try:
            value = read_json(file, max_bytes=MAX_BYTES)
            check_shape(value, {"format_version": (int,)}, "it")
            if value["format_version"] > FORMAT_VERSION:
                raise NewerFormatError(
                    f"{file} has format {value['format_version']}; this version reads up to "
                    f"{FORMAT_VERSION}",
                    hint="use the offline-data that made it",
                )
            check_shape(value, cls.shape, "it")
            return cls.from_json(file, value)
        except NotFoundError as error:
            raise NotFoundError(f"There is no plan {file}", hint=f"{makes} makes one") from error
        except (ValueError, KeyError, TypeError, FormatError, UsageError) as error:
            raise ManifestError(
                f"{file} is no plan of offline-data: {type(error).__name__}: {error}",
                hint=f"it is what {makes} writes",
            ) from error

    def write(self) -> None:
        """Write the file, whole or not at all; the caller holds its lock."""
        value = {"format_version": FORMAT_VERSION, **self.to_json()}
        with disk_errors(self.file):
            write_durably(self.file, (json.dumps(value, indent=1) + "\n").encode())

    @classmethod
    @abstractmethod
    def from_json(cls, file: Path, value: dict[str, Any]) -> Self:
        """Make the plan of what `to_json` gave; an error of `read` where that is not sound."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return the fields of the file."""

    @abstractmethod
    def open(self, settings: Settings, progress: Progress) -> PlannedWork | None:
        """Get ready to work at it; None where its dataset has been made."""

    @abstractmethod
    def clear(self) -> None:
        """Delete what its tasks have made."""


class PlannedWork(ABC):
    """A plan that a program works at."""

    plan: PlanFile

    @abstractmethod
    def missing(self) -> list[int]:
        """Return the tasks that nobody has finished."""

    @abstractmethod
    def damaged(self) -> list[int]:
        """Return finished tasks whose rows are not what they wrote, and take them as not finished."""

    @abstractmethod
    def run_tasks(self, tasks: Sequence[int]) -> PlanFile | None:
        """Run tasks; returns what is to be done instead where the plan became another one."""

    @abstractmethod
    def newer(self) -> PlanFile | None:
        """Return the plan that the file has, if there is nothing more to do of this one."""

    @abstractmethod
    def publish(self) -> bool:
        """Make the dataset, unless another program has; returns True if one has."""


@dataclass(frozen=True)
class Share:
    """How far a plan is after a program has done its share."""

    plan: PlanFile
    ran: int
    """Tasks that this program has run."""
    missing: tuple[int, ...]
    """Tasks that nobody has finished yet."""
    result: Stored | None
    """The dataset, where it is there now; `existed` tells that another program has made it."""


def run_plan(
    plan: PlanFile, rank: int, world: int | None, settings: Settings, progress: Progress
) -> Share:
    """Run the tasks `rank`, `rank + world`, … that are not finished; publish if none is left.

    Raises:
        UsageError: No such rank.
        Others: See `PlannedWork`.
    """
    begin = time.perf_counter()
    if world is not None and not 0 <= rank < world:
        raise UsageError(
            f"rank is {rank}, and the ranks of {world} programs are 0 to {world - 1}",
            hint=f"number the array from 0: --array=0-{max(world - 1, 0)}",
        )
    tasks = max(plan.tasks, 1)
    if world is None and not 0 <= rank < tasks and not plan.generation:
        raise UsageError(
            f"rank is {rank}, and the tasks are 0 to {tasks - 1}",
            hint="say how many programs there are: --world N",
        )
    while True:
        work = plan.open(settings, progress)
        if work is None:
            return _made(plan, begin, existed=True)
        mine = [t for t in work.missing() if t % (world or work.plan.tasks) == rank]
        newer = work.run_tasks(mine)
        if newer is None and not work.missing():
            mine += (again := work.damaged())
            newer = work.run_tasks(again)
        if newer is None:
            return _ended(work, len(mine), begin)
        plan = newer


def finish_plan(plan: PlanFile, settings: Settings, progress: Progress) -> Share:
    """Publish the dataset if every task is finished; runs none. Raises what `run_plan` raises."""
    begin = time.perf_counter()
    work = plan.open(settings, progress)
    if work is None:
        return _made(plan, begin, existed=True)
    if not work.missing():
        work.damaged()
    return _ended(work, 0, begin)


def _ended(work: PlannedWork, ran: int, begin: float) -> Share:
    """Publish where nothing is missing."""
    missing = tuple(work.missing())
    if missing:
        newer = work.newer()
        if newer is None or not newer.published:
            return Share(work.plan, ran, missing, None)
        return _made(newer, begin, existed=True, ran=ran)
    return _made(work.plan, begin, existed=work.publish(), ran=ran)


def _made(plan: PlanFile, begin: float, *, existed: bool, ran: int = 0) -> Share:
    """Return the share of a plan whose dataset is there; what its tasks have made goes."""
    path = plan.destination
    plan.clear()
    if not has_manifest(path):
        raise NotFoundError(
            f"{plan.id} was made, and is not in {path} any more",
            hint=f"plan again: offline-data {plan.command} … --plan-only --plan FILE --force",
        )
    entry, seconds = entry_at(path), time.perf_counter() - begin
    return Share(plan, ran, (), Stored(entry.id, path, entry.manifest, existed, seconds))


def check_shape(value: Any, shape: Any, name: str) -> None:
    """Raise `ValueError` where a value of the file is of another type, `KeyError` where it is not."""
    kinds = shape if isinstance(shape, tuple) else (type(shape),)
    if type(value) not in {type(None) if kind is None else kind for kind in kinds}:
        expected = " or ".join("null" if kind is None else kind.__name__ for kind in kinds)
        raise ValueError(f"{name} is {shown(value)}, expected {expected}")
    if isinstance(shape, dict):
        for field, inner in shape.items():
            check_shape(value[field], inner, field)
    elif isinstance(shape, list):
        for one in value:
            check_shape(one, shape[0], f"one of {name}")


@contextmanager
def plan_lock(file: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a plan; waits while another process changes it, and says so."""
    from filelock import FileLock, Timeout

    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file.with_name(f".{file.name}.lock"))
        try:
            lock.acquire(blocking=False)
        except Timeout:
            progress.note(f"another process is changing {file.name}; waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
