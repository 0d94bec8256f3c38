"""Plans of `download` and `convert` for jobs of a batch queue; see `jobs.plan_file`."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, get_type_hints

from offline_data.base.config import Settings
from offline_data.base.errors import UsageError
from offline_data.base.ids import DatasetId, parse_id
from offline_data.base.progress import Progress
from offline_data.fetch.files import RemoteFile
from offline_data.formats.base import Release, Shard
from offline_data.formats.files.mapping import FileMapping, read_mapping
from offline_data.formats.options import Options, TextOptions, options_of
from offline_data.pipeline.ingest.build import BuildJob
from offline_data.pipeline.ingest.shards import (
    ShardedJob,
    ShardedRun,
    clear_published,
    convert_shards,
)
from offline_data.pipeline.jobs.plan_file import PlanFile, PlannedWork, UserPath, plan_lock, take
from offline_data.store.layout import LayoutName
from offline_data.store.library import has_manifest
from offline_data.store.publish import dataset_lock


@dataclass(frozen=True)
class _FileTable:
    path: str
    urls: tuple[str, ...]
    size: int | None
    digest: str | None
    magic: bytes
    accepts_changes: bool = False


@dataclass(frozen=True)
class _ShardTable:
    name: str
    files: tuple[str, ...]
    bytes: int | None
    episodes: int | None
    transitions: int | None = None


_File: TypeAlias = Annotated[RemoteFile, _FileTable, lambda table: RemoteFile(**vars(table))]
_Shard: TypeAlias = Annotated[Shard, _ShardTable, lambda table: Shard(**vars(table))]


@dataclass(frozen=True)
class _ReleaseTable:
    name: str
    licence: str | None
    revision: str
    local: UserPath | None
    opening: tuple[str, ...] | None
    files: tuple[_File, ...]


_RECORDED_TEXT = Annotated[TextOptions, dict, TextOptions.from_record] | None
_RECORDED_MAPPING = Annotated[FileMapping, dict, read_mapping] | None
_KINDS = {**get_type_hints(Options), "mapping": _RECORDED_MAPPING, "text": _RECORDED_TEXT}
_OptionsTable = make_dataclass(
    "_OptionsTable",
    [(name, _KINDS[name], field(default=getattr(Options, name))) for name in options_of(Options)],
)
_Options: TypeAlias = Annotated[Options, _OptionsTable, lambda table: Options(**vars(table))]


@dataclass(frozen=True)
class _JobTable:
    adapter: str
    layout: LayoutName
    parents: tuple[str, ...]
    files: tuple[dict[str, Any], ...]
    release: _ReleaseTable
    shards: tuple[_Shard, ...]
    options: _Options
    stated: tuple[int | None, int | None]
    # earlier plans have these next to the other options
    episodes: tuple[int | None, int | None] | None = None
    checkpoints: tuple[int | None, int | None] | None = None
    split: str | None = None
    text: Annotated[TextOptions, dict, TextOptions.from_record] | None = None

    @classmethod
    def of(cls, job: ShardedJob) -> _JobTable:
        build = job.build
        return cls(
            build.adapter,
            build.layout,
            build.parents,
            build.files,
            take(_ReleaseTable, job.release),
            job.shards,
            build.options,
            (job.transitions, job.episodes),
        )

    def job(self, dataset: DatasetId, destination: Path) -> ShardedJob:
        earlier = {
            name: getattr(self, name) for name in ("episodes", "checkpoints", "split", "text")
        }
        options = replace(self.options, **{k: v for k, v in earlier.items() if v is not None})
        build = BuildJob(
            dataset,
            self.adapter,
            self.layout,
            destination,
            options,
            self.files,
            self.parents,
            options.recorded(),
        )
        release = Release(**vars(self.release), options=options)
        return ShardedJob(build, release, self.shards, *self.stated)


@dataclass(frozen=True, kw_only=True)
class ShardPlan(PlanFile):
    """The file of a planned conversion, shard by shard."""

    command: ClassVar[str] = "download"
    kind: Literal["shards"] = "shards"
    table: _JobTable | None = field(metadata={"key": "job"})

    @cached_property
    def job(self) -> ShardedJob | None:
        """The conversion; None if the dataset existed before."""
        return None if self.table is None else self.table.job(parse_id(self.id), self.destination)

    def check(self) -> None:
        self.job  # noqa: B018 - raises what is wrong

    def open(self, settings: Settings, progress: Progress) -> _ShardWork | None:
        """Prepare to work at it; returns None if its dataset has been published."""
        if self.job is None or self.is_done():
            return None
        return _ShardWork(self, self.job, replace(settings, root=self.root), progress)

    def is_same(self, other: ShardPlan) -> bool:
        jobs = [plan.job for plan in (self, other) if plan.job is not None]
        return len({job.fingerprint for job in jobs}) < 2

    def is_done(self) -> bool:
        replaces = self.job is not None and self.job.build.options.force
        return self.published or (not replaces and has_manifest(self.destination))

    def clear(self, settings: Settings) -> None:
        settings, target = replace(settings, root=self.root), parse_id(self.id)
        clear_published(target, settings, self.job.work(settings) if self.job else None)


class _ShardWork(PlannedWork):
    def __init__(
        self, plan: ShardPlan, job: ShardedJob, settings: Settings, progress: Progress
    ) -> None:
        self.plan: ShardPlan = plan
        self._job, self._settings, self._progress = job, settings, progress
        self._run = ShardedRun(job, replace(settings, workers=1), progress)
        self._tasks = self._run.list_tasks()

    def missing(self) -> list[int]:
        left = self._run.missing()
        return [number for number, task in enumerate(self._tasks) if task in left]

    def run(self, tasks: Sequence[int]) -> Generator[Literal[True], None, None]:
        self._run.prepare()
        if self.plan.newer() is None:  # else another process has deleted the folder meanwhile
            with self._run.says_what_is_kept():
                yield from self._run.run([self._tasks[task] for task in tasks])

    def lock(self) -> AbstractContextManager[None]:
        return dataset_lock(self._settings.staging, self._job.build.id.folder, self._progress)

    def publish(self) -> bool:
        convert_shards(self._job, self._settings, self._progress, clear=False)
        return False


def write_plan(
    job: ShardedJob | None,
    target: DatasetId,
    destination: Path,
    file: Path,
    settings: Settings,
    progress: Progress,
    *,
    force: bool,
) -> ShardPlan:
    """Write the plan of a job (None: the dataset exists) to a file, or accept an equal plan in it.

    Raises `UsageError` if another plan exists, or tasks depend on the results of others.
    """
    tasks = 0
    if job is not None:
        uncounted = len(job.shards) > 1 and any(one.episodes is None for one in job.shards)
        if job.build.options.episodes and uncounted:
            raise UsageError(
                "This source does not tell how many episodes a shard has, and a range of them "
                "cannot be planned",
                hint="plan without --episodes, or download the range here",
            )
        tasks = len(ShardedRun(job, settings, progress).list_tasks())
    plan = ShardPlan(
        file=file,
        id=str(target),
        destination=destination.absolute(),
        root=settings.root.absolute(),
        tasks=tasks,
        published=job is None,
        table=None if job is None else _JobTable.of(job),
    )
    with plan_lock(file, progress):
        if file.exists() and not force:
            before = ShardPlan.read(file)
            if job and before.job and before.job.fingerprint == job.fingerprint:
                if not before.published:
                    return before
            elif before.id != plan.id or (job is not None and not before.published):
                raise UsageError(
                    f"There is another plan in {file}", hint="--force replaces it, or name another"
                )
        plan.write()
    return plan
