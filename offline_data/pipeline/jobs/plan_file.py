"""Plans carried out by jobs of a batch queue: each worker runs its tasks, the last one publishes.

A plan is a JSON file on a shared filesystem, changed under a lock.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

from offline_data.base.config import user_path
from offline_data.base.decode import decode
from offline_data.base.errors import (
    FormatError,
    ManifestError,
    NewerFormatError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.base.files import disk_errors, file_lock, is_unicode, write_durably
from offline_data.base.json import read_json
from offline_data.base.plurals import plural
from offline_data.store.library import Stored, entry_at, has_manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from offline_data.base.config import Settings
    from offline_data.base.progress import Progress

T = TypeVar("T")

FORMAT_VERSION = 1

UserPath: TypeAlias = Annotated[Path, str, partial(user_path, where="the path")]  # absolute

MAX_BYTES = 256 << 20  # of a plan: one of shards has about 500 for each raw file


@dataclass(frozen=True)
class _PlanVersion:
    format_version: int


@dataclass(frozen=True, kw_only=True)
class PlanFile(ABC):
    """Base of plans: a dataset to make, and the progress so far; fields are those of the file."""

    command: ClassVar[str]  # writes such plans
    file: UserPath  # its place, which is not in it
    id: str  # of the new dataset
    destination: UserPath
    root: UserPath  # of datasets, locks, raw files and work folders
    tasks: int = 0
    generation: int = 0  # times that the work was planned again after a revision
    published: bool = False

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read a plan; raises `NotFoundError`, `AccessError`, `ManifestError` (also: newer)."""
        makes = f"`offline-data {cls.command} … --plan-only --plan FILE`"
        try:
            value = read_json(file, max_bytes=MAX_BYTES)
            version = decode(_PlanVersion, value, "it", lenient=True).format_version
            if version > FORMAT_VERSION:
                raise NewerFormatError(
                    f"{file} has format {version}; this version reads up to {FORMAT_VERSION}",
                    hint="use the offline-data that made it",
                )
            plan = decode(cls, {**value, "file": str(file)}, "it", lenient=True)
            plan.check()
        except NotFoundError as error:
            raise NotFoundError(f"There is no plan {file}", hint=f"{makes} makes one") from error
        except (FormatError, UsageError) as error:
            raise ManifestError(
                f"{file} is not a plan of offline-data: {error.message.removeprefix('it: ')}",
                hint=f"it is what {makes} writes",
            ) from error
        return plan

    def write(self) -> None:
        """Write the file atomically; the caller holds its lock."""
        value = {f.metadata.get("key", f.name): getattr(self, f.name) for f in fields(self)}
        value = {"format_version": FORMAT_VERSION, **value}
        del value["file"]
        text = json.dumps(value, indent=1, ensure_ascii=False, default=_as_json) + "\n"
        if not is_unicode(text):
            raise UsageError(
                f"A path of {self.id} is not UTF-8, as the plan {self.file} must be",
                hint="rename the folder, or use a link to it with another name",
            )
        with disk_errors(self.file):
            for left in self.file.parent.glob(f".{escape(self.file.name)}.*.tmp"):  # by a kill
                left.unlink()
            write_durably(self.file, text.encode())

    @abstractmethod
    def check(self) -> None:
        """Raise `FormatError` or `UsageError` if its fields do not fit each other."""

    @abstractmethod
    def open(self, settings: Settings, progress: Progress) -> PlannedWork | None:
        """Prepare to work at it; returns None if its dataset has been published."""

    @abstractmethod
    def clear(self, settings: Settings) -> None:
        """Delete the output of its tasks, now that its dataset has been published."""

    @abstractmethod
    def is_same(self, other: Self) -> bool:
        """Return True if the tasks of another plan are those of this one."""

    def is_done(self) -> bool:
        """Return True if its dataset has been published, by any process."""
        return self.published

    def newer(self) -> Self | None:
        """Return the plan in the file if it replaces this one, or is published."""
        found = type(self).read(self.file)
        if self.is_same(found) and not found.is_done():
            return None
        return found

    def publish(self, work: PlannedWork, progress: Progress) -> bool:
        """Publish the dataset, unless there is a newer plan; returns False if this process has."""
        with work.lock():
            if self.newer() is not None:
                return True
            existed = work.publish()
            with plan_lock(self.file, progress):
                found: Any = type(self).read(self.file)
                if self.is_same(found):
                    replace(found, published=True).write()
        return existed


