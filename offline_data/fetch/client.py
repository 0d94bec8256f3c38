"""Plain HTTP(S): one request at a time, with every failure turned into one of this package's.

This is the only file that imports httpx.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from offline_data.base import json as strict_json
from offline_data.base.config import Settings
from offline_data.base.errors import (
    AccessError,
    AuthError,
    FormatError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    OfflineError,
    UsageError,
)
from offline_data.base.json import read_whole
from offline_data.fetch.mirrors import path_of_url, scheme_of, with_mirrors
from offline_data.fetch.retry import (
    PASSING,
    FetchLimits,
    TransientError,
    no_network,
    parse_retry_after,
    with_retries,
)

if TYPE_CHECKING:
    import ssl

    import httpx


T = TypeVar("T")
_BETWEEN = "a proxy or log-in page may stand between; OFFLINE_DATA_MIRRORS names other hosts"
FROM_A_COPY = "`offline-data convert PATH NAME --from SOURCE` reads a copy that you have"
"""Alternatives where a host refuses."""
_CONTENT = frozenset({200, 203, 206})  # statuses whose body is what was requested, or a part of it


def offline_error(what: str, url: str) -> OfflineError:
    """Return the error for something that is not here and may not be fetched; touches no network."""
    return OfflineError(
        f"{what} is not on this disk, and offline mode is on; it would come from {url}",
        hint="run the same command once without --offline (and without OFFLINE_DATA_OFFLINE)",
    )


def open_client(limits: FetchLimits) -> httpx.Client:
    """Open a pool of connections; close it with `with`. Raises `UsageError`."""
    import httpx

    try:
        return httpx.Client(
            verify=_certificates(),
            timeout=httpx.Timeout(limits.read, connect=limits.connect, pool=None),
            limits=httpx.Limits(max_connections=limits.files_at_once),
            headers={"Accept-Encoding": "identity", "User-Agent": "offline-data"},
            follow_redirects=True,
            max_redirects=limits.redirects,
            http2=False,
        )
    except (ValueError, ImportError, httpx.InvalidURL) as error:
        raise UsageError(
            f"A proxy of the environment cannot be used: {_said(error)}",
            hint="HTTP_PROXY, HTTPS_PROXY and ALL_PROXY are URLs as http://HOST:PORT",
        ) from error


@cache  # reading the certificate authorities takes 20 ms
def _certificates() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()


@contextmanager
def open_url(
    client: httpx.Client, url: str, headers: Mapping[str, str] | None = None
) -> Iterator[httpx.Response]:
    """Send a `GET`; the body is read inside the block.

    A status of 416 is returned if `headers` asks for a `Range`. Raises `NotFoundError`,
    `AuthError`, `TransientError`, `NetworkError`.
    """
    import httpx

    try:
        with client.stream("GET", url, headers=headers) as response:
            if not (response.status_code == 416 and headers and "Range" in headers):
                _check_status(response, url)
            yield response
    except httpx.TimeoutException as error:
        raise TransientError(f"{url} stalled: {type(error).__name__}") from error
    except (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError) as error:
        if absent := no_network(error, url):
            raise absent from None
        raise TransientError(f"{url} was not received: {_said(error)}") from error
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, UnicodeError) as error:
        # UnicodeError: a name of a host that cannot be one, in the URL or in a redirect
        raise NetworkError(
            f"{url} cannot be fetched: {_said(error)}",
            hint="is the URL right? OFFLINE_DATA_MIRRORS names other hosts",
        ) from error


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _check_status(response: httpx.Response, url: str) -> None:
    status = response.status_code
    reason = "".join(filter(str.isprintable, response.reason_phrase))[:100]
    answered = f"{url} answered {status} {reason}".rstrip()
    encoding = response.headers.get("Content-Encoding", "identity")
    if status in _CONTENT and encoding != "identity":
        raise NetworkError(
            f"{url} is sent with Content-Encoding {encoding} although identity was requested",
            hint="the bytes could not be compared with what is published; use another mirror",
        )
    if status in _CONTENT:
        return
    if status in {404, 410}:
        raise NotFoundError(answered, hint="it may have moved: OFFLINE_DATA_MIRRORS names hosts")
    if status in {401, 403}:
        raise AuthError(
            answered,
            hint="the host refuses this file; OFFLINE_DATA_MIRRORS names other hosts, and "
            + FROM_A_COPY,
        )
    if status in PASSING:
        now = datetime.now(timezone.utc)
        wait = parse_retry_after(response.headers.get("Retry-After"), now)
        raise TransientError(answered, retry_after=wait)
    raise NetworkError(answered, hint="OFFLINE_DATA_MIRRORS names other hosts")


def get_json(url: str, settings: Settings, **rest: Any) -> Any:
    """Fetch a small JSON document; mirrors come first, offline only those that are folders.

    `rest` are arguments of `get_document`. Raises `OfflineError`, before it opens a socket;
    `NotFoundError`, `AuthError`, `NetworkError`; and `IntegrityError`, of which `FormatError` is
    one, for what is too large or not JSON.
    """
    return get_document(url, settings, parse_json, **rest)


def get_document(
    url: str,
    settings: Settings,
    parse: Callable[[bytes, str], T],
    *,
    limits: FetchLimits | None = None,
    sleep: Callable[[float], None] | None = None,
) -> T:
    """Fetch a small document and read it, from the places and with the errors of `get_json`.

    `parse` gets the bytes and the URL they came from; if it raises `IntegrityError`, the next place
    is tried. `sleep` waits between tries, for tests; None: `time.sleep`.
    """
    bounds = (limits or FetchLimits()).within(settings.transfer)
    pause = sleep or time.sleep
    *mirrors, published = with_mirrors([url], settings.mirrors)
    if settings.offline:
        mirrors = [place for place in mirrors if scheme_of(place) == "file"]
    with nullcontext() if settings.offline else open_client(bounds) as client:

        def attempt(place: str) -> T:
            if scheme_of(place) == "file":
                return parse(read_whole(path_of_url(place), strict_json.MAX_BYTES), place)
            if client is None:
                raise offline_error("A listing", url)
            body = bytearray()
            with open_url(client, place) as response:
                for block in response.iter_raw():
                    body += block
                    if len(body) > strict_json.MAX_BYTES:
                        size = f"more than {strict_json.MAX_BYTES:,} bytes"
                        raise IntegrityError(f"{place} has {size}: too many for a listing")
            return parse(bytes(body), place)

        for place in mirrors:
            try:
                return with_retries(partial(attempt, place), bounds, pause)
            except (NetworkError, NotFoundError, AuthError, IntegrityError, AccessError):
                continue
        return with_retries(lambda: attempt(published), bounds, pause)


def parse_json(body: bytes, url: str) -> Any:
    """Read a JSON document for `get_document`; raises `FormatError` if it is not one."""
    try:
        return strict_json.parse_json(body, url)
    except FormatError as error:
        raise FormatError(error.message, hint=_BETWEEN) from error
