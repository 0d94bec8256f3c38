"""Downloading one file over HTTP, verified at the end and resumed if that is safe.

`PartialFile` is the growing file on the disk, hashed and synced; `ResumableDownload` writes the
bytes of one URL to it; `FetchSession` is the state that the downloads of a run share.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from email.utils import parsedate_to_datetime
from itertools import chain
from pathlib import Path
from queue import Queue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, TypeVar

from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, NoSpaceError, OfflineDataError
from offline_data.base.files import (
    boot_id,
    disk_errors,
    free_bytes,
    human_bytes,
    require_bytes,
    write_durably,
)
from offline_data.base.plurals import plural
from offline_data.base.progress import Progress
from offline_data.base.urls import redact
from offline_data.fetch.cache import PartialState, remove_partial, state_path
from offline_data.fetch.client import open_url
from offline_data.fetch.files import (
    HEAD,
    Hashes,
    RemoteFile,
    check_head,
    check_plausible,
    check_size,
    check_whole,
)
from offline_data.fetch.mirrors import Hosts
from offline_data.fetch.progress import ByteProgress
from offline_data.fetch.retry import FetchLimits, TransientError, with_retries

if TYPE_CHECKING:
    import httpx
    from typing_extensions import Self


T = TypeVar("T")
SYNC_EVERY = 64 << 20  # bytes between two syncs of a partial file to the disk
_READ = 1 << 20
_HASH_BATCH = 16  # blocks hashed at a time: waking a thread for each costs more than it saves
_MAX_HASH_BATCHES = 4
_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})\Z")
_LENGTH = re.compile(r"[0-9]{1,19}\Z")
_MIN_AGE = timedelta(seconds=60)
"""Age from which on a `Last-Modified` identifies the bytes: within it they may change twice unseen."""


class FetchCancelledError(BaseException):
    """Ends a thread of a run that is over; only raised to the caller that cancelled the run."""


@dataclass(frozen=True)
class FetchSession:
    """State shared by the downloads of one run."""

    settings: Settings
    limits: FetchLimits
    progress: Progress
    received: ByteProgress
    hosts: Hosts
    client: httpx.Client | None  # None if no file needs it or offline mode forbids it
    stop: Event  # set when the run is over
    sleep: Callable[[float], None] | None  # waits between tries; None: `pause`
    rate: RateLimit  # of all files of the run

    def check(self) -> None:
        """Raise `FetchCancelledError` if the run is over."""
        if self.stop.is_set():
            raise FetchCancelledError

    def pause(self, seconds: float) -> None:
        """Wait; raises `FetchCancelledError` as soon as the run is over."""
        if self.stop.wait(seconds):
            raise FetchCancelledError

    def retry(self, attempt: Callable[[], T], reached: Callable[[], int] = lambda: 0) -> T:
        """Call `attempt` as `with_retries` does, within the limits of the run."""
        wait = self.sleep or self.pause
        return with_retries(attempt, self.limits, wait, reached, self.progress.note)

    def count(self, index: int, *, resumed: bool = False) -> Callable[[int], None]:
        """Return a function reporting a file's bytes here; `resumed`: from before the run."""
        seen = self.received.add_resumed if resumed else self.received.at

        def report(size: int) -> None:
            self.check()
            seen(index, size)

        return report


