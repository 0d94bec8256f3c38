"""Run the rest of a command in a child process, to report its death by a signal."""

import os
import signal
from contextlib import suppress
from functools import partial

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl(2)

may_fork = False  # whether this process is the program, and not one that imports it


def run_watched() -> None:
    """Continue in a forked process; this one waits for it and ends with its exit code.

    Where forking is not safe, this process continues. Raises `StepError`, in the process that
    waits, if a signal ended the other: a user's function may crash.
    """
    from offline_data.base.errors import StepError
    from offline_data.pipeline.jobs.processes.child import (
        can_fork,
        how_ended,
        last_place,
        share_place,
    )
    from offline_data_cli.streams import flush_stdout

    if not (may_fork and can_fork()):
        return
    share_place()
    flush_stdout()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    parent, child = os.getpid(), os.fork()
    if child == 0:
        _die_with(parent)
    else:
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, partial(_forward, child))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    if child == 0:
        return
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status >= 0:
        os._exit(status)
    place = last_place()
    raise StepError(
        f"The process {how_ended(status)} "
        + (f"while it ran {place}" if place else "before it called a function"),
        hint="call the function on these rows alone to see where it crashes; SIGKILL may mean that "
        "memory was short",
    )


def _die_with(parent: int) -> None:
    """Let the system kill this process when its parent ends."""
    import ctypes

    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _forward(child: int, number: int, _frame: object) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, number)
