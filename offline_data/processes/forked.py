"""A child process that is forked: it starts in milliseconds, with everything imported here.

Only from a process that has one thread: another one could hold a lock that the child would wait for
without end. Other systems than Linux do not promise that their libraries work in a forked process.
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
"""Seconds between two looks at whether a process has ended."""


def can_fork() -> bool:
    """Return True if forking this process is safe."""
    try:
        return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


class ForkedProcess:
    """A forked process, as far as `subprocess.Popen` is used for one.

    Args:
        main: What it does, with its stdin and stdout being pipes to this process; it then ends.
        quiet: Whether what it prints to stderr is thrown away.

    Raises:
        OSError: The system starts no further process.
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
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _become_child(
    main: Callable[[], None], requests: tuple[int, int], answers: tuple[int, int], *, quiet: bool
) -> None:
    """Run `main` and end; what the parent would still do at its end is not for this process."""
    try:
        gc.freeze()  # files that the parent has lost are not flushed here
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
