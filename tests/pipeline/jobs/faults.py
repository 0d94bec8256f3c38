"""File operations of a process that fail on purpose, one after another."""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

Kind = Literal["killed", "power cut", "interrupted", "disk full", "paused"]

PATIENCE = 20.0
"""Seconds after which a paused process goes on in any case."""

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link"}
_NEEDS_SPACE = {"open", "os.mkdir", "write"}
"""Operations that fail on a full disk."""


class Fault:
    """Counts the file operations of this process from now on, and lets one of them fail.

    Operations are files opened for writing, writes, renames, deletions, truncations, folders made,
    and `fsync`. It fails before it has happened, a write after its first half.

    Args:
        kind: `killed`: by SIGKILL. `power cut`: killed, and what files below `folder` were given
            since they were synced is cut in half. `interrupted`: by SIGINT, and the operation goes
            on. `disk full`: from this operation on nothing can be written. `paused`: it waits for
            the file `go` beside `folder`, and makes a file `paused` there.
        at: The number of the operation, from 1; None: none fails.
        folder: Folder of all files of the job.
    """

    def __init__(self, kind: Kind, at: int | None, folder: Path) -> None:
        self.count = 0
        self._kind, self._at, self._folder = kind, at, folder
        self._unsynced: set[int] = set()
        sys.dont_write_bytecode = True
        sys.addaudithook(self._audit)
        for name in ("fsync", "pwrite", "posix_fallocate"):
            setattr(os, name, getattr(self, f"_{name}")(getattr(os, name)))
        io.open = builtins.open = self._opening(io.open)

    def happens(self, what: str, half: Callable[[], object] = lambda: None) -> None:
        """Count an operation, of which `half` can be done before it fails."""
        self.count += 1
        if self._at is None or self.count < self._at:
            return
        if self._kind == "disk full":
            if what in _NEEDS_SPACE:
                half()
                raise OSError(errno.ENOSPC, "No space left on device")
        elif self.count == self._at:
            if self._kind == "interrupted":
                os.kill(os.getpid(), signal.SIGINT)
                return
            if self._kind == "paused":
                self._pause()
                return
            half()
            if self._kind == "power cut":
                self._lose_unsynced()
            os.kill(os.getpid(), signal.SIGKILL)

    def stop(self) -> None:
        """Let no more operations fail."""
        self._at = None

    def _pause(self) -> None:
        self._folder.with_name("paused").touch()
        end = time.monotonic() + PATIENCE
        while not self._folder.with_name("go").exists() and time.monotonic() < end:
            time.sleep(0.002)

    def _lose_unsynced(self) -> None:
        for folder, _, names in os.walk(self._folder):
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):  # another thread renamed or removed it
                    about = path.stat()
                    if about.st_ino in self._unsynced:
                        os.truncate(path, about.st_size // 2)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            writes = flags & (os.O_WRONLY | os.O_RDWR)
            if writes and not isinstance(path, int) and not os.fspath(path).startswith("/dev/"):
                self.happens("open")
        elif event in _CHANGES:
            self.happens(event)

    def _fsync(self, _: object) -> Callable[[int], None]:
        def fsync(handle: int) -> None:
            self.happens("fsync")  # and nothing more: it takes long, and no test cuts the power
            self._unsynced.discard(os.fstat(handle).st_ino)

        return fsync

    def _pwrite(self, write: Callable[[int, Any, int], int]) -> Callable[[int, Any, int], int]:
        def pwrite(handle: int, data: Any, at: int) -> int:
            self._unsynced.add(os.fstat(handle).st_ino)
            self.happens("write", lambda: write(handle, data[: len(data) // 2], at))
            return write(handle, data, at)

        return pwrite

    def _posix_fallocate(self, take: Callable[..., None]) -> Callable[..., None]:
        def allocate(*given: int) -> None:
            self.happens("write")
            take(*given)

        return allocate

    def _opening(self, opened: Callable[..., Any]) -> Callable[..., Any]:
        fault = self

        class Written(io.FileIO):
            def write(self, data: Any) -> int:
                fault._unsynced.add(os.fstat(self.fileno()).st_ino)
                view = memoryview(data).cast("B") if len(data) else memoryview(b"")
                fault.happens("write", lambda: super(Written, self).write(view[: len(view) // 2]))
                return super().write(view)

        def open_(file: Any, mode: str = "r", buffering: int = -1, *text: Any, **more: Any) -> Any:
            given = {name: more.pop(name) for name in ("closefd", "opener") if name in more}
            if not set("wax+") & set(mode):
                return opened(file, mode, buffering, *text, **more, **given)
            raw = Written(file, mode.translate({ord("b"): None, ord("t"): None}), **given)
            if buffering == 0:
                return raw
            buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, *text, **more)

        return open_
