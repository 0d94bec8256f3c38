"""The two jobs of the contract: a recipe and a dataset of shards, small ones, each run in a process.

A case can be pickled: a process is told what to do with it, and by which fault it ends.
"""

from __future__ import annotations

import fcntl
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Barrier
from typing import Any, ClassVar, Literal

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import OfflineDataError
from offline_data.base.ids import parse_id
from offline_data.base.progress import Progress
from offline_data.pipeline.ingest import Options, download, plan_for_workers
from offline_data.pipeline.ingest.shards import ShardedRun
from offline_data.pipeline.jobs.executors import InProcess, LocalProcesses
from offline_data.pipeline.preprocess import plan as planning
from offline_data.pipeline.preprocess.job import Job, RunOptions
from offline_data.pipeline.preprocess.worker import plan_job, run_share
from offline_data.store.layout import MANIFEST
from offline_data.store.manifest import read_manifest
from tests import entry_points
from tests.forks import FORKS
from tests.pipeline.ingest.here import convert_here
from tests.pipeline.jobs.faults import Fault, Kind
from tests.pipeline.preprocess.oracle import digests
from tests.pipeline.preprocess.runs import Notes, make
from tests.toys.sharded import PUBLISHED

_KNOWN = {"index", "partial"}
"""Folders of small files about raw files, in the cache of downloads."""

Way = Literal["here", "anywhere", "ranks"]
"""Tasks run in this process, as on several machines (each writes files of its own), or by the ranks
of a plan."""


def go_where_locked(go: Path) -> None:
    """Let a paused process go on as soon as this one has to wait for a lock."""
    lock = fcntl.flock

    def watched(handle: Any, how: int) -> None:
        try:
            lock(handle, how)
        except BlockingIOError:
            go.touch()
            raise

    fcntl.flock = watched


class Running(InProcess):
    """Runs tasks here; keeps their numbers, and is interrupted after some of them.

    Args:
        stop: Tasks after which it is interrupted; None: it is not.
        times: How often each task runs: at the same time, and once more afterwards.
    """

    def __init__(self, stop: int | None = None, times: int = 1) -> None:
        super().__init__()
        self.ran = list[int]()
        self._stop, self._times = stop, times

    def run(
        self,
        job: Callable[[Any], Any],
        tasks: Sequence[Any],
        progress: Progress,  # noqa: ARG002 - nobody dies
    ) -> Iterator[tuple[int, Any]]:
        for number, task in enumerate(tasks):
            if len(self.ran) == self._stop:
                raise KeyboardInterrupt
            self.ran.append(task if isinstance(task, int) else task[0])
            self._at_once(job, task)
            yield number, job(task)

    def _at_once(self, job: Callable[[Any], Any], task: Any) -> None:
        if self._times > 1:
            barrier = Barrier(self._times)
            with ThreadPoolExecutor(self._times) as pool:
                for _ in pool.map(lambda _: (barrier.wait(60), job(task)), range(self._times)):
                    pass


class InChildren(Running):
    """Runs tasks in a process of this one, which is killed at an operation, once."""

    def __init__(self, at: int, folder: Path) -> None:
        super().__init__()
        self._at, self._folder = at, folder

    def run(
        self, job: Callable[[Any], Any], tasks: Sequence[Any], progress: Progress
    ) -> Iterator[tuple[int, Any]]:
        at, folder = self._at, self._folder
        began = folder.with_name(f"began.{len(list(folder.parent.glob('began.*')))}")

        def die_once(task: Any) -> Any:
            convert_here(pytest.MonkeyPatch())
            if not began.exists():
                began.touch()
                Fault("killed", at, folder)
            return job(task)

        yield from LocalProcesses(1).run(die_once, tasks, progress)


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """0; 1: an error of ours; 130: interrupted; -9: killed; else a traceback."""
    error: str = ""
    existed: bool | None = None
    """Whether the dataset existed already; None if it is not finished."""
    ran: tuple[int, ...] = ()
    """Tasks that this process ran; of ranks, as many numbers as tasks."""
    notes: tuple[str, ...] = ()
    operations: int = 0
    """Number of file operations."""


@dataclass(frozen=True)
class JobCase(ABC):
    """A job in a folder of its own."""

    folder: Path
    source: str
    """The parent's folder, or the URL of the server."""
    way: Way = "here"
    variant: int = 0
    """Another number is another plan for the same destination."""

    @abstractmethod
    def run(self, executor: Running, progress: Progress) -> bool:
        """Begin or resume; returns whether the dataset existed."""

    @abstractmethod
    def plan(self, progress: Progress) -> None:
        """Write the plan for ranks, unless the same one is there; replace another."""

    stride: ClassVar[int] = 12
    """Number of operations, of which one fails in each of the slow tests."""
    points: ClassVar[int] = 4
    """Number of operations that fail in the default run."""
    half: ClassVar[int]
    """Calls of tasks after which half of them are finished."""

    @abstractmethod
    def dataset(self) -> Path:
        """Return the dataset directory, finished or not."""

    @property
    def settings(self) -> Settings:
        return Settings(
            self.folder / "root",
            workers=1,
            minari_path=self.folder,
            mirrors=((PUBLISHED, self.source),),
        )

    @property
    def file(self) -> Path:
        return self.folder / "plans" / "plan.json"

    def content(self) -> dict[str, Any]:
        """Return the digests of the dataset's files, and its manifest.

        A file that a killed process has fetched may be known by its content alone: its URL is the
        published one then, else that of the mirror.
        """
        found: dict[str, Any] = dict(digests(self.dataset()))
        manifest = read_manifest(self.dataset())
        files = tuple({**file, "url": None} for file in manifest.files)
        history = tuple(replace(step, created="", sha256=None) for step in manifest.history)
        same = replace(manifest, created="", sha256=None, files=files, history=history)
        return {**found, MANIFEST: same.to_json()}

    def files(self) -> set[str]:
        """List all files, apart from locks and from what is known about raw files."""
        return {
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and path.suffix != ".lock" and path.parent.name not in _KNOWN
        }

    def parts(self) -> list[Path]:
        """List the files of the work folders, which are of finished tasks but for the plan."""
        inside = (".shards/", ".preprocess/", ".work/")
        return [
            self.folder / name
            for name in sorted(self.files())
            if any(part in name for part in inside)
        ]


