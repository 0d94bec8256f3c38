"""Writing the files of an export; where its library crashes on a full disk, in a child process.

HDF5 keeps what a full disk did not take and writes it again whenever an object is freed, until the
process ends by a signal. So nothing of HDF5 is written in the process of the user.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from offline_data.base.errors import OfflineDataError
from offline_data.base.files import FULL
from offline_data.base.progress import Task
from offline_data.episode import EpisodeBatch
from offline_data.formats.folders import files_below
from offline_data.formats.writing.base import ExportJob, ExportTarget
from offline_data.formats.writing.plan import stored_batch
from offline_data.pipeline.jobs.processes import Child, ChildDiedError
from offline_data.pipeline.jobs.processes.protocol import pack_importable

_PROBE = 1 << 20  # bytes written to see whether a process ended because the disk is full


def write_files(target: ExportTarget, path: Path, job: ExportJob, bar: Task) -> None:
    """Write the files of an export, and show how many steps were read.

    Raises `OSError` if the disk is full or `path` cannot be written; `OfflineDataError` if a child
    process ended for another reason.
    """
    if not target.contained:
        target.write(_Batches(job, target, bar.advance), path, job)
        return
    with Child(pack_importable(_Writing(target, path, job)), quiet=True) as child:
        try:
            while (done := child.ask(None)) is not None:
                bar.advance(done)
        except ChildDiedError:
            _check_space(path)
            raise OfflineDataError(
                f"{path.name} could not be written: the process that writes it {child.ending}",
                hint="if memory was short, export fewer episodes",
            ) from None
        except OfflineDataError:
            raise
        except Exception as error:
            # The type of h5py's errors is that of the call that had to write, not of the reason.
            said = re.search(r"errno = ([0-9]+)", str(error))
            if said and int(said[1]) in FULL:
                raise OSError(int(said[1]), os.strerror(int(said[1]))) from error
            raise


class _Writing:
    """Writes files in a thread; each call returns steps that were read, None at the end."""

    def __init__(self, target: ExportTarget, path: Path, job: ExportJob) -> None:
        self._given = target, path, job
        self._done: SimpleQueue[int | Exception | None] | None = None

    def __call__(self, _: None) -> int | None:
        if self._done is None:
            self._done = SimpleQueue()
            Thread(target=self._write, args=(self._done.put,), daemon=True).start()
        found = self._done.get()
        if isinstance(found, Exception):
            raise found
        return found

    def _write(self, put: Callable[[int | Exception | None], None]) -> None:
        target, path, job = self._given
        try:
            target.write(_Batches(job, target, put), path, job)
        except Exception as error:  # noqa: BLE001 - raised in the process of the user
            put(error)
        else:
            put(None)


class _Batches:
    """The batches that a target writes; transitions of the first pass over them are reported."""

    def __init__(
        self, job: ExportJob, target: ExportTarget, advance: Callable[[int], None]
    ) -> None:
        self._job, self._target, self._advance = job, target, advance
        self._passes = 0

    def __iter__(self) -> Iterator[EpisodeBatch]:
        self._passes += 1
        shown = self._passes == 1
        for batch in self._job.episodes.batches():
            yield stored_batch(batch, self._job, self._target.holds)
            if shown:
                self._advance(batch.transitions)


def _check_space(path: Path) -> None:
    """Raise `OSError` if unfinished files cannot be longer: the disk, or a limit, is full."""
    folder = path if path.is_dir() else path.parent
    files = sorted(files_below(folder), key=lambda one: one.stat().st_size)
    with (files[-1] if files else folder / "probe").open("ab") as file:
        file.write(bytes(_PROBE))
