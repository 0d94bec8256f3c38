"""Datasets of several shards: each is fetched, converted and freed, then all are joined.

A shard becomes a small dataset directory by the same steps as a whole dataset: read in a child
process, written, audited, hashed. Order and bytes of the whole do not depend on which worker converts
a shard, or when.

    .staging/<key>.shards/<fingerprint>/
        shards/00017/           the rows of a finished shard, a dataset directory
        shards/00017.3f2a9c01/  an attempt: its raw files and unfinished output
        finished/00017.record   written at last: the shard is finished
        00017.lock              held by the process that converts it
        begun                   until the dataset is published
        dataset/                rows joined so far; dataset.joined: of how many shards

The fingerprint covers the release, the options and the version of this package: shards of anything
else are not found. Raw files are on the disk for at most as many shards as there are workers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, OfflineDataError
from offline_data.base.files import (
    check_relative,
    disk_errors,
    file_lock,
    free_bytes,
    is_file,
    unless_locked,
)
from offline_data.base.ids import DatasetId
from offline_data.base.json import as_unicode, shown
from offline_data.base.plurals import plural
from offline_data.base.progress import Progress, SilentProgress
from offline_data.base.version import __version__
from offline_data.episode import Skipped
from offline_data.episode.notes import join_notes
from offline_data.fetch.files import RemoteFile
from offline_data.formats.base import Release, Shard
from offline_data.pipeline.ingest.build import Build, BuildJob
from offline_data.pipeline.ingest.conversion import (
    ConversionProcess,
    RawDescription,
    fetch_lacking,
    finish_and_publish,
    open_release,
)
from offline_data.pipeline.ingest.raw import (
    describe_file,
    fetch_files,
    files_of,
    forget_damaged,
    free,
    opening_files,
)
from offline_data.pipeline.ingest.reading import NoEpisodesError
from offline_data.pipeline.jobs.executors import (
    Executor,
    LocalProcesses,
    run_tasks,
    says_what_is_kept,
)
from offline_data.pipeline.jobs.workdir import WorkDir, read_checked, write_checked
from offline_data.store.cache import asked_to_stay
from offline_data.store.manifest import Manifest, read_manifest
from offline_data.store.publish import SHARDS, lock_name, publish, recover

Range: TypeAlias = "tuple[int, int | None] | None"  # half-open, of a shard's episodes; None: all

Task: TypeAlias = "tuple[int, Range]"  # number of a shard, and its episodes

BEGUN = "begun"  # file in the work folder until the dataset is published

_PREFETCHED = 1  # shards that are fetched while the workers convert others


@dataclass(frozen=True)
class ShardedJob:
    """The conversion of a dataset, shard by shard; the same in every process."""

    build: BuildJob  # its `files` are local raw files
    release: Release
    shards: tuple[Shard, ...]
    transitions: int | None = None  # as the source states, of the whole dataset
    episodes: int | None = None  # as `transitions`

    @classmethod
    def of(cls, build: BuildJob, release: Release, opened: RawDescription) -> ShardedJob:
        """Return the conversion of an opened release; raises `IntegrityError` for foreign files."""
        shards = tuple(opened.shards)
        job = cls(
            replace(build, recorded_options=build.options.recorded()),
            replace(release, shards=None),  # known by now
            shards,
            opened.transitions,
            opened.episodes,
        )
        check_files(release, shards)
        return job

    @cached_property
    def fingerprint(self) -> str:
        """Digits that identify release, options and version."""
        keep_raw = {"keep_raw": False}  # does not change any row
        files = [(file.path, file.size, file.digest) for file in self.release.files]
        identity = {
            "version": __version__,
            "id": str(self.build.id),
            "adapter": self.build.adapter,
            "layout": self.build.layout,
            "options": {
                **self.build.options.recorded(),
                **keep_raw,
                "force": self.build.options.force,
            },
            "files": files,
            "shards": [asdict(shard) for shard in self.shards],
            "local": str(self.release.local and self.release.local.absolute()),
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    @cached_property
    def users(self) -> dict[str, list[int]]:
        """Numbers of the shards that list each raw file."""
        users: dict[str, list[int]] = {}
        for number, shard in enumerate(self.shards):
            for path in set(shard.files):
                users.setdefault(path, []).append(number)
        return users

    def work(self, settings: Settings) -> WorkDir:
        """Return the work folder."""
        key = lock_name(self.build.id.folder)
        return WorkDir(settings.staging / f"{key}{SHARDS}" / self.fingerprint[:12])


@dataclass(frozen=True)
class ShardRecord:
    """Record of a finished shard."""

    seen: int  # episodes of the shard up to the last requested one
    episodes: int  # written
    files: tuple[dict[str, Any], ...] = ()
    skipped: tuple[dict[str, Any], ...] = ()  # only if no row was written
    notes: tuple[str, ...] = field(default=(), compare=False)  # of fetching and converting


_RECORDED = ("seen", "episodes", "files", "skipped")  # on the disk


class _Notes(SilentProgress):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def note(self, message: str) -> None:
        self.messages.append(message)


@dataclass(frozen=True)
class ConvertShard:
    """Runs one task: fetches the files of a shard, converts it, and frees them; see `Executor`.

    It may run on any machine and repeatedly: a finished shard is not converted again.
    """

    job: ShardedJob
    settings: Settings
    stay: frozenset[str]  # digests of raw files to keep

    def __call__(self, task: Task) -> ShardRecord:
        """Convert the shard; raises what `download` raises, naming the shard."""
        (number, episodes), notes = task, _Notes()
        shard, work = self.job.shards[number], self.job.work(self.settings)
        place = work.shard(number)
        attempt = place.with_name(f"{place.name}.{os.urandom(4).hex()}")
        with ExitStack() as stack, naming(shard, attempt / "raw"):
            waits = partial(notes.note, f"another process converts shard {shown(shard.name)}")
            with disk_errors(work.path):
                stack.enter_context(file_lock(work.path / f"{place.name}.lock", waits))
            record = read_record(work, number)
            if record is None and not (work.path / BEGUN).exists():  # published by another process
                return ShardRecord(0, 0)
            if record is None:
                for left in place.parent.glob(f"{place.name}.*/"):
                    shutil.rmtree(left, ignore_errors=True)
                stack.callback(shutil.rmtree, attempt, ignore_errors=True)
                record = self._convert(shard, episodes, attempt, notes)
                with disk_errors(work.path):
                    if record.episodes:
                        shutil.rmtree(place, ignore_errors=True)
                        publish(attempt / "dataset", place)
                    about = {name: getattr(record, name) for name in _RECORDED}
                    about = json.loads(as_unicode(json.dumps(about, ensure_ascii=False)))
                    write_checked(work.record(number), about, {}, durable=True)
            self.free(record)
        return replace(record, notes=tuple(notes.messages))

    def free(self, record: ShardRecord) -> None:
        """Delete the raw files of a finished shard, except those that others need or are kept."""
        job = self.job
        if job.release.local is not None or job.build.options.keep_raw:
            return
        opening, work = {file.path for file in opening_files(job.release)}, job.work(self.settings)
        done = [
            file
            for file in record.files
            if file["path"] not in opening
            and file["sha256"] not in self.stay
            and all(is_file(work.record(n)) for n in job.users.get(file["path"], ()))
        ]
        free(done, self.settings)

    def _convert(
        self, shard: Shard, episodes: Range, attempt: Path, notes: Progress
    ) -> ShardRecord:
        job, settings, path = self.job, self.settings, self.job.release.local
        files: tuple[dict[str, Any], ...] = ()
        place = attempt / "raw"
        with ExitStack() as stack:
            if path is None:
                path = place
                own, opening = files_of(job.release, shard), opening_files(job.release)
                fetched = fetch_files(opening, settings, path, notes)
                new = fetch_files(own, settings, path, notes, force=job.build.options.force)
                stack.enter_context(
                    forget_damaged((*fetched, *new), (*opening, *own), settings, self.stay)
                )
                files = tuple(map(describe_file, (*fetched, *new)))
            process = stack.enter_context(ConversionProcess(path))
            process.open(partial(open_release, job.build.adapter, job.release))

            def fetch(some: Sequence[RemoteFile]) -> None:
                nonlocal files
                more = fetch_files(some, settings, place, notes, force=job.build.options.force)
                stack.enter_context(forget_damaged(more, some, settings, self.stay))
                files += tuple(map(describe_file, more))

            fetch_lacking(process, job.release, shard, fetch)
            first = episodes[0] if episodes else 0
            if first and shard.episodes is None and (seen := process.count(shard)) <= first:
                return ShardRecord(seen, 0, files)
            options = replace(job.build.options, episodes=episodes)
            written, build_job = 0, replace(job.build, files=files, options=options)
            with process.writing(build_job, 1, attempt / "dataset", shard) as build:
                try:
                    while done := build.step():
                        written += done
                except NoEpisodesError as error:
                    return ShardRecord(first, 0, files, tuple(map(vars, error.skipped)))
                for warning in build.late_warnings:
                    notes.note(warning)
            return ShardRecord(first + written, written, files)


class ShardedRun:
    """The shards of a job in this process: finished ones, and tasks that remain."""

    def __init__(self, job: ShardedJob, settings: Settings, progress: Progress) -> None:
        self.job, self.settings, self.progress = job, settings, progress
        self.work = job.work(settings)
        self._stay = frozenset(asked_to_stay(settings))

    def list_tasks(self) -> list[Task]:
        """List the tasks, in order, up to the first whose range is not yet known."""
        if self.job.build.options.episodes is None:
            return [(number, None) for number in range(len(self.job.shards))]
        first, stop = self.job.build.options.episodes
        tasks: list[Task] = []
        before = 0
        for number, shard in enumerate(self.job.shards):
            if stop is not None and before >= stop:
                break
            count = shard.episodes
            if count is None and (record := read_record(self.work, number)) is not None:
                count = record.seen
            end = None if stop is None or (count and before + count <= stop) else stop - before
            begin = max(0, (first or 0) - before)
            if count is None or begin < count:
                tasks.append((number, (begin, end) if begin or end is not None else None))
            if count is None:
                break
            before += count
        return tasks

    def missing(self) -> list[Task]:
        """List the unfinished tasks."""
        return [task for task in self.list_tasks() if read_record(self.work, task[0]) is None]

    def recover(self) -> None:
        """Delete remains of a kill, and mark shards without rows as unfinished."""
        from offline_data.store.join import joined_parts
        from offline_data.store.reader import DatasetReader

        free_raw = ConvertShard(self.job, self.settings, self._stay).free
        for number, _ in self.list_tasks():
            if (record := read_record(self.work, number)) is not None:
                free_raw(record)
        parts = self.parts()
        done = joined_parts([self.work.shard(number) for number in parts], self.work.dataset)
        for number in parts[done:]:
            try:
                DatasetReader(self.work.shard(number)).check_files()
            except OfflineDataError:
                self.forget(number)

    def forget(self, number: int) -> None:
        """Mark a shard as unfinished."""
        with disk_errors(self.work.path):
            self.work.record(number).unlink(missing_ok=True)

    def prepare(self) -> None:
        """Create the work folder, whose deletion shows other processes that all is published."""
        with disk_errors(self.work.path):
            while True:
                self.work.path.mkdir(parents=True, exist_ok=True)
                with suppress(FileNotFoundError):  # another process is just deleting it
                    (self.work.path / BEGUN).touch()
                    return

    def run(
        self, tasks: Sequence[Task], executor: Executor | None = None
    ) -> Generator[Literal[True], None, None]:
        """Run tasks, and yield True as each has finished; raises what `download` raises."""
        job = ConvertShard(self.job, self.settings, self._stay)
        who, label = executor or self._local(len(tasks)), f"convert {self.job.build.id.name}"
        with run_tasks(who, job, tasks, self.progress, (label, "shards")) as answers:
            notes: list[str] = []
            for _, record in answers:
                notes += record.notes
                yield True
        for note in join_notes(notes):
            self.progress.note(note)

    def publish(self) -> None:
        """Join the shards and move the dataset to its destination; the caller holds the lock.

        Raises `NoEpisodesError` without a requested episode, `DamagedPartError` for damaged rows,
        `FormatError` for features that differ between shards.
        """
        from offline_data.store.join import join

        job, dataset, parts = self.job, self.work.dataset, self.parts()
        if not parts:
            records = self._records()
            seen = sum(shard.episodes or 0 for shard in job.shards)
            seen = seen or sum(record.seen for record in records)
            skipped = [Skipped(**entry) for record in records for entry in record.skipped]
            raise NoEpisodesError.among(seen, skipped, job.build.options.episodes)
        folders = list(map(self.work.shard, parts))
        names = [f"shard {shown(job.shards[number].name)}" for number in parts]
        recover(dataset, job.build.destination)
        join(folders, dataset, self._header(folders), self.progress, names=names, consume=True)
        (self.work.path / BEGUN).unlink(missing_ok=True)  # see `clear_published`
        publish(dataset, job.build.destination, self.progress)

    def clear(self) -> None:
        """Delete the work folder, and the raw files of all shards unless they are kept."""
        _clear(self.work, self.settings, None if self.job.build.options.keep_raw else self._stay)

    def says_what_is_kept(self) -> AbstractContextManager[None]:
        """After a failure, tell how many finished shards are kept."""

        def keep() -> tuple[str, bool]:
            done = len(self.work.numbers())
            kept = f"{done} of {plural(len(self.job.shards), 'shard')} are finished and kept"
            return f"{kept}: run the same command again to continue", done > 0

        return says_what_is_kept(keep, self.progress)

    def _local(self, tasks: int) -> Executor:
        """Return local workers, as many as there is disk space for their raw files."""
        if self.job.release.local is not None:
            return LocalProcesses(max(1, min(self.settings.workers, tasks)))
        sizes = {file.path: file.size or 0 for file in self.job.release.files}
        largest = max(
            shard.bytes or sum(sizes[path] for path in shard.files) for shard in self.job.shards
        )
        room = free_bytes(self.settings.downloads) // 2 // max(1, largest)
        return LocalProcesses(max(1, min(self.settings.workers + _PREFETCHED, tasks, room)))

    def parts(self) -> list[int]:
        """Return the finished shards that have rows."""
        found = {number: read_record(self.work, number) for number, _ in self.list_tasks()}
        return [number for number, record in found.items() if record and record.episodes]

    def _header(self, folders: Sequence[Path]) -> Manifest:
        """Return the manifest of the whole, without tables, counts and the notes of shards."""
        manifests = [read_manifest(folder) for folder in folders]
        job, notes = self.job, list[str]()
        if job.build.options.episodes is None:
            for what in ("transitions", "episodes"):
                stated, found = getattr(job, what), sum(one.counts[what] for one in manifests)
                if stated not in {None, found}:
                    notes.append(f"The source states {stated:,} {what}; it has {found:,}.")
        order = {file.path: place for place, file in enumerate(job.release.files)}
        files = {f["path"]: f for record in self._records() for f in record.files}
        return replace(
            manifests[0],
            tables={},
            counts={},
            digests={},
            non_finite={},
            audit={},
            notes=tuple(notes),
            skipped=tuple(entry for record in self._records() for entry in record.skipped),
            files=tuple(files[path] for path in sorted(files, key=order.__getitem__))
            or job.build.files,
        )

    def _records(self) -> list[ShardRecord]:
        found = (read_record(self.work, number) for number in range(len(self.job.shards)))
        return [record for record in found if record]


def convert_whole(
    process: ConversionProcess,
    build: Build,
    settings: Settings,
    progress: Progress,
    folder: Path,
    *,
    divide: bool,
) -> ShardedJob | None:
    """Convert and publish a dataset of one shard; return the job of one with several, or to `divide`.

    `process` has the raw data, or the files needed to open them; `folder` is for staging.
    """
    release, job = build.release, build.job
    opened = process.open(partial(open_release, job.adapter, release))
    if divide or release.opening is not None or len(opened.shards) > 1:
        for warning in opened.warnings:
            progress.note(warning)
        return ShardedJob.of(job, release, opened)
    with process.writing(job, settings.workers, folder) as writing:
        finish_and_publish(writing, job, progress, folder)
    return None


def convert_shards(
    job: ShardedJob,
    settings: Settings,
    progress: Progress,
    executor: Executor | None = None,
    *,
    clear: bool = True,
) -> None:
    """Convert all unfinished shards, join them, and publish; the caller holds the lock.

    With `clear` what they have left is deleted; else the caller does that. Raises what `download`
    raises; `FormatError` names the shard, and `WorkerDiedError` if a process died twice with one.
    """
    from offline_data.store.join import DamagedPartError

    run = ShardedRun(job, settings, progress)
    again: set[int] = set()
    with run.says_what_is_kept():
        run.prepare()
        run.recover()
        while True:
            while tasks := run.missing():
                done = len(run.list_tasks()) - len(tasks)
                if done and not again:
                    progress.note(f"resuming: {done} of {plural(len(job.shards), 'shard')} done")
                with closing(run.run(tasks, executor)) as finished:
                    for _ in finished:
                        pass
            try:
                run.publish()
            except DamagedPartError as error:
                number = run.parts()[error.part]
                if number in again:
                    raise
                again.add(number)
                progress.note(f"{error.message}; converting it again")
                run.forget(number)
            else:
                break
        if clear:
            run.clear()


def clear_published(dataset: DatasetId, settings: Settings, own: WorkDir | None = None) -> None:
    """Delete what a process has left that was killed after it had published a dataset.

    That is, every work folder without `BEGUN` and without an unfinished dataset; also `own`, of a
    job known to be published. Nothing happens while another process writes the dataset.
    """
    name = lock_name(dataset.folder)

    def clear() -> None:
        for work in map(WorkDir, (settings.staging / f"{name}{SHARDS}").glob("*")):
            is_left = work == own or not (work.path / BEGUN).exists()
            if is_left and not any(work.path.glob("dataset*")):
                _clear(work, settings, asked_to_stay(settings))

    if (settings.staging / f"{name}{SHARDS}").exists():
        with disk_errors(settings.staging):
            unless_locked(settings.staging / f"{name}.lock", clear)


def _clear(work: WorkDir, settings: Settings, stay: Collection[str] | None) -> None:
    """Delete a work folder and, but for those that `stay` (None: all), its shards' raw files."""
    if stay is not None:
        records = [read_record(work, number) for number in work.numbers()]
        files = [file for record in records if record for file in record.files]
        free([file for file in files if file["sha256"] not in stay], settings)
    work.clear()
    with suppress(OSError):  # not empty: other work on the same dataset
        work.path.parent.rmdir()


