"""Bytes to files in one background thread, in order, hashed as they pass."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from offline_data.disk import disk_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

_IN_FLIGHT = 3

_SYNC = 32 << 20
"""Bytes of a file after which they are forced to the disk."""


class Appends(Protocol):
    """Takes the bytes of files of one folder, each file's in order."""

    def append(self, name: str, data: Any) -> None:
        """Append a contiguous array or bytes to file `name`; `data` must not change afterwards."""


@dataclass(frozen=True)
class FileDigest:
    """What was written to one file."""

    size: int
    """Bytes."""
    sha256: str
    """Hex digest."""


class _File:
    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.handle = path.open("xb", buffering=0)
        self.hash = hashlib.sha256()
        self.size = 0

    def append(self, data: memoryview) -> None:
        rest = data
        while len(rest):
            rest = rest[self.handle.write(rest) :]
        self.hash.update(data)
        # Forcing bytes out as they come costs nothing beside reading; at the end it would be waited for.
        if (self.size + len(data)) // _SYNC > self.size // _SYNC:
            os.fsync(self.handle.fileno())
        self.size += len(data)


class Sink:
    """Appends to the files of one staging folder; writing and hashing run beside the caller.

    At most a few appends wait at a time, so memory is bounded by the size of what is appended.
    An error of the disk comes out of a later call, as `NoSpaceError` or `AccessError`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, _File] = {}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="offline-data-sink")
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for file in self._files.values():
            file.handle.close()

    def append(self, name: str, data: Any) -> None:
        """Append a contiguous array or bytes to file `name`; `data` must not change afterwards."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        self.run(lambda: self._append(name, view))

    def run(self, job: Callable[[], None]) -> None:
        """Run `job` after all appends so far, before all later ones."""
        while len(self._waiting) >= _IN_FLIGHT:
            self._settle()
        self._waiting.append(self._pool.submit(job))

    def drain(self) -> None:
        """Wait until everything given so far is done; raises what went wrong."""
        while self._waiting:
            self._settle()

    def finish(self) -> dict[str, FileDigest]:
        """Wait, force all files to the disk, and return what each holds."""
        self.drain()
        with disk_errors(self.folder):
            for file in self._files.values():
                os.fsync(file.handle.fileno())
        return {n: FileDigest(f.size, f.hash.hexdigest()) for n, f in self._files.items()}

    def _append(self, name: str, view: memoryview) -> None:
        if name not in self._files:
            self._files[name] = _File(self.folder / name)
        self._files[name].append(view)

    def _settle(self) -> None:
        with disk_errors(self.folder):
            self._waiting.popleft().result()
