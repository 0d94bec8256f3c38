"""Carries a plan out: several files at once, one count of bytes, an end that leaves no half file."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING

from offline_data.disk import require_bytes
from offline_data.fetch.assemble import assemble
from offline_data.fetch.bring import bring_file
from offline_data.fetch.downloads import discard
from offline_data.fetch.errand import Errand, FetchCancelledError
from offline_data.fetch.files import FetchedFile
from offline_data.fetch.hosts import Hosts
from offline_data.fetch.http import open_client
from offline_data.fetch.limits import FetchLimits
from offline_data.fetch.meter import Meter, total_of
from offline_data.fetch.mirrors import scheme_of
from offline_data.fetch.publish import kept
from offline_data.fetch.threads import in_threads
from offline_data.progress import SILENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import httpx

    from offline_data.config import Settings
    from offline_data.fetch.plan import FetchPlan, FileStep
    from offline_data.progress import Progress

__all__ = ["FetchedFile", "assemble", "discard", "run_fetch"]


def run_fetch(
    plan: FetchPlan,
    settings: Settings,
    progress: Progress = SILENT,
    *,
    limits: FetchLimits | None = None,
    sleep: Callable[[float], None] | None = None,
) -> tuple[FetchedFile, ...]:
    """Bring every file of a plan here and verify it.

    Files get their names only after size, first bytes and digest are right. What was interrupted,
    by an error, Ctrl-C or a kill, is resumed by the next run where the host allows it. If one file
    fails, the others stop.

    Args:
        plan: What `plan_fetch` decided.
        settings: The settings that the plan was made with.
        progress: Gets one task of bytes over all files.
        limits: Waits, tries, connections; None for the defaults.
        sleep: Waits so many seconds between tries; None for a wait that Ctrl-C ends.

    Returns:
        One for each step, in the order of the plan.

    Raises:
        OfflineError: Offline, and a file is neither here nor on this machine; no socket was opened.
        NoSpaceError: The disk is too small, or became full; the part of that file is gone.
        IntegrityError: What came is not what is published, or changed since it was last fetched.
        NotFoundError, AuthError, NetworkError: What the published host said, after all mirrors.
        AccessError: The downloads folder may not be written.
    """
    coming = [step for step in plan.steps if step.path is None]
    found = iter(_bring_all(coming, settings, progress, limits or FetchLimits(), sleep))
    return tuple(
        kept(step.file, step.path, step.record) if step.path else next(found) for step in plan.steps
    )


def _bring_all(
    coming: list[FileStep],
    settings: Settings,
    progress: Progress,
    limits: FetchLimits,
    sleep: Callable[[float], None] | None,
) -> list[FetchedFile]:
    if not coming:
        return []
    wanted = sum(step.wanted or 0 for step in coming)
    require_bytes(settings.downloads, wanted, f"Fetching {len(coming)} files")
    with _errand(coming, settings, progress, limits, sleep) as errand:
        return in_threads(
            lambda index: bring_file(coming[index], index, errand),
            len(coming),
            errand.limits.files_at_once,
            errand.stop,
        )


@contextmanager
def _errand(
    steps: list[FileStep],
    settings: Settings,
    progress: Progress,
    limits: FetchLimits,
    sleep: Callable[[float], None] | None,
) -> Iterator[Errand]:
    """Open what the files of one run share."""
    stop = Event()

    def wait(seconds: float) -> None:
        if stop.wait(seconds):
            raise FetchCancelledError

    with _client(steps, settings, limits) as client, _count(progress, steps) as meter:
        hosts = Hosts(limits.per_host)
        yield Errand(settings, limits, progress, meter, hosts, client, stop, sleep or wait)


@contextmanager
def _count(progress: Progress, steps: list[FileStep]) -> Iterator[Meter]:
    sizes = [step.file.size for step in steps]
    label = f"fetch {len(steps)} files" if len(steps) > 1 else f"fetch {steps[0].file.path}"
    with progress.task(label, total_of(sizes), "B") as task:
        yield Meter(task, sizes)


@contextmanager
def _client(
    steps: list[FileStep], settings: Settings, limits: FetchLimits
) -> Iterator[httpx.Client | None]:
    places = [url for step in steps for url in step.places]
    if settings.offline or not any(scheme_of(url) in {"http", "https", "hf"} for url in places):
        yield None
        return
    with open_client(limits) as client:
        yield client
