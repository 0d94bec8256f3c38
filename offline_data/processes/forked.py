"""A forked child process: it starts in milliseconds, with all modules imported.

Only for a process with a single thread: another thread could hold a lock that the child would wait
for forever. Only on Linux: other systems do not guarantee that libraries work after a fork.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL = 0.001
"""Seconds between two checks whether a process has ended."""


def can_fork() -> bool:
    """Return True if forking this process is safe."""
    try:
        return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


class ForkedProcess:
    """A forked process with the part of the interface of `subprocess.Popen` that is used here.

    Args:
        main: Run in the process, whose stdin and stdout are pipes to this one.
        quiet: Whether to discard its stderr.

    Raises:
        OSError: The system cannot start another process.
    """

    def __init__(self, main: Callable[[], None], *, quiet: bool) -> None:
        requests, answers = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become_child(main, requests, answers, quiet=quiet)
        os.close(requests[0])
        os.close(answers[1])
        self.stdin: IO[bytes] = os.fdopen(requests[1], "wb")
        self.stdout: IO[bytes] = os.fdopen(answers[0], "rb")

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        begin = time.monotonic()
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() - begin > timeout:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(_POLL)
        return status

    def kill(self) -> None:
        """Kill the process."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _become_child(
    main: Callable[[], None], requests: tuple[int, int], answers: tuple[int, int], *, quiet: bool
) -> None:
    """Run `main` and exit, without the exit handlers of the parent."""
    try:
        gc.freeze()  # never flush files that the parent has dropped
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(requests[0], 0)
        os.dup2(answers[1], 1)
        for descriptor in (*requests, *answers):
            if descriptor > 2:
                os.close(descriptor)
        if quiet:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with suppress(BaseException):
            main()
    finally:
        os._exit(1)
