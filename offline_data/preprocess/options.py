"""What a preprocessing run is asked for, beside the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from operator import index
from typing import TYPE_CHECKING

from offline_data.config import user_path
from offline_data.errors import UsageError
from offline_data.ids import DatasetId, parse_id
from offline_data.store.audit import DEFAULT_AUDIT, AuditMode
from offline_data.store.locks import lock_name

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.preprocess.executors.base import Executor
    from offline_data.preprocess.reading import Chosen
    from offline_data.store.layout import LayoutName

_LONG = 60
"""Letters of a folder's name that leave room for more in a name beside it."""


@dataclass(frozen=True)
class Options:
    """How a recipe is carried out; but for `num_frames` and `view`, nothing of it changes the result."""

    num_frames: int | None = None
    """Only the first so many transitions; None: all."""
    view: Chosen | None = None
    """The rows of the parent that are to be read; None: all."""
    layout: LayoutName | None = None
    """Layout to write; None: the parent's."""
    workers: int | None = None
    """Processes at most; None: those of the settings. Fewer where starting them would not pay."""
    worker_threads: int = 1
    """Threads of torch in each process."""
    max_tasks_per_child: int | None = None
    """Tasks after which a process is replaced by a new one."""
    chunksize: int | None = None
    """Transitions of a task, about; None: by bytes, or by time."""
    num_chunks: int | None = None
    """Number of tasks, about."""
    executor: Executor | None = None
    """Who runs the tasks; None: this process, or local ones."""
    audit: AuditMode = DEFAULT_AUDIT
    """How many rows are read back and compared with what was computed."""
    resume: bool = False
    """Whether to go on with a run that was stopped."""
    force: bool = False
    """Whether to replace a dataset of that name, and what a stopped run left."""

    def __post_init__(self) -> None:
        for name in (
            "num_frames",
            "workers",
            "worker_threads",
            "max_tasks_per_child",
            "num_chunks",
        ):
            self._check_whole(name, 1)
        self._check_whole("chunksize", 0)
        if self.chunksize is not None and self.num_chunks is not None:
            raise UsageError("chunksize and num_chunks say the same thing twice; give one of them")

    def _check_whole(self, name: str, least: int) -> None:
        """Hold an option to whole numbers; those of numpy become Python's."""
        value = getattr(self, name)
        if value is None:
            return
        try:
            whole = index(value)
        except TypeError:
            whole = least - 1
        if whole < least:
            raise UsageError(f"{name} is {value!r}; expected a whole number of {least} or more")
        object.__setattr__(self, name, whole)

    def task_rows(self, transitions: int) -> int | None:
        """Return the transitions of a task that were asked for, None if nothing was.

        TorchRL's `chunksize=0` means "one row at a time", which is what rows get here always.
        """
        if self.num_chunks is not None:
            return -(-transitions // self.num_chunks)
        return self.chunksize or None


@dataclass(frozen=True)
class Target:
    """Where a new dataset goes."""

    id: DatasetId
    """Its id, with the revision."""
    destination: Path
    """The dataset directory."""
    work: Path
    """Folder in which it is made; on the same filesystem."""
    lock: str
    """What is locked meanwhile."""
    named: bool
    """Whether it goes by its id under the root, not to a folder of the user's choice."""


def target_of(name: str | None, dest: Path | None, revision: str, settings: Settings) -> Target:
    """Find the place of a new dataset.

    Args:
        name: Name of the id `local:NAME`, or the id.
        dest: A dataset directory to be made instead; links are followed.
        revision: Of the new dataset.
        settings: The root.

    Raises:
        UsageError: Neither or both are given, or another source's id; the root of a disk.
        InvalidIdError: The name cannot be part of an id.
    """
    if (name is None) == (dest is None):
        raise UsageError(
            "A new dataset needs one place: a name, or dest=, the directory to be made",
            hint="a name makes it local:NAME under the root",
        )
    if dest is not None:
        path = user_path(dest, "the destination").resolve()
        if not path.name:
            raise UsageError(f"{path} cannot be made a dataset", hint="choose a folder in it")
        dataset = parse_id("local:" + (_fit(path.name) or "preprocessed")).at(revision)
        short = path.name if len(path.name) < _LONG else lock_name(path.name)
        work = path.with_name(f".{short}.preprocess")
        return Target(dataset, path, work, f"path/{path.as_posix().strip('/')}", named=False)
    dataset = parse_id(str(name), default_source="local")
    if dataset.source != "local" or dataset.revision:
        raise UsageError(
            f"{dataset} cannot be the name of a new dataset; expected NAME or local:NAME"
        )
    dataset = dataset.at(revision)
    work = settings.staging / f"{lock_name(dataset.folder)}.preprocess"
    destination = settings.root / dataset.folder / revision
    return Target(dataset, destination, work, dataset.folder, named=True)


def _fit(name: str) -> str:
    return "".join(c for c in name if c.isascii() and (c.isalnum() or c in "._+=-")).lstrip("._+=-")
