"""Plans of `download` and `convert` for jobs of a batch queue; see `planned`.

The file describes the work; finished shards are in the work folder below the root, where `download`
of the same dataset finds them, too.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from offline_data.config import user_path
from offline_data.errors import UsageError
from offline_data.fetch.files import RemoteFile
from offline_data.ids import parse_id
from offline_data.ingest.build import BuildJob
from offline_data.ingest.options import Options
from offline_data.ingest.planned import PlanFile, PlannedWork, check_shape, plan_lock
from offline_data.ingest.shards import ShardedJob, ShardedRun, convert_shards
from offline_data.sources.base import Release, Shard
from offline_data.sources.text_options import TextOptions
from offline_data.store.library import has_manifest
from offline_data.store.publish import dataset_lock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.ids import DatasetId
    from offline_data.progress import Progress
    from offline_data.store.layout import LayoutName


@dataclass(frozen=True)
class ShardPlan(PlanFile):
    """The file of a planned conversion, shard by shard."""

    command: ClassVar[str] = "download"
    kind: ClassVar[str] = "shards"
    shape: ClassVar[dict[str, Any]] = {
        "kind": (str,),
        "id": (str,),
        "destination": (str,),
        "root": (str,),
        "tasks": (int,),
        "published": (bool,),
        "job": (dict, None),
    }
    file: Path
    root: Path
    """Root of datasets, raw files and work folders."""
    job: ShardedJob | None
    """The conversion; None if the dataset existed before."""
    id: str
    destination: Path
    tasks: int = 0
    published: bool = False

    @classmethod
    def from_json(cls, file: Path, value: dict[str, Any]) -> ShardPlan:
        """See `PlanFile`."""
        root, destination = (user_path(value[name], name) for name in ("root", "destination"))
        job = None if value["job"] is None else _job(value["job"], value["id"], destination)
        return cls(file, root, job, value["id"], destination, value["tasks"], value["published"])

    def to_json(self) -> dict[str, Any]:
        """See `PlanFile`."""
        return {
            "kind": self.kind,
            "id": self.id,
            "destination": str(self.destination),
            "root": str(self.root),
            "tasks": self.tasks,
            "published": self.published,
            "job": None if self.job is None else _json_of(self.job),
        }

    def open(self, settings: Settings, progress: Progress) -> _ShardWork | None:
        """Prepare to work at it; returns None if its dataset has been published."""
        if self.job is None or self.is_there():
            return None
        return _ShardWork(self, self.job, replace(settings, root=self.root), progress)

    def is_there(self) -> bool:
        """Return True if the dataset has been published by any process."""
        replaces = self.job is not None and self.job.options.force
        return self.published or (not replaces and has_manifest(self.destination))

    def clear(self) -> None:
        """Do nothing: publishing has deleted the output of the tasks."""


class _ShardWork(PlannedWork):
    """A plan that this process works at."""

    def __init__(
        self, plan: ShardPlan, job: ShardedJob, settings: Settings, progress: Progress
    ) -> None:
        self.plan: ShardPlan = plan
        self._job, self._settings, self._progress = job, settings, progress
        self._run = ShardedRun(job, replace(settings, workers=1), progress)
        self._tasks = self._run.needed()

    def missing(self) -> list[int]:
        """Return the unfinished tasks."""
        left = self._run.missing()
        return [number for number, task in enumerate(self._tasks) if task in left]

    def damaged(self) -> list[int]:
        """Return nothing: `publish` converts damaged shards again."""
        return []

    def newer(self) -> ShardPlan | None:
        """Return the plan once its dataset has been published."""
        found = ShardPlan.read(self.plan.file)
        return replace(found, published=True) if found.is_there() else None

    def run_tasks(self, tasks: Sequence[int]) -> ShardPlan | None:
        """Run tasks; returns the plan if its dataset has been published meanwhile."""
        if tasks:
            self._run.prepare()  # before checking the plan: publishing deletes the folder last
        if (newer := self.newer()) is None and tasks:
            with self._run.says_what_is_kept():
                self._run.run([self._tasks[task] for task in tasks])
        return newer

    def publish(self) -> bool:
        """Join and publish the shards, unless another process has; returns True if one has."""
        plan, job = self.plan, self._job

        def told() -> None:
            with plan_lock(plan.file, self._progress):
                replace(plan, published=True).write()

        with dataset_lock(self._settings.staging, job.build.id.folder, self._progress):
            if self.newer() is not None:
                return True
            convert_shards(job, self._settings, self._progress, published=told)
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
    """Write the plan of a job to a file, or accept an equal plan in it.

    Args:
        job: The conversion; None if the dataset exists already.
        target: Its id.
        destination: Its directory.
        file: Path on a filesystem that all machines share, as the root is.
        settings: The root.
        progress: Gets a note while waiting for a lock.
        force: Whether to replace another plan.

    Raises:
        UsageError: Another plan exists, or tasks depend on the results of others.
    """
    tasks = 0
    if job is not None:
        uncounted = len(job.shards) > 1 and any(one.episodes is None for one in job.shards)
        if job.options.episodes and uncounted:
            raise UsageError(
                "This source does not tell how many episodes a shard has, and a range of them "
                "cannot be planned",
                hint="plan without --episodes, or download the range here",
            )
        tasks = len(ShardedRun(job, settings, progress).needed())
    root = settings.root.absolute()
    plan = ShardPlan(file, root, job, str(target), destination.absolute(), tasks, job is None)
    with plan_lock(file, progress):
        if file.exists() and not force:
            before = ShardPlan.read(file)
            if job and before.job and before.job.fingerprint == job.fingerprint:
                if not before.published:
                    return before
            elif before.id != plan.id or not before.published:
                raise UsageError(
                    f"There is another plan in {file}", hint="--force replaces it, or name another"
                )
        plan.write()
    return plan


_NUMBER, _TEXT = (int, None), (str, None)
_FILE = {"path": (str,), "urls": [(str,)], "size": _NUMBER, "digest": _TEXT, "magic": (str,)}
_SHARD = {"name": (str,), "files": [(str,)], "bytes": _NUMBER, "episodes": _NUMBER}
_OPTIONS: dict[str, Any] = {
    "layout": _TEXT,
    "strict": (bool,),
    "audit": (float, int, str),
    "keep_raw": (bool,),
    "force": (bool,),
    "keep_episodes": (bool,),
    "skip_bad_episodes": (bool,),
    "images": _TEXT,
}
_RANGES = ("episodes", "checkpoints")
_RELEASE: dict[str, Any] = {
    "name": (str,),
    "licence": _TEXT,
    "revision": (str,),
    "keep_episodes": (bool,),
    "skip_bad_episodes": (bool,),
}
_JOB: dict[str, Any] = {
    "adapter": (str,),
    "layout": (str,),
    "parents": [(str,)],
    "files": [{}],
    "release": {
        **_RELEASE,
        "local": _TEXT,
        "opening": (list, None),
        "files": [_FILE],
    },
    "shards": [_SHARD],
    "options": _OPTIONS,
    **dict.fromkeys(_RANGES, (list, None)),
    "split": _TEXT,
    "text": (dict, None),
    "stated": [_NUMBER],
}
"""Types of the fields of the file."""


def _json_of(job: ShardedJob) -> dict[str, Any]:
    build, release = job.build, job.release
    return {
        "adapter": build.adapter,
        "layout": build.layout,
        "parents": build.parents,
        "files": build.files,
        "release": {
            **{name: getattr(release, name) for name in _RELEASE},
            "local": None if release.local is None else str(release.local.absolute()),
            "opening": release.opening,
            "files": [{**asdict(file), "magic": file.magic.hex()} for file in release.files],
        },
        "shards": [asdict(shard) for shard in job.shards],
        "options": {name: getattr(job.options, name) for name in _OPTIONS},
        **{name: getattr(job.options, name) for name in _RANGES},
        "split": release.split,
        "text": release.text.to_json() if release.text else None,
        "stated": [job.transitions, job.episodes],
    }


def _job(value: dict[str, Any], name: str, destination: Path) -> ShardedJob:
    """Read the job of a file; raises `KeyError`, `TypeError` or `ValueError` if invalid."""
    value = {"split": None, **value}  # not in plans of before
    check_shape(value, _JOB, "job")
    told = value["release"]
    ranges: dict[str, Any] = {
        name: None if value[name] is None else (value[name][0], value[name][1]) for name in _RANGES
    }
    release = Release(
        **{name: told[name] for name in _RELEASE},
        files=tuple(
            RemoteFile(
                one["path"],
                tuple(one["urls"]),
                one["size"],
                one["digest"],
                bytes.fromhex(one["magic"]),
                one.get("accepts_changes", False),
            )
            for one in told["files"]
        ),
        opening=None if told["opening"] is None else tuple(map(str, told["opening"])),
        local=None if told["local"] is None else user_path(told["local"], "local"),
        checkpoints=ranges["checkpoints"],
        split=value["split"],
        text=None if value["text"] is None else TextOptions.from_record(value["text"]),
    )
    given: dict[str, Any] = {name: value["options"][name] for name in _OPTIONS}
    options = Options(**given, **ranges, split=release.split, text=release.text)
    shards = tuple(Shard(**{**one, "files": tuple(one["files"])}) for one in value["shards"])
    build = BuildJob(
        parse_id(name),
        value["adapter"],
        cast("LayoutName", value["layout"]),
        destination,
        tuple(value["files"]),
        tuple(value["parents"]),
        options.to_json(),
    )
    transitions, episodes = value["stated"]
    return ShardedJob(build, release, shards, options, transitions, episodes)
