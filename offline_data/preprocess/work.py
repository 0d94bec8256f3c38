"""The folder in which a dataset is being made: its names, and what has been finished in it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offline_data.disk import boot_id, disk_errors
from offline_data.preprocess.checked import read_checked, write_checked
from offline_data.preprocess.placed import Range, holds

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import Key

_SUFFIX = ".record"


@dataclass(frozen=True)
class Record:
    """What one finished task left to say."""

    columns: dict[Key, NDArray[Any]]
    """`[E, …]` columns of its episodes; text as codes; `("start",)` counted in the task."""
    counts: dict[str, Any]
    """`counts` and `non_finite` of the census, `rows` and `episodes` of the audit."""
    written: Mapping[str, Range] = field(default_factory=dict)
    """The bytes that it wrote, by the name of the file."""


@dataclass(frozen=True)
class Work:
    """Names in the work folder. Everything in it is of one plan."""

    path: Path
    apart: Path | None = None
    """Where the dataset grows if it may not be in this folder, which is on another filesystem than
    the place where it is to go."""

    @property
    def dataset(self) -> Path:
        """The dataset directory as it grows."""
        return self.path / "dataset" if self.apart is None else self.apart

    @property
    def plan(self) -> Path:
        """What is being made, and how."""
        return self.path / "plan"

    def shard(self, task: int) -> Path:
        """Return where a task's rows lie that writes files of its own."""
        return self.path / "shards" / f"{task:05d}"

    def record(self, task: int) -> Path:
        """Return where a finished task is recorded: it is finished when this is there."""
        return self._records / f"{task:05d}{_SUFFIX}"

    @property
    def _records(self) -> Path:
        return self.path / "finished"

    def write_record(self, task: int, record: Record, *, durable: bool) -> None:
        """Record that a task is finished.

        Args:
            task: Its number.
            record: What it has to say.
            durable: Whether its rows have been forced to the disk. If not, they count for nothing
                once the machine has stopped.
        """
        about = {
            "counts": record.counts,
            "written": {name: list(part) for name, part in record.written.items()},
            "boot": None if durable else boot_id(),
            "durable": durable,
        }
        with disk_errors(self.path):
            write_checked(self.record(task), about, record.columns, durable=durable)

    def read_record(self, task: int) -> Record | None:
        """Read the record of a task; None where it is not finished, or may not have outlived a crash."""
        found = read_checked(self.record(task))
        if found is None:
            return None
        about, columns = found
        if not about["durable"] and (about["boot"] is None or about["boot"] != boot_id()):
            return None
        written = {name: Range(*part) for name, part in about["written"].items()}
        return Record(columns, about["counts"], written)

    def finished(self, tasks: int) -> list[int]:
        """Return the numbers of the tasks that are finished."""
        return [task for task in range(tasks) if self.read_record(task) is not None]

    def sound(self, tasks: int, *, in_place: bool) -> list[int]:
        """Return the finished tasks whose rows are what they wrote; reads all of these.

        Args:
            tasks: How many there are.
            in_place: Whether they write into the files of the dataset, not into shards.
        """
        return [
            task
            for task in range(tasks)
            if (record := self.read_record(task)) is not None
            and holds(self.dataset if in_place else self.shard(task), record.written)
        ]

    def recorded(self) -> int:
        """Return how many tasks say that they are finished."""
        return len(list(self._records.glob(f"[0-9]*{_SUFFIX}")))

    def keep_only(self, names: Collection[str]) -> None:
        """Delete all files of the growing dataset but these: what is left of a try to finish it."""
        with disk_errors(self.dataset):
            for path in self.dataset.rglob("*"):
                if path.is_file() and path.relative_to(self.dataset).as_posix() not in names:
                    path.unlink()

    def write_plan(self, about: dict[str, Any], arrays: Mapping[Key, NDArray[Any]]) -> None:
        """Write the plan's file."""
        with disk_errors(self.path):
            write_checked(self.plan, about, arrays, durable=True)

    def read_plan(self) -> dict[str, Any] | None:
        """Read what the plan's file says; None where there is none that can be read."""
        found = read_checked(self.plan)
        return None if found is None else found[0]

    def clear(self) -> None:
        """Delete what has been made; the plan's file goes first.

        Raises:
            AccessError: What says that tasks are finished may not be deleted.
        """
        with disk_errors(self.path):
            self.plan.unlink(missing_ok=True)
            shutil.rmtree(self.path, ignore_errors=True)
            if self._records.exists():
                shutil.rmtree(self._records)  # they would count for the next plan