def check_files(release: Release, shards: Sequence[Shard]) -> None:
    """Raise unless all files of shards belong to the release and lie inside its folder."""
    listed = {file.path for file in release.files}
    for shard in shards:
        with naming(shard):
            for path in shard.files:
                check_relative(path)
                if release.local is None and path not in listed:
                    raise FormatError(
                        f"it needs {shown(path)}, which is none of the files of the release"
                    )


def read_record(work: WorkDir, number: int) -> ShardRecord | None:
    """Read the record of a shard; None where it is not finished, or the record is damaged."""
    found = read_checked(work.record(number))
    if found is None:
        return None
    seen, episodes, files, skipped = (found[0][name] for name in _RECORDED)
    return ShardRecord(seen, episodes, tuple(files), tuple(skipped))


@contextmanager
def naming(shard: Shard, raw: Path | None = None) -> Iterator[None]:
    """Make errors of the block name a shard, and not the folder of its raw files."""
    try:
        yield
    except OfflineDataError as error:
        said = error.message if raw is None else without_folder(error.message, raw)
        raise type(error)(f"Shard {shown(shard.name)}: {said}", hint=error.shell_hint) from error


def without_folder(message: str, raw: Path) -> str:
    """Return a message that names raw files, but not the folder they are in for a while."""
    return message.replace(f"{raw}/", "").replace(str(raw), "it")