class RecipeCase(JobCase):
    """Makes a dataset by a recipe with a first pass over the data, in four tasks."""

    half, points, stride = 6, 8, 4

    def run(self, executor: Running, progress: Progress) -> bool:
        options: dict[str, Any] = {"layout": ("compact", "ted")[self.variant], "chunksize": 8}
        executor.shards = self.way == "anywhere"
        return make(
            Path(self.source), self._stages, self.dataset(), self.settings,
            progress=progress, executor=executor, resume=True, **options,
        ).existed  # fmt: skip

    def plan(self, progress: Progress) -> None:
        options = RunOptions(
            audit="all", chunksize=8, layout=("compact", "ted")[self.variant], resume=True,
            force=self.variant > 0,
        )  # fmt: skip
        job = Job(Path(self.source), self._stages, None, self.dataset(), options)
        plan_job(job, self.file, self.settings, progress)

    _stages = ("clip:action,low=-8000", "normalize:observation.state")

    def dataset(self) -> Path:
        return self.folder / "out"


class ShardCase(JobCase):
    """Downloads a dataset of four shards, of which one has no episodes."""

    name, half = "sharded-4x2-empty2-overlap", 2

    @property
    def _options(self) -> Options:
        return Options(layout=("compact", "ted")[self.variant])

    def run(self, executor: Running, progress: Progress) -> bool:
        dataset = parse_id(f"shardtoy:{self.name}")
        return download(dataset, self.settings, self._options, progress, executor=executor).existed

    def plan(self, progress: Progress) -> None:
        options = replace(self._options, force=self.variant > 0)
        dataset = parse_id(f"shardtoy:{self.name}")
        plan_for_workers(dataset, self.file, self.settings, options, progress)

    def dataset(self) -> Path:
        found = list(self.settings.root.glob("shardtoy/*/*"))
        return found[0] if found else self.settings.root / "none"


class OneShardCase(ShardCase):
    """Downloads a dataset of one shard, which is not divided into tasks."""

    name = "sharded-1x6"

    def run(self, executor: Running, progress: Progress) -> bool:  # noqa: ARG002 - see above
        dataset = parse_id(f"shardtoy:{self.name}")
        return download(dataset, self.settings, self._options, progress).existed


@dataclass(frozen=True)
class Order:
    """What a process does with a case."""

    case: JobCase
    fault: Kind = "killed"
    at: int | None = None
    """Number of the operation that fails."""
    rank: int = 0
    world: int = 1
    stop: int | None = None
    """Tasks after which it is interrupted."""
    times: int = 1
    """How often each task runs at once."""
    dies: int | None = None
    """Number of the operation at which a process that runs tasks for this one is killed."""
    plans: bool = True
    """Whether to write the plan for ranks."""
    works: bool = True
    """Whether to run tasks."""

    def obey(self, answers: Any) -> None:
        """Do it, in a process of its own."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.path.append(str(self.case.folder.parent / "plugin"))
        entry_points.read_once(pytest.MonkeyPatch())
        go_where_locked(self.case.folder.with_name("go"))
        planning.GROUP_BYTES = 350
        executor, notes = Running(self.stop, self.times), Notes()
        if self.dies is not None:
            executor = InChildren(self.dies, self.case.folder)
        else:
            convert_here(pytest.MonkeyPatch())
            ShardedRun._local = lambda *_: InProcess()  # type: ignore[method-assign]
        fault = Fault(self.fault, self.at, self.case.folder)
        code, error, existed = 0, "", None
        try:
            existed = self._run(executor, notes)
        except OfflineDataError as raised:
            code, error = 1, f"{type(raised).__name__}: {raised}; {raised.shell_hint}"
        except KeyboardInterrupt as raised:
            code, error = 130, str(raised)
        fault.stop()
        ended = Ended(code, error, existed, tuple(executor.ran), tuple(notes.notes), fault.count)
        answers.send(ended)

    def _run(self, executor: Running, notes: Notes) -> bool | None:
        case = self.case
        if case.way != "ranks":
            return case.run(executor, notes)
        if self.plans:
            case.plan(notes)
        if not self.works:
            return None
        share = run_share(case.file, self.rank, self.world, case.settings, notes)
        executor.ran = list(range(share.ran))
        return None if share.result is None else share.result.existed


class Started:
    """A process that obeys an order."""

    def __init__(self, order: Order) -> None:
        self._answers, there = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=order.obey, args=(there,))
        self._process.start()
        there.close()

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.is_alive() and not self._answers.poll()

    def wait(self) -> Ended:
        """Return how it ended."""
        try:
            ended: Ended = self._answers.recv()
        except EOFError:
            ended = Ended(-1)
        self._process.join(60)
        code = self._process.exitcode
        return ended if code == 0 else replace(ended, code=code if code is not None else -1)


def run(case: JobCase, **order: Any) -> Ended:
    """Run a case in a process; see `Order`."""
    return Started(Order(case, **order)).wait()
