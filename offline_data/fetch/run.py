"""Carries a plan out: several files at once, each verified before it gets its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from time import monotonic
from typing import TypeVar

from offline_data.base.config import Settings
from offline_data.base.errors import (
    AccessError,
    AuthError,
    IntegrityError,
    NetworkError,
    NoNetworkError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
)
from offline_data.base.files import check_links, disk_errors, file_lock, require_bytes, sync_folder
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.fetch.cache import (
    FetchRecord,
    lock_path,
    partial_path,
    read_record,
    record_path,
    remove_partial,
    whole_path,
    write_record,
)
from offline_data.fetch.client import offline_error, open_client
from offline_data.fetch.download import (
    FetchCancelledError,
    FetchSession,
    RateLimit,
    ResumableDownload,
)
from offline_data.fetch.files import FetchedFile, Hashes, RemoteFile, check_whole, hash_file
from offline_data.fetch.hub import cached_by_user, hub_headers, url_on_hub, with_facts
from offline_data.fetch.mirrors import Hosts, host_of, path_of_url, scheme_of
from offline_data.fetch.plan import FetchPlan, FileStep, here
from offline_data.fetch.progress import ByteProgress, total_of
from offline_data.fetch.retry import FetchLimits

T = TypeVar("T")
_GRACE = 1.0  # seconds for threads to notice the end; one waiting for a host is left to its limits


def run_fetch(
    plan: FetchPlan,
    settings: Settings,
    progress: Progress = SILENT,
    *,
    limits: FetchLimits | None = None,
    sleep: Callable[[float], None] | None = None,
    cancelled: Event | None = None,
) -> tuple[FetchedFile, ...]:
    """Fetch every file of a plan and verify it; returns one for each step, in order.

    Files get their names only after size, first bytes and digest are right. A download that was
    interrupted by an error, Ctrl-C or a kill is resumed by the next run where the host allows it.
    If one file fails, the others stop.

    Args:
        settings: The settings that the plan was made with.
        limits: Waits, tries, connections; None for the defaults.
        sleep: Waits the given number of seconds between tries; None for a wait that Ctrl-C ends.
        cancelled: Set by another thread to end the run.

    Raises:
        OfflineError: Offline, and a file is neither here nor on this machine; no socket was opened.
        NoSpaceError: The disk is too small, or became full; that file's partial file is deleted.
        IntegrityError: A file is not what is published, or changed since it was last fetched.
        NotFoundError, AuthError, NetworkError: Of the published host, after all mirrors failed.
        AccessError: The downloads folder may not be written.
        FetchCancelledError: `cancelled` was set.
    """
    coming = [step for step in plan.steps if step.path is None]
    bounds = (limits or FetchLimits()).within(settings.transfer)
    fetched = iter(
        _fetch_all(coming, settings, progress, bounds, sleep, cancelled) if coming else ()
    )
    return tuple(
        _describe_kept(step.file, step.path, step.record) if step.path else next(fetched)
        for step in plan.steps
    )


def _fetch_all(
    steps: list[FileStep],
    settings: Settings,
    progress: Progress,
    limits: FetchLimits,
    sleep: Callable[[float], None] | None,
    cancelled: Event | None,
) -> list[FetchedFile]:
    wanted = sum(step.wanted or 0 for step in steps)
    require_bytes(settings.downloads, wanted, f"Fetching {plural(len(steps), 'file')}")
    schemes = {scheme_of(url) for step in steps for url in step.places}
    online = not settings.offline and schemes & {"http", "https", "hf"}
    sizes = [step.file.size for step in steps]
    label = f"fetch {len(steps)} files" if len(steps) > 1 else f"fetch {steps[0].file.path}"
    with (
        open_client(limits) if online else nullcontext() as client,
        progress.task(label, total_of(sizes), "B") as task,
    ):
        received, hosts, stop = ByteProgress(task, sizes), Hosts(limits.per_host), Event()
        rate = RateLimit(limits.bytes_per_second)
        session = FetchSession(
            settings, limits, progress, received, hosts, client, stop, sleep, rate
        )
        return in_threads(
            lambda index: FileFetch(steps[index], index, session).run(),
            len(steps),
            limits.files_at_once,
            stop,
            cancelled,
        )


@dataclass(frozen=True)
class Arrival:
    """A whole file that agrees with everything its source publishes about it."""

    url: str
    path: Path
    hashes: Hashes
    etag: str | None = None  # validator that the host gave
    outside: bool = False  # whether the bytes are the user's own file, which stays as it is


class FileFetch:
    """Fetches one file of a plan: under its lock, from place after place, verified, then named."""

    def __init__(self, step: FileStep, index: int, session: FetchSession) -> None:
        self._step = step
        self._file = step.file
        self._index = index
        self._session = session
        self._settings = session.settings

    def run(self) -> FetchedFile:
        """Fetch, verify and name the file; waits while another process does so."""
        step, session, url = self._step, self._session, self._file.urls[0]
        lock, *files = (of(self._settings, url) for of in (lock_path, partial_path, record_path))
        check_links(self._settings.root, lock, *files)
        waiting = f"{self._file.path} is being fetched already; waiting"
        with ExitStack() as held:
            with disk_errors(lock):
                held.enter_context(
                    file_lock(lock, lambda: session.progress.note(waiting), session.pause)
                )
            record = read_record(self._settings, url)
            path = here(self._file, self._settings, record)
            if path is not None and not (step.force and record == step.record):
                file = _describe_kept(self._file, path, record)
                session.received.set_size(self._index, file.size)
                session.received.at(self._index, file.size)
                return file
            with session.received.following(self._index, self._file.path, session.progress):
                return self._from_places()

    def _from_places(self) -> FetchedFile:
        places, session = self._step.places, self._session
        errors: dict[str, OfflineDataError] = {}
        absent: set[str] = set()
        for url in session.hosts.order(places):
            if host_of(url) in absent:
                continue
            try:
                arrival = self._from(url)
                session.received.set_size(self._index, arrival.hashes.size)
                failed = tuple(f"{host_of(place)}: {_reason(errors[place])}" for place in errors)
                return self._publish(arrival, failed)
            except (NetworkError, NotFoundError, AuthError, IntegrityError) as error:
                session.check()
                errors[url] = error
                if isinstance(error, NoNetworkError):
                    absent.add(host_of(url))
                down = isinstance(error, NetworkError) and not isinstance(error, OfflineError)
                others = {host_of(place) for place in places} - absent
                if down and session.hosts.mark_failed(url) and len(places) > 1 and others:
                    session.progress.note(
                        f"{host_of(url)} failed; trying other hosts first: {_reason(error)}"
                    )
        # The error is of the kind that the first published URL gave: mirrors may know less.
        published = (errors[url] for url in self._file.urls if url in errors)
        chosen = next(published, None) or next(iter(errors.values()))
        if isinstance(chosen, NetworkError):  # a mirror that answered with other bytes says more
            changed = (error for error in errors.values() if isinstance(error, IntegrityError))
            chosen = next(changed, chosen)
        if len(errors) == 1 or all(isinstance(each, NoNetworkError) for each in errors.values()):
            raise chosen
        reasons = "".join(f"\n  {_reason(error)}" for error in errors.values())
        raise type(chosen)(
            f"{self._file.path} could not be fetched from any of {len(errors)} places:{reasons}",
            hint=chosen.shell_hint,
        ) from chosen

    def _from(self, url: str) -> Arrival:
        scheme = scheme_of(url)
        if scheme == "file":
            return self._from_disk(path_of_url(url), url)
        if scheme == "hf":
            return self._from_hub(url)
        with self._session.hosts.slot(url, self._session.check):
            return self._from_http(url, self._file)

    def _from_http(
        self, url: str, file: RemoteFile, headers: Mapping[str, str] | None = None
    ) -> Arrival:
        client = self._session.client
        if client is None:
            raise offline_error(file.path, url)
        path = partial_path(self._settings, file.urls[0])
        download = ResumableDownload(file, path, self._index, self._session, client, headers)
        hashes = download.fetch(url)
        return Arrival(url, path, hashes, etag=download.validator)

    def _from_hub(self, url: str) -> Arrival:
        session, offline = self._session, self._settings.offline
        cached = cached_by_user(url)
        if cached is not None and not (self._step.force and not offline):
            try:
                return self._from_disk(cached, url)
            except OfflineDataError as error:
                if offline:
                    raise
                session.progress.note(f"{cached} in the Hugging Face cache is skipped: {error}")
        if offline:
            raise offline_error(self._file.path, url)

        def ask() -> RemoteFile:
            return with_facts(self._file, url, self._settings)

        with session.hosts.slot(url, session.check):
            file = self._file
            if file.digest is None:
                file = session.retry(ask)
            place, headers = url_on_hub(url, self._settings), hub_headers(self._settings)
            try:
                return replace(self._from_http(place, file, headers), url=url)
            except (AuthError, NotFoundError):
                # the API knows whether it is gated, private or not there
                session.retry(ask)
                raise

    def _from_disk(self, path: Path, url: str) -> Arrival:
        try:
            with disk_errors(path):
                hashes = hash_file(path, self._file, self._session.count(self._index))
        except AccessError as error:
            message = f"There is no {self._file.path} at {path}: {error.message}"
            raise NotFoundError(message) from error
        check_whole(self._file, hashes, url)
        return Arrival(url, path, hashes, outside=True)

    def _publish(self, arrival: Arrival, failed: tuple[str, ...]) -> FetchedFile:
        """Move a file to its name and write its record, in this order, each whole or not at all."""
        step, before = self._step, self._step.record
        sha256, size = arrival.hashes.hex(), arrival.hashes.size
        unchecked = self._file.digest is None and not (step.force or self._file.accepts_changes)
        if unchecked and before is not None and before.sha256 != sha256:
            if not arrival.outside:
                remove_partial(arrival.path)
            raise IntegrityError(
                f"{self._file.path} changed at {arrival.url}: sha256 {sha256} now, "
                f"{before.sha256} when it was fetched on {before.fetched}; "
                "its source publishes no digest",
                hint="if the change is meant, accept it with --force",
            )
        path = arrival.path
        with disk_errors(self._settings.downloads):
            if not arrival.outside:
                path = whole_path(self._settings, sha256)
                check_links(self._settings.root, path)
                path.parent.mkdir(parents=True, exist_ok=True)
                arrival.path.chmod(0o444)
                arrival.path.replace(path)
                sync_folder(path.parent)
                remove_partial(arrival.path)
            record = FetchRecord(
                url=self._file.urls[0],
                sha256=sha256,
                size=size,
                came_from=arrival.url,
                fetched=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                etag=arrival.etag,
                outside=str(path) if arrival.outside else None,
                mtime_ns=path.stat().st_mtime_ns if arrival.outside else None,
                digest=self._file.digest,
                failed=failed,
            )
            write_record(self._settings, record)
        return FetchedFile(
            self._file.path, path, sha256, size, arrival.url, failed, self._file.compared
        )


def _reason(error: OfflineDataError) -> str:
    return error.reason if isinstance(error, NoNetworkError) else error.message


def _describe_kept(file: RemoteFile, path: Path, record: FetchRecord | None) -> FetchedFile:
    """Describe a file that is here already, by its own record or only by its content."""
    if record is None or (str(path) != record.outside and path.name != record.sha256):
        size, failed = path.stat().st_size, ()
        return FetchedFile(file.path, path, path.name, size, file.urls[0], failed, file.compared)
    return FetchedFile(
        file.path,
        path,
        record.sha256,
        record.size,
        record.came_from,
        tuple(record.failed),
        file.compared,
    )


def in_threads(
    call: Callable[[int], T],
    count: int,
    threads: int,
    stop: Event,
    cancelled: Event | None = None,
) -> list[T]:
    """Return `[call(0), …, call(count - 1)]`, several calls at a time.

    The first error ends it, as does `cancelled`: `stop` is set, calls that have not begun do not begin,
    and the error is raised after the running calls ended or had a second to do so. Threads are daemons: they never
    keep a process from ending.
    """
    numbers = iter(range(count))  # `next` of it is one step, whichever thread takes it
    done: SimpleQueue[tuple[int, T | BaseException]] = SimpleQueue()

    def work() -> None:
        while not stop.is_set() and (index := next(numbers, None)) is not None:
            try:
                done.put((index, call(index)))
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
                done.put((index, error))

    workers = [Thread(target=work, daemon=True) for _ in range(min(threads, count))]
    for worker in workers:
        worker.start()
    results: dict[int, T] = {}
    try:
        while len(results) < count:
            try:
                index, outcome = done.get(timeout=0.1)
            except Empty:
                if cancelled is not None and cancelled.is_set():
                    raise FetchCancelledError from None
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            results[index] = outcome
        return [results[index] for index in range(count)]
    finally:
        stop.set()
        end = monotonic() + _GRACE
        for worker in workers:
            worker.join(max(end - monotonic(), 0.0))
