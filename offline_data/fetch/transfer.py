"""One file from one HTTP URL: whole and verified at the end, resumed wherever that is sound."""

from __future__ import annotations

import re
from datetime import timedelta
from email.utils import parsedate_to_datetime
from itertools import chain
from typing import TYPE_CHECKING

from offline_data.disk import free_bytes, human_bytes, require_bytes
from offline_data.errors import IntegrityError, NoSpaceError, OfflineDataError
from offline_data.fetch.digest import HEAD, check_head, check_size, check_whole
from offline_data.fetch.http import open_url
from offline_data.fetch.retry import TransientError, persist

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import httpx

    from offline_data.fetch.files import RemoteFile
    from offline_data.fetch.limits import FetchLimits
    from offline_data.fetch.partial import Partial

_SPAN = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})\Z")
_LENGTH = re.compile(r"[0-9]{1,19}\Z")
_SETTLED = timedelta(seconds=60)
"""Age from which on a `Last-Modified` identifies the bytes: within it they may change twice unseen."""


class Transfer:
    """Brings one file from HTTP hosts into its `Partial`.

    Args:
        client: Open connections.
        file: What is published about it.
        partial: Open; what it has is continued.
        limits: Waits and tries.
        sleep: Waits between tries; may raise to stop.
        check: Called between blocks; may raise to stop.
        sized: Told the size, once a host says it.
        headers: Sent with every request (who asks); a redirect to another host does not get the
            authorization among them.
    """

    def __init__(
        self,
        client: httpx.Client,
        file: RemoteFile,
        partial: Partial,
        limits: FetchLimits,
        *,
        sleep: Callable[[float], None],
        check: Callable[[], None],
        sized: Callable[[int], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._file = file
        self._partial = partial
        self._limits = limits
        self._sleep = sleep
        self._check = check
        self._sized = sized
        self._headers = dict(headers or {})
        self.validator: str | None = None

    def bring(self, url: str) -> None:
        """Fetch until the file is whole, then verify and settle it.

        Raises:
            IntegrityError: It is not what is published; wrong bytes are gone.
            OfflineDataError: The host does not give it; the bytes so far stay.
        """
        self._persist(url)
        if self._partial.continued and not self._is_right(url):
            # what was continued may have belonged to another version of the file
            self._partial.clear()
            self._persist(url)
        try:
            check_whole(self._file, self._partial.hashes, url)
        except IntegrityError:
            self._partial.clear()
            raise
        self._partial.settle()

    def _is_right(self, url: str) -> bool:
        try:
            check_whole(self._file, self._partial.hashes, url)
        except IntegrityError:
            return False
        return True

    def _persist(self, url: str) -> None:
        persist(lambda: self._attempt(url), self._limits, self._sleep, lambda: self._partial.size)

    def _attempt(self, url: str) -> None:
        try:
            self._receive(url)
        except BaseException:
            self._partial.secure()
            raise

    def _receive(self, url: str) -> None:
        headers = {**self._headers, **self._partial.range_from(url)}
        with open_url(self._client, url, headers) as response:
            if response.status_code == 416:
                self._check_beyond(response, url)
                return
            blocks = response.iter_raw()
            first = next(blocks, b"")
            total, stop = self._begin(response, url, first)
            for block in chain([first], blocks):
                self._check()
                if self._partial.size + len(block) > stop:
                    self._partial.clear()
                    raise self._excess(url, total, stop)
                self._take(block, url)
        if total is not None and self._partial.size != total:
            raise TransientError(f"{url} sent {self._partial.size} of {total} bytes")

    def _take(self, block: bytes, url: str) -> None:
        early = self._partial.size < HEAD
        self._partial.append(block)
        try:
            if early:
                check_head(self._file, self._partial.hashes.head, url)
        except IntegrityError:
            self._partial.clear()
            raise

    def _begin(self, response: httpx.Response, url: str, first: bytes) -> tuple[int | None, int]:
        """Make the part fit the answer's first byte.

        Returns:
            The file's size, None where nobody says it; and the size that the part may have at most
            when this answer ends.
        """
        self.validator = _validator(response)
        if response.status_code == 206:
            return self._continue(response, url)
        # what is here already is dropped only for something that may be the file
        self._check_kind(response, url)
        check_head(self._file, first, url)
        length = _LENGTH.match(response.headers.get("Content-Length", ""))
        total = int(length[0]) if length else None
        self._expect(total, url, 0)
        self._partial.start(url, self.validator, total)
        known = self._file.size if total is None else total
        return total, self._most_unsized() if known is None else known

    def _continue(self, response: httpx.Response, url: str) -> tuple[int, int]:
        span = _SPAN.match(response.headers.get("Content-Range", ""))
        start, last, total = map(int, span.groups()) if span else (0, 0, 0)
        if not 0 < self._partial.size == start <= last < total:
            raise self._changed(f"{url} sent another range than it was asked for")
        if not self._is_same(url, total):
            raise self._changed(f"{url} changed while it was being fetched")
        self._expect(total, url, start)
        self._partial.continued = True
        return total, last + 1

    def _most_unsized(self) -> int:
        """Bytes that may come where nobody says how many will: a conversion needs space as well."""
        return min(self._limits.unsized, free_bytes(self._partial.path.parent) // 2)

    def _excess(self, url: str, total: int | None, stop: int) -> OfflineDataError:
        """Say that more came than may; the part is dropped, for where it went wrong nobody knows."""
        if total is not None:
            return TransientError(f"{url} sent more bytes than it announced")
        if self._file.size is not None:
            path, size = self._file.path, self._file.size
            message = f"{url} has more than {size} bytes; published for {path}: {size}"
            return IntegrityError(message, hint="OFFLINE_DATA_MIRRORS names other hosts")
        message = f"{url} sent {human_bytes(stop)} without saying how many bytes will come"
        if stop < self._limits.unsized:
            folder = self._partial.path.parent
            return NoSpaceError(
                f"{message}, which is half of what was free in {folder}",
                hint="free some space (`offline-data cache prune`) or use another --root",
            )
        return IntegrityError(
            f"{message}: more than the limit for such an answer",
            hint="its end may never come; OFFLINE_DATA_MIRRORS names other hosts",
        )

    def _check_beyond(self, response: httpx.Response, url: str) -> None:
        """Nothing is left to send: the part is whole, or longer than the file has become."""
        said = response.headers.get("Content-Range", "").removeprefix("bytes */")
        if said != str(self._partial.size):
            raise self._changed(f"{url} has fewer bytes than before")
        self._partial.continued = True

    def _is_same(self, url: str, total: int) -> bool:
        """Tell whether a range is of the file that is here: some hosts ignore `If-Range`."""
        before = self._partial.known(url)
        if before.total not in {None, total}:
            return False
        if self.validator is None and before.validator is not None:
            # a range may come without the date, not without the tag (RFC 9110, 15.3.7)
            return self._file.digest is not None or not before.validator.startswith('"')
        return before.validator in {None, self.validator}

    def _changed(self, message: str) -> TransientError:
        self._partial.clear()
        return TransientError(message)

    def _expect(self, total: int | None, url: str, here: int) -> None:
        if total is None:
            return
        check_size(self._file, total, url)
        self._sized(total)
        require_bytes(self._partial.path.parent, total - here, self._file.path)

    def _check_kind(self, response: httpx.Response, url: str) -> None:
        """A web page in the place of data is an error even where nothing else could tell."""
        kind = response.headers.get("Content-Type", "")
        page = kind.startswith("text/html") and not self._file.path.endswith((".html", ".htm"))
        if page and not self._file.magic:
            raise IntegrityError(
                f"{url} is a web page ({kind}), expected the data of {self._file.path}",
                hint="a log-in page or an error page may stand in its place; try another mirror",
            )


def _validator(response: httpx.Response) -> str | None:
    """Return what identifies this version of the file byte by byte, as RFC 9110 (8.8) wants it."""
    tag: str | None = response.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    modified: str | None = response.headers.get("Last-Modified")
    return modified if _is_settled(modified, response.headers.get("Date")) else None


def _is_settled(modified: str | None, now: str | None) -> bool:
    """Tell whether a date of change is old enough, by the host's own clock, to be the last one."""
    try:
        return parsedate_to_datetime(now or "") - parsedate_to_datetime(modified or "") >= _SETTLED
    except (TypeError, ValueError):
        return False