class RateLimit:
    """Limits the total rate of the threads that share it, in bytes/s; None: unlimited."""

    def __init__(
        self, bytes_per_second: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._clock = bytes_per_second, clock
        self._lock, self._free_at = Lock(), 0.0

    def take(self, count: int, pause: Callable[[float], None]) -> None:
        """Wait until `count` more bytes are due."""
        if self._rate is None:
            return
        with self._lock:
            now = self._clock()
            self._free_at = max(now, self._free_at) + count / self._rate
            wait = self._free_at - now
        pause(wait)


class BackgroundWorker:
    """Makes calls one after the other in a daemon thread; after a failed one, skips the rest."""

    def __init__(self, limit: int) -> None:
        self._calls: Queue[Callable[[], None] | None] = Queue(limit)
        self._error: BaseException | None = None
        self._thread: Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether every call so far has ended."""
        return self._calls.unfinished_tasks == 0

    def put(self, call: Callable[[], None]) -> None:
        """Queue `call` after those before it."""
        if self._thread is None:
            self._thread = Thread(target=self._work, daemon=True)
            self._thread.start()
        self._calls.put(call)

    def wait(self) -> None:
        """Wait for every call so far; raises what one of them raised."""
        self._calls.join()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wait for every call so far and end the thread; raises nothing."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while call := self._calls.get():
            try:
                if self._error is None:
                    call()
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
                self._error = error
            self._calls.task_done()
        self._calls.task_done()


class PartialFile:
    """A growing file, opened with `with` by one holder of the file's lock.

    A kill at any moment leaves a prefix of the bytes of one host, and next to it a `PartialState`
    with the host and version of the file, which is written before the first byte. A crash of the
    machine may leave less, or other content of the same size: unless a digest is published, bytes
    that were not synced are dropped on opening.

    Blocks are written at once; hashing and syncing follow in threads of their own.

    Args:
        published: What the source publishes about the file.
        report: Called with the bytes that are here, whenever that changes.
        found: The same, for bytes that were here before.

    Attributes:
        size: Bytes that are here.
        resumed: Whether some bytes were here before the current connection began.
    """

    def __init__(
        self,
        path: Path,
        published: RemoteFile,
        report: Callable[[int], None],
        found: Callable[[int], None] | None = None,
    ) -> None:
        self.path = path
        self.size = 0
        self.resumed = False
        self._published = published
        self._report = report
        self._found = found or report
        self._state = PartialState()
        self._hashes, self._unhashed = Hashes(published), list[bytes]()
        self._hashing, self._syncing = BackgroundWorker(_MAX_HASH_BATCHES), BackgroundWorker(1)
        self._sync_asked = 0

    @property
    def hashes(self) -> Hashes:
        """Digests of exactly the bytes that are here; waits until they are computed."""
        self._hashing.wait()
        self._hash(self._unhashed)
        self._unhashed = []
        return self._hashes

    def __enter__(self) -> Self:
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:  # what an earlier process left
                self._state = PartialState.read(self.path)
                if self._published.digest is None:
                    trusted = self._state.count_written(os.fstat(self._handle).st_size)
                    os.ftruncate(self._handle, trusted)
                    if trusted and self._state.boot != boot_id():
                        self._record(replace(self._state, boot=boot_id(), durable=trusted))
                while block := os.read(self._handle, _READ):
                    self._hashes.update(block)
                    self.size += len(block)
                    self._found(self.size)
            except BaseException:
                os.close(self._handle)
                raise
        return self

    def _record(self, state: PartialState) -> None:
        self._state = state
        write_durably(state_path(self.path), state.encode())

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self._hashing.close()
            self._syncing.close()
            with disk_errors(self.path):
                os.close(self._handle)
        finally:
            if isinstance(error, NoSpaceError) or (error is not None and self.size == 0):
                remove_partial(self.path)  # without an error it is whole: a file may be empty

    def state_of(self, url: str) -> PartialState:
        """Return the state if `url` began to send what is here, else an empty one."""
        known = self._state.url and redact(self._state.url)
        return self._state if known == redact(url) else PartialState()

    def range_from(self, url: str) -> dict[str, str]:
        """Return request headers that ask for the rest, or none if the file cannot be resumed."""
        # It is resumed from the host that sent it if that gave a validator; from any host if the
        # source publishes a digest, which will tell.
        validator = self.state_of(url).validator
        if self.size == 0 or not (validator or self._published.digest):
            return {}
        condition = {"If-Range": validator} if validator else {}
        return {"Range": f"bytes={self.size}-", **condition}

    def clear(self) -> None:
        """Drop what is here; `start` must come before the next byte."""
        self._hashing.wait()
        self._syncing.wait()
        with disk_errors(self.path):
            os.ftruncate(self._handle, 0)
            os.lseek(self._handle, 0, os.SEEK_SET)
        self._hashes, self._unhashed = Hashes(self._published), []
        self.size = self._sync_asked = 0
        self.resumed = False
        self._report(0)

    def start(self, url: str, validator: str | None, total: int | None) -> None:
        """Drop what is here and record where the bytes to come are from."""
        self.clear()
        first = self._state == PartialState()
        state = PartialState(url, validator, total, boot_id())
        with disk_errors(self.path):
            if first:
                # if a crash takes it, the bytes next to it are not trusted: no need to wait for it
                self._state = state
                state_path(self.path).write_bytes(state.encode())
            else:
                # an older state must not come back next to bytes that it does not know
                self._record(state)

    def append(self, block: bytes) -> None:
        """Add the next bytes."""
        with disk_errors(self.path):
            view = memoryview(block)
            while view:
                view = view[os.write(self._handle, view) :]
        self.size += len(block)
        self._unhashed.append(block)
        if len(self._unhashed) >= _HASH_BATCH:
            blocks, self._unhashed = self._unhashed, []
            self._hashing.put(lambda: self._hash(blocks))
        if self.size - self._sync_asked >= SYNC_EVERY and self._syncing.idle:
            size = self._sync_asked = self.size
            self._syncing.put(lambda: self._sync(size))
        self._report(self.size)

    def secure(self) -> None:
        """Sync the bytes so far, unless a published digest would reveal a loss."""
        if self._published.digest is None and self.size > self._state.durable:
            self._syncing.wait()
            self._sync(self.size)

    def settle(self) -> None:
        """Make sure that the bytes are on the disk."""
        self._syncing.wait()
        with disk_errors(self.path):
            os.fsync(self._handle)

    def _hash(self, blocks: list[bytes]) -> None:
        for block in blocks:
            self._hashes.update(block)

    def _sync(self, size: int) -> None:
        with disk_errors(self.path):
            os.fsync(self._handle)
            if self._published.digest is None:
                self._record(replace(self._state, durable=size))


class ResumableDownload:
    """Downloads one file from an HTTP host into its partial file, over several connections if need be.

    Args:
        file, path: What is published, and the partial file, whose bytes are resumed.
        index: The file's place in the count of bytes.
        session, client: Limits, progress and the end of the run; open connections.
        headers: Sent with every request (who asks); a redirect to another host does not get the
            authorization among them.

    Attributes:
        validator: What identified the file's version in the last answer.
    """

    def __init__(
        self,
        file: RemoteFile,
        path: Path,
        index: int,
        session: FetchSession,
        client: httpx.Client,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.validator: str | None = None
        self._file = file
        before = session.count(index, resumed=True)
        self._part = PartialFile(path, file, session.count(index), before)
        self._index = index
        self._session = session
        self._client = client
        self._headers = dict(headers or {})

    def fetch(self, url: str) -> Hashes:
        """Fetch until the file is whole and verify it; return its digests.

        Raises:
            IntegrityError: It is not what is published; the wrong bytes are deleted.
            OfflineDataError: The host does not give it; the bytes so far stay.
        """

        def attempt() -> None:
            try:
                self._receive(url)
            except BaseException:
                self._part.secure()
                raise

        with self._part as part:
            for may_restart in (True, False):
                self._session.retry(attempt, lambda: part.size)
                try:
                    check_whole(self._file, part.hashes, url)
                except IntegrityError:
                    # what was resumed may have belonged to another version of the file
                    restart = may_restart and part.resumed
                    part.clear()
                    if not restart:
                        raise
                else:
                    break
            part.settle()
        return part.hashes

    def _receive(self, url: str) -> None:
        part = self._part
        headers = {**self._headers, **part.range_from(url)}
        with open_url(self._client, url, headers) as response:
            if response.status_code == 416:
                # nothing is left to send: the part is whole, or longer than the file has become
                said = response.headers.get("Content-Range", "").removeprefix("bytes */")
                if said != str(part.size):
                    raise self._restart_error(f"{url} has fewer bytes than before")
                part.resumed = True
                return
            self.validator = _validator(response)
            blocks = response.iter_raw()
            first = next(blocks, b"")
            resuming = response.status_code == 206
            total, stop = (
                self._resume(response, url) if resuming else self._start(response, url, first)
            )
            for block in chain([first], blocks):
                self._session.check()
                self._session.rate.take(len(block), self._session.pause)
                if part.size + len(block) > stop:
                    part.clear()
                    raise self._excess(url, total, stop)
                early = part.size < HEAD
                part.append(block)
                try:
                    if early:
                        check_head(self._file, part.hashes.head, url)
                except IntegrityError:
                    part.clear()
                    raise
        if total is not None and part.size != total:
            raise TransientError(f"{url} sent {part.size} of {plural(total, 'byte')}")

    def _start(self, response: httpx.Response, url: str, first: bytes) -> tuple[int | None, int]:
        """Drop what is here, if this may be the file; returns its size and the most it may send."""
        kind = response.headers.get("Content-Type", "")
        page = kind.startswith("text/html") and not self._file.path.endswith((".html", ".htm"))
        if page and not self._file.magic:
            raise IntegrityError(
                f"{url} is a web page ({kind}), expected the data of {self._file.path}",
                hint="a log-in page or an error page may stand in its place; try another mirror",
            )
        check_head(self._file, first, url)
        length = _LENGTH.match(response.headers.get("Content-Length", ""))
        total = int(length[0]) if length else None
        if total is not None:
            self._expect(total, url, 0)
        self._part.start(url, self.validator, total)
        known = self._file.size if total is None else total
        if known is not None:
            return total, known
        # of unknown size: leave space for a conversion
        free = free_bytes(self._part.path.parent)
        return None, min(self._session.limits.unsized, free // 2)

    def _resume(self, response: httpx.Response, url: str) -> tuple[int, int]:
        """Check that a range continues what is here; returns as `_start`."""
        part = self._part
        span = _RANGE.match(response.headers.get("Content-Range", ""))
        start, last, total = map(int, span.groups()) if span else (0, 0, 0)
        if not 0 < part.size == start <= last < total:
            raise self._restart_error(f"{url} sent another range than was requested")
        # some hosts ignore `If-Range`
        before = part.state_of(url)
        same = before.validator in {None, self.validator}
        if self.validator is None and before.validator is not None:
            # a range may come without the date, not without the tag (RFC 9110, 15.3.7)
            same = self._file.digest is not None or not before.validator.startswith('"')
        if before.total not in {None, total} or not same:
            raise self._restart_error(f"{url} changed while it was being fetched")
        self._expect(total, url, start)
        part.resumed = True
        return total, last + 1

    def _restart_error(self, message: str) -> TransientError:
        self._part.clear()
        return TransientError(message)

    def _expect(self, total: int, url: str, here: int) -> None:
        """Check and report the size that a host announces."""
        check_size(self._file, total, url)
        check_plausible(total, url)
        self._session.received.set_size(self._index, total)
        require_bytes(self._part.path.parent, total - here, self._file.path)

    def _excess(self, url: str, total: int | None, stop: int) -> OfflineDataError:
        """Return the error of an answer that is too long, after which no byte can be trusted."""
        if total is not None:
            return TransientError(f"{url} sent more bytes than it announced")
        if self._file.size is not None:
            path, size = self._file.path, self._file.size
            message = f"{url} has more than {plural(size, 'byte')}; published for {path}: {size:,}"
            return IntegrityError(message, hint="OFFLINE_DATA_MIRRORS names other hosts")
        message = f"{url} sent {human_bytes(stop)} without saying how many bytes will come"
        if stop < self._session.limits.unsized:
            folder = self._part.path.parent
            return NoSpaceError(
                f"{message}, which is half of what was free in {folder}",
                hint="free some space (`offline-data cache prune`) or use another --root",
            )
        return IntegrityError(
            f"{message}: more than the limit for such an answer",
            hint="its end may never come; OFFLINE_DATA_MIRRORS names other hosts",
        )


def _validator(response: httpx.Response) -> str | None:
    """Return the strong validator of this version of the file (RFC 9110, section 8.8)."""
    tag: str | None = response.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    modified: str = response.headers.get("Last-Modified", "")
    try:
        now = parsedate_to_datetime(response.headers.get("Date", ""))
        return modified if now - parsedate_to_datetime(modified) >= _MIN_AGE else None
    except (TypeError, ValueError):
        return None
