"""`Job`: a request for a new dataset; `Target`: its destination and what may exist there."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from offline_data.base.config import Settings, user_path
from offline_data.base.errors import ManifestError, UsageError
from offline_data.base.files import disk_errors
from offline_data.base.ids import DatasetId, parse_id
from offline_data.formats.corrections import defects_of
from offline_data.pipeline.jobs.executors.base import Executor
from offline_data.store.layout import DEFAULT_AUDIT, LAYOUTS, AuditMode, LayoutName, parse_audit
from offline_data.store.library import Entry, entry_at, find, has_manifest
from offline_data.store.publish import lock_name

if TYPE_CHECKING:
    from offline_data.pipeline.preprocess.functions.ted import On
    from offline_data.pipeline.preprocess.steps.base import Step
    from offline_data.store.chunk import EpisodeSelection

_LONG_NAME = 60  # letters of a folder's name that leave room for more in a name beside it


Stage: TypeAlias = "Step | str | Callable[[Any], Any]"
"""A step, the text of one (`cast:obs=float32`, `fn:FILE.py:NAME`), or a function."""


@dataclass(frozen=True)
class RunOptions:
    """Calls of functions, rows, and execution of a recipe.

    The result depends on the fields up to `view` only.
    """

    batched: int | None = None
    """Maximum rows of a block, for functions that take blocks; None: functions take one row."""
    by: Literal["row", "episode"] = "row"
    """Whether a function takes a row or a whole episode."""
    on: On = "transitions"
    """Unit of a row."""
    vectorize: Literal["auto"] | bool = "auto"
    """Whether to use `torch.vmap` if possible; True is the same as "auto"."""
    seed: int = 0
    """Seed of the functions' random numbers, together with the row number."""
    num_frames: int | None = None
    """Use only the first `num_frames` transitions; None: all."""
    view: EpisodeSelection | None = None
    """The rows of the parent to read; None: all."""
    layout: LayoutName | None = None
    """None: the parent's."""
    workers: int | None = None
    """Maximum number of processes, fewer if the work is short; None: from the settings."""
    worker_threads: int = 1
    """Torch threads of each process."""
    max_tasks_per_child: int | None = None
    """Replace a process after this many tasks; None: never."""
    chunksize: int | None = None
    """Approximate number of transitions of a task; None: chosen by bytes or time."""
    num_chunks: int | None = None
    """Approximate number of tasks."""
    executor: Executor | None = None
    """Runs the tasks; None: this process or local processes."""
    audit: AuditMode = DEFAULT_AUDIT
    """Share of rows that are read back and compared with the computed ones."""
    resume: bool = False
    """Whether to resume an interrupted run."""
    force: bool = False
    """Whether to replace an existing dataset and the work of an interrupted run."""

    def __post_init__(self) -> None:
        counts = "batched", "num_frames", "workers", "worker_threads", "max_tasks_per_child"
        smallest = {**dict.fromkeys((*counts, "num_chunks"), 1), "chunksize": 0, "seed": None}
        for name, least in smallest.items():
            value = getattr(self, name)
            if value is None and name != "seed":
                continue
            try:
                whole = index(value)  # those of numpy become Python's
            except TypeError:
                whole = None
            if whole is None or (least is not None and whole < least):
                more = "" if least is None else f" of {least} or more"
                raise UsageError(f"{name} is {value!r}; expected a whole number{more}")
            object.__setattr__(self, name, whole)
        for name, known, expected in (
            ("vectorize", ("auto", True, False), "'auto' or False"),
            ("by", ("row", "episode"), "'row' or 'episode'"),
            ("on", ("transitions", "observations"), "'transitions' or 'observations'"),
        ):
            if (value := getattr(self, name)) not in known:
                raise UsageError(f"{name} is {value!r}; expected {expected}")
        object.__setattr__(self, "vectorize", "auto" if self.vectorize else False)
        if self.by == "episode" and (self.batched is not None or self.on != "transitions"):
            raise UsageError("by='episode' cannot be combined with batched= or on=")
        parse_audit(str(self.audit))
        if self.layout not in (None, *LAYOUTS):
            raise UsageError(f"layout is {self.layout!r}; expected {' or '.join(LAYOUTS)}")
        if self.chunksize is not None and self.num_chunks is not None:
            raise UsageError("give either chunksize or num_chunks, not both")

    def task_rows(self, transitions: int) -> int | None:
        """Return the requested transitions of a task; None if not given (or 0, as in TorchRL)."""
        if self.num_chunks is not None:
            return -(-transitions // self.num_chunks)
        return self.chunksize or None


@dataclass(frozen=True)
class Job:
    """A dataset to make from another one."""

    parent: Path
    """Directory of the parent dataset."""
    stages: tuple[Stage, ...]
    """In order. The command line gives texts, which mean the same in other processes."""
    name: str | None = None
    """The new dataset is `local:NAME` under the root; None: use `dest`."""
    dest: Path | None = None
    """Dataset directory to make; None: use `name`."""
    options: RunOptions = RunOptions()

    def absolute(self) -> Job:
        """Return the same job with absolute paths."""
        dest = None if self.dest is None else user_path(self.dest, "the destination")
        stages: list[Stage] = []
        for stage in self.stages:
            found = re.fullmatch(r"fn:(.*\.py):([^:]*)", stage) if isinstance(stage, str) else None
            if found is not None:
                stage = f"fn:{user_path(found[1], 'the file of the function')}:{found[2]}"
            elif isinstance(stage, str) and (found := re.fullmatch(r"label:([^,=]+)(.*)", stage)):
                stage = f"label:{user_path(found[1].strip(), 'the file of labels')}{found[2]}"
            stages.append(stage)
        return replace(self, parent=self.parent.absolute(), stages=tuple(stages), dest=dest)


@dataclass(frozen=True)
class Target:
    """The destination of a new dataset."""

    id: DatasetId
    """With the revision."""
    destination: Path
    """The dataset directory."""
    work: Path
    """The work folder, on the same filesystem."""
    lock: str
    """Name of the lock that is held meanwhile."""
    named: bool
    """Whether it is stored under the root by its id; else in a folder of the user's choice."""

    @classmethod
    def of(cls, name: str | None, dest: Path | None, revision: str, settings: Settings) -> Target:
        """Return the destination for the id `local:NAME`, or for a directory (links are followed).

        Raises `UsageError`, and `InvalidIdError` where the name cannot be part of an id.
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
            fitting = re.sub(r"[^A-Za-z0-9._+=-]", "", path.name).lstrip("._+=-")
            dataset = parse_id("local:" + (fitting or "preprocessed")).at(revision)
            short = path.name if len(path.name) < _LONG_NAME else lock_name(path.name)
            work = path.with_name(f".{short}.preprocess")
            return cls(dataset, path, work, f"path/{path.as_posix().strip('/')}", named=False)
        dataset = parse_id(str(name), default_source="local")
        if dataset.source != "local" or dataset.revision:
            raise UsageError(
                f"{dataset} cannot be the name of a new dataset; expected NAME or local:NAME"
            )
        dataset = dataset.at(revision)
        work = settings.staging / f"{lock_name(dataset.folder)}.preprocess"
        destination = settings.root / dataset.folder / revision
        return cls(dataset, destination, work, dataset.folder, named=True)

    def existing(self, fingerprint: str, layout: LayoutName | None) -> bool:
        """Return True if exactly this dataset exists, in this layout (None: in any).

        Raises `UsageError` if another dataset exists there.
        """
        if not has_manifest(self.destination):
            return False
        entry = entry_at(self.destination)
        same = entry.manifest.converter.get("options", {}).get("fingerprint") == fingerprint
        if same and (defects := defects_of(entry.manifest, entry.path)):
            raise UsageError(
                f"{entry.id} already exists, made by an earlier version, which {defects[0]} ({entry.path})",
                hint="replace it with --force",
            )
        if same and layout in {None, entry.manifest.layout}:
            return True
        raise UsageError(
            f"There is another dataset in {self.destination}: {entry.id}",
            hint="choose another place, or replace it with --force",
        )

    def older(self, root: Path, *, force: bool) -> Entry | None:
        """Return the dataset of this name to replace, if any; `UsageError` unless `force`."""
        try:
            found = find(root, DatasetId(self.id.source, self.id.name)) if self.named else None
        except ManifestError:
            if not force:
                raise
            return None
        if found is None or found.path == self.destination:
            return None
        if not force:
            raise UsageError(
                f"{found.id} already exists and was made by another recipe ({found.path})",
                hint="choose another name, or replace it with --force",
            )
        return found

    def check(self, parent: Entry) -> None:
        """Raise `UsageError` for a destination that even `force` may not replace.

        That is the parent itself (also by its name), a folder inside it, and anything that is
        neither a dataset nor an empty folder.
        """
        own, new = parent.path.resolve(), self.destination
        if own == new.resolve() or (self.named and own.parent == new.resolve().parent):
            raise UsageError(
                f"the output would overwrite its input, {parent.id}", hint="choose another name"
            )
        elsewhere = "choose another place"
        if own in new.resolve().parents:
            raise UsageError(f"{new} is inside the dataset it is made of", hint=elsewhere)
        with disk_errors(new):
            if has_manifest(new) or not new.exists():
                return
            if not new.is_dir() or any(new.iterdir()):
                raise UsageError(f"{new} already exists and is not a dataset", hint=elsewhere)
            if new.is_mount() or new == Path.cwd():
                raise UsageError(
                    f"{new} is in use and cannot be replaced", hint="name a folder in it"
                )
