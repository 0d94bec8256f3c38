"""Digests of files that tasks write in place, taken of what is finished while the rest is made."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offline_data.disk import disk_errors
from offline_data.preprocess.tasks import begins
from offline_data.store.writer import FileDigest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from typing_extensions import Self

    from offline_data.preprocess.plan import Plan
    from offline_data.preprocess.work import Work

CHUNK = 1 << 20
"""Bytes that are read and hashed at once: small enough for a processor's cache."""


@dataclass
class _File:
    path: Path
    at: int = 0
    """Bytes that have been hashed."""
    sha: Any = field(default_factory=hashlib.sha256)
    waiting: Future[None] | None = None


class Digesting:
    """Hashes files from their beginning up to where all tasks are finished, and has them synced.

    Reading behind the writer costs no disk: the bytes are in memory still. Errors of the disk come
    out of `digests`.

    Args:
        plan: What is being made, in place.
        work: Its folder.
    """

    def __init__(self, plan: Plan, work: Work) -> None:
        self._plan, self._folder = plan, work.dataset
        names = sorted(begins(plan, 0, 0))
        self._files = {name: _File(work.dataset / name) for name in names}
        self._finished: set[int] = set()
        self._next = 0
        self._pool = ThreadPoolExecutor(len(names), thread_name_prefix="offline-data-hash")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def add(self, task: int) -> None:
        """Take note that a task's rows are written for good."""
        self._finished.add(task)
        before = self._next
        while self._next in self._finished:
            self._next += 1
        if self._next == before:
            return
        for name, stop in begins(self._plan, *self._plan.first_of(self._next)).items():
            file = self._files[name]
            file.waiting = self._pool.submit(self._hash, file, stop, file.waiting)

    def digests(self) -> dict[str, FileDigest]:
        """Wait until everything is hashed and on the disk, and return what every file holds.

        Raises:
            NoSpaceError, AccessError: The disk.
        """
        with disk_errors(self._folder):
            for file in self._files.values():
                if file.waiting is not None:
                    file.waiting.result()
        return {name: FileDigest(f.at, f.sha.hexdigest()) for name, f in self._files.items()}

    def _hash(self, file: _File, stop: int, before: Future[None] | None) -> None:
        if before is not None:
            before.result()
        with file.path.open("rb", buffering=0) as source:
            source.seek(file.at)
            for chunk in _chunks(source, stop - file.at):
                file.sha.update(chunk)
                file.at += len(chunk)
            os.fsync(source.fileno())


def _chunks(source: Any, count: int) -> Iterator[memoryview]:
    view = memoryview(bytearray(min(CHUNK, max(1, count))))
    while count and (got := source.readinto(view[: min(len(view), count)])):
        yield view[:got]
        count -= got