class PlannedWork(ABC):
    """A plan that this process works at."""

    plan: PlanFile

    @abstractmethod
    def missing(self) -> list[int]:
        """Return the unfinished tasks."""

    def damaged(self) -> list[int]:
        """Mark finished tasks with damaged rows unfinished, unless `publish` does; return them."""
        return []

    @abstractmethod
    def run(self, tasks: Sequence[int]) -> Generator[Literal[True], None, None]:
        """Run tasks, and yield True as each has finished; ends early after planning again."""

    @abstractmethod
    def lock(self) -> AbstractContextManager[None]:
        """Hold the lock of the dataset."""

    @abstractmethod
    def publish(self) -> bool:
        """Join what the tasks have written and publish it; returns True if it was there already."""


@dataclass(frozen=True)
class Share:
    """Progress of a plan after a worker has done its share."""

    plan: PlanFile
    ran: int  # by this process
    missing: tuple[int, ...]
    result: Stored | None  # if published; `existed`: by another process


def work_at(
    plan: PlanFile,
    settings: Settings,
    progress: Progress,
    choose: Callable[[PlannedWork], list[int]] | None,
) -> Share:
    """Run the chosen tasks of a plan, or of newer ones that replace it; publish if none is left.

    None: run none, not even those whose rows are damaged. Raises what `PlannedWork` raises.
    """
    begin, ran, existed = time.perf_counter(), 0, True
    while True:
        missing: tuple[int, ...] = ()
        try:
            if (work := plan.open(settings, progress)) is None:
                break
            ran = _run(work, choose(work) if choose else [])
            if not work.missing() and (damaged := work.damaged()) and choose:
                ran += _run(work, damaged)
            if not (missing := tuple(work.missing())):
                existed = plan.publish(work, progress)
        except OfflineDataError:
            if plan.newer() is None:
                raise  # else what is missing was deleted with the plan
        if (newer := plan.newer()) is None:
            return Share(plan, ran, missing, None)
        plan = newer
    path = plan.destination
    plan.clear(settings)
    if not has_manifest(path):
        raise NotFoundError(
            f"{plan.id} was made, and is not in {path} any more",
            hint=f"plan again: `offline-data {plan.command} … --plan-only --plan FILE --force`",
        )
    return Share(plan, ran, (), Stored.of(entry_at(path), begin, existed=existed))


def _run(work: PlannedWork, tasks: Sequence[int]) -> int:
    """Run tasks until there is a newer plan; returns how many were run."""
    done = 0
    try:
        with closing(work.run(tasks)) as finished:
            while done < len(tasks) and work.plan.newer() is None and next(finished, None):
                done += 1
    except KeyboardInterrupt:
        kept = len(set(tasks).difference(work.missing()))
        raise KeyboardInterrupt(
            f"interrupted; {kept} of {plural(len(tasks), 'task')} are finished and kept: "
            "run the same command again to go on"
        ) from None
    return done


def take(kind: type[T], value: object) -> T:
    """Return a dataclass whose fields are those of the same names of `value`."""
    return kind(**{field.name: getattr(value, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def _as_json(value: Any) -> Any:
    """Return a dataclass, path or bytes as `decode` reads them."""
    if isinstance(value, bytes):
        return value.hex()
    return str(value.absolute()) if isinstance(value, Path) else vars(value)


@contextmanager
def plan_lock(file: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a plan; waits, with a note, while another process holds it."""
    note = f"another process is changing {file.name}; waiting for it"
    with ExitStack() as held:
        with disk_errors(file):
            lock = file.with_name(f".{file.name}.lock")
            held.enter_context(file_lock(lock, lambda: progress.note(note)))
        yield
