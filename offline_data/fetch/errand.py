"""`Errand`: what all files of one run share, and the lock that each of them takes."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.disk import disk_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from threading import Event

    import httpx

    from offline_data.config import Settings
    from offline_data.fetch.hosts import Hosts
    from offline_data.fetch.limits import FetchLimits
    from offline_data.fetch.meter import Meter
    from offline_data.fetch.plan import FileStep
    from offline_data.progress import Progress


class FetchCancelledError(BaseException):
    """Ends a thread of a run that is over; never reaches a caller of this package."""


@dataclass(frozen=True)
class Errand:
    """What all files of one run share."""

    settings: Settings
    limits: FetchLimits
    progress: Progress
    meter: Meter
    hosts: Hosts
    client: httpx.Client | None
    """Connections; None where no file needs them or none may be used."""
    stop: Event
    """Set when the run is over."""
    sleep: Callable[[float], None]

    def check(self) -> None:
        """Raise `FetchCancelledError` if the run is over."""
        if self.stop.is_set():
            raise FetchCancelledError


@contextmanager
def locked(path: Path, step: FileStep, errand: Errand) -> Iterator[None]:
    """Hold a file's lock; waits while another process or thread fetches it, and says so once.

    Raises:
        AccessError: The downloads folder may not be written.
    """
    from filelock import FileLock, Timeout

    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path, thread_local=False)
        waiting = False
        while not lock.is_locked:
            try:
                # A timeout would be for ever on a clock that runs backwards.
                lock.acquire(blocking=False)
            except Timeout:
                errand.check()
                if not waiting:
                    errand.progress.note(f"{step.file.path} is being fetched already; waiting")
                waiting = True
                errand.stop.wait(0.05)
    try:
        yield
    finally:
        lock.release()
