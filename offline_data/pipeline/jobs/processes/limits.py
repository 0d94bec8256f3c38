"""Limits on the memory and the processor time of a child process that handles strangers' data."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from offline_data.pipeline.jobs.processes import child

MEMORY_SHARE = 0.75
"""Share of this machine's memory that parsing may use, if the platform can limit it."""


def limit_memory() -> None:
    """Make allocations of a child process fail before the machine's memory is full."""
    if not child.is_child():
        return
    with suppress(AttributeError, OSError, ValueError):  # not supported on this platform
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        _set_memory(int(MEMORY_SHARE * pages))


@contextmanager
def limit_resources(memory: int, seconds: float) -> Iterator[None]:
    """Limit a block in a child process; in any other process, the block runs without limits.

    An allocation beyond the limit fails. A process that uses more processor time is ended by
    `SIGPROF`, since neither a regular expression nor a template can be interrupted.

    Args:
        memory: Bytes that may be allocated in addition to those allocated now.
        seconds: Processor time of all threads.
    """
    if not child.is_child():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):  # only Linux says how much is allocated
        status = Path("/proc/self/status").read_text().partition("VmData:")[2]
        _set_memory(memory + 1024 * int(status.split()[0]))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, before)


def _set_memory(size: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [size, *(limit for limit in (soft, hard) if limit >= 0)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
