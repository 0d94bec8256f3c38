"""A server of pages about the datasets under a root, for the browser of the same user.

It changes nothing but the marks of episodes.

It listens on the loopback address only, and answers only requests that have the cookie which its
secret address sets and that name its own address as host, so that neither other users of the
machine nor other pages in the browser (DNS rebinding) can read it. No part of an address becomes
part of a path: datasets are looked up among those found under the root.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

import numpy as np

from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import run_checks
from offline_data.analysis.episodes import episode_quality
from offline_data.analysis.info import entry_info, schema_table
from offline_data.analysis.statistics import dataset_stats
from offline_data.base.config import Settings
from offline_data.base.decode import decode
from offline_data.base.errors import (
    AccessError,
    FormatError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.base.files import human_bytes
from offline_data.base.json import parse_json
from offline_data.document.html import Html, as_html, element, render
from offline_data.reports.pages.datasets import address, datasets_page, search_part, thumbnail
from offline_data.reports.pages.distributions import leaf_parts
from offline_data.reports.pages.episodes import read_episode, read_frames
from offline_data.reports.pages.page import icon, page, section, security_policy
from offline_data.reports.pages.table import document_table, episode_table, quality_table
from offline_data.reports.pages.texts import Decode, ShownDocuments, is_text
from offline_data.reports.pages.videos import FileRange, episode_videos, read_range
from offline_data.reports.pages.viewer import (
    dataset_data,
    episode_data,
    findings_data,
    frames_data,
    marks_data,
    viewer_page,
)
from offline_data.store.library import Entry, list_datasets, list_local
from offline_data.store.marks import read_marks, write_marks
from offline_data.store.reader import open_reader
from offline_data.text.decoder import find_decoder

_T = TypeVar("_T")


@dataclass(frozen=True)
class _GivenMark:
    number: int
    mark: Literal["", "good", "bad", "unsure"]
    note: str


LOOPBACK = "127.0.0.1"

_LEAST_SIDE, _MOST_SIDE = 32, 1280  # longer side of a picture in pixels
_MOST_FRAMES = 64  # of a camera in one answer
_MOST_LISTED = 200_000  # episodes in the list
_LONGEST_QUERY = 200  # characters of a search
_MOST_POSTED = 1 << 16  # bytes of a mark with its note
_AT_ONCE = 1 << 29  # bytes of a dataset that is checked and measured without a click

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class DatasetServer(ThreadingHTTPServer):
    """Serves pages until `shutdown` is called, or `serve_forever` is interrupted.

    Shows the datasets of the root of `settings`. `port` is one of the loopback address, 0: any free
    one; raises `AccessError` if it cannot be used.
    """

    daemon_threads = True

    def __init__(self, settings: Settings, port: int = 0) -> None:
        self.settings, self.token = settings, secrets.token_urlsafe(24)
        self._computing = defaultdict[str, threading.Lock](threading.Lock)
        self._computed = dict[tuple[str, ...], Any]()
        try:
            super().__init__((LOOPBACK, port), _DatasetHandler)
        except (OSError, OverflowError) as error:
            raise AccessError(
                f"Port {port} of {LOOPBACK} cannot be used: {error}",
                hint="omit --port to use any free port",
            ) from error
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}
        # Cookies belong to a host, not to a port.
        self.cookie = f"offline-data-{self.server_port}"

    @property
    def url(self) -> str:
        """The secret address that a browser is to open first."""
        return f"http://{LOOPBACK}:{self.server_port}/open/{self.token}"

    def handle_error(self, *_: object) -> None:
        """Ignore that a browser closed a connection early."""

    def entry(self, dataset: str) -> Entry:
        """Return the dataset with this whole id; raises `NotFoundError`."""
        for entry in list_datasets(self.settings.root):
            if str(entry.id) == dataset:
                return entry
        raise NotFoundError(f"There is no dataset {dataset} under {self.settings.root}")

    def decoder(self, entry: Entry) -> Decode | None:
        """Return what turns the tokens of a dataset into text, if it is on this disk."""
        return find_decoder(self.settings.root, entry.manifest)

    def compute_once(self, part: str, entry: Entry, compute: Callable[[], _T]) -> _T:
        """Return a part of a dataset's page that takes long, computed once, one dataset at a time."""
        key = (part, str(entry.path), entry.manifest.created, str(entry.manifest.sha256))
        with self._computing[part]:
            if key not in self._computed:
                self._computed[key] = compute()
            found: _T = self._computed[key]
            return found


class _DatasetHandler(BaseHTTPRequestHandler):
    server: DatasetServer
    server_version, sys_version = "offline-data", ""
    timeout = 60

    def do_GET(self) -> None:
        """Answer with a page, a part of one, or an error."""
        address = urlsplit(self.path)
        query = _query(address.query)
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(f"This server is reached at {LOOPBACK} only.")
        elif address.path.startswith("/open/"):
            self._admit(address.path.removeprefix("/open/"))
        elif not self._has_cookie():
            self._refuse("Open the address that `offline-data browse` printed.")
        elif address.path == "/part/video":
            self._respond(lambda: _video_part(self.server, query, self.headers.get("Range")))
        elif address.path not in _PAGES:
            self._fail(HTTPStatus.NOT_FOUND, "There is no such page.")
        else:
            self._respond(lambda: _PAGES[address.path](self.server, query))

    do_HEAD = do_GET  # noqa: N815 - names that the standard library calls

    def do_POST(self) -> None:
        """Keep the mark of an episode; refuse everything else."""
        address = urlsplit(self.path)
        length = self.headers.get("Content-Length", "")
        if self.headers.get("Host") not in self.server.hosts or not self._has_cookie():
            self._refuse("Open the address that `offline-data browse` printed.")
        elif address.path != "/part/marks":
            self._refuse_method()
        elif self.headers.get("Content-Type") != "application/json":  # which no form can send
            self._fail(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Expected application/json.")
        elif not (length.isascii() and length.isdigit() and int(length) <= _MOST_POSTED):
            self._fail(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Expected the mark of one episode.")
        else:
            content, query = self.rfile.read(int(length)), _query(address.query)
            self._respond(lambda: _keep_mark(self.server, query.get("id", ""), content))

    def do_PUT(self) -> None:
        """Refuse."""
        self._refuse_method()

    do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = do_PUT  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _has_cookie(self) -> bool:
        try:
            found = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return False
        return found is not None and self._is_token(found.value)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.server.token.encode())

    def _admit(self, token: str) -> None:
        """Set the cookie, and lead on: browsers do not send it where another site led here."""
        if not self._is_token(token):
            self._refuse("Open the address that `offline-data browse` printed.")
            return
        cookie = f"{self.server.cookie}={self.server.token}; HttpOnly; SameSite=Strict; Path=/"
        onward = icon() + element("meta", http_equiv="refresh", content="0; url=/")
        self._answer(HTTPStatus.OK, f"<!doctype html>{onward}".encode(), {"Set-Cookie": cookie})

    def _respond(self, answer: Callable[[], bytes | _Typed | FileRange]) -> None:
        """Answer with what is returned, or the error that is raised."""
        try:
            found = answer()
            if isinstance(found, FileRange):
                span = f"bytes {found.first}-{found.stop - 1}/{found.size}"
                headers = {"Content-Range": span, "Accept-Ranges": "bytes"}
                typed = _Typed("video/mp4", found.content)
                self._answer(HTTPStatus.PARTIAL_CONTENT, typed, headers)
            else:
                self._answer(HTTPStatus.OK, found)
        except NotFoundError as error:
            self._fail(HTTPStatus.NOT_FOUND, error.message)
        except (UsageError, FormatError) as error:
            self._fail(HTTPStatus.BAD_REQUEST, error.message)
        except OfflineDataError as error:
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, error.message)
        except Exception as error:  # noqa: BLE001 - a page shows it; the server continues
            message = f"unexpected {type(error).__name__}: {error}"
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, message)

    def _refuse_method(self) -> None:
        allowed = {"Allow": "GET, HEAD"}
        self._fail(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD.", allowed)

    def _refuse(self, message: str) -> None:
        self._fail(HTTPStatus.FORBIDDEN, message)

    def _fail(
        self, status: HTTPStatus, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        content = section("error", status.phrase, element("p", message))
        if not self.path.startswith("/part/"):
            self._answer(
                status, page(status.phrase, content, links=[("/", "All datasets")]), headers
            )
        else:
            self._answer(status, element("p", message).encode(), headers)

    def _answer(
        self,
        status: HTTPStatus,
        content: bytes | _Typed,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        policy = f"{security_policy(served=True)}; frame-ancestors 'none'"
        kind = "text/html; charset=utf-8"
        if isinstance(content, _Typed):
            kind, content = content
        fixed = {"Content-Type": kind, "Content-Security-Policy": policy}
        for name, value in {**_HEADERS, **fixed, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        with suppress(ConnectionError):
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)


def _list_page(server: DatasetServer, _: Mapping[str, str]) -> bytes:
    root = server.settings.root
    return datasets_page(root, list_datasets(root), list_local(root).notes)


def _search_part(server: DatasetServer, query: Mapping[str, str]) -> bytes:
    from offline_data.formats.search import search

    found = search(query.get("q", "")[:_LONGEST_QUERY], server.settings)
    return search_part(found, found.notes).encode()


def _picture_part(server: DatasetServer, query: Mapping[str, str]) -> _Typed:
    entry = server.entry(query.get("id", ""))
    return server.compute_once(
        "picture", entry, lambda: _Typed(*thumbnail(open_reader(entry.path)))
    )


def _count_part(server: DatasetServer, query: Mapping[str, str]) -> bytes:
    line: str = json.loads(_findings_part(server, query).content)["line"]
    return line.encode()


def _dataset_page(server: DatasetServer, query: Mapping[str, str]) -> bytes:
    entry = server.entry(query.get("id", ""))
    info, name, reader = entry_info(entry), str(entry.id), open_reader(entry.path)
    data = dataset_data(reader, info)
    if data["kind"] == "text":
        documents = server.compute_once("documents", entry, lambda: ShownDocuments.of(reader))
        listed = np.arange(min(len(documents.lengths), _MOST_LISTED))
        decode = server.decoder(entry)
        data["columns"] = document_table(documents, len(listed), decode)
        data["unmarked"] = not documents.are_episodes
    else:
        listed = np.arange(min(reader.episode_count, _MOST_LISTED))
        data["columns"] = episode_table(reader, listed)
    asked = f" (reads {human_bytes(entry.bytes)})" * (entry.bytes > _AT_ONCE)
    parts = ("episode", "frames", "document", "findings", "quality", "leaves", "marks", "video")
    marks = read_marks(entry.path, entry.manifest)
    data |= {
        "listed": len(listed),
        "marks": marks_data(marks),
        "note": marks.ignored,
        "asked": asked,
        "served": {part: address(f"part/{part}", name) for part in parts},
    }
    return viewer_page(info, data, served=True)


def _episode_part(server: DatasetServer, query: Mapping[str, str]) -> _Typed:
    reader = open_reader(server.entry(query.get("id", "")).path)
    number = _number(query, "number")
    data = episode_data(read_episode(reader, number, pictures=0))
    videos = {key: one.times for key, one in episode_videos(reader, number).items()}
    return _json({**data, "videos": videos})


def _video_part(server: DatasetServer, query: Mapping[str, str], asked: str | None) -> FileRange:
    reader = open_reader(server.entry(query.get("id", "")).path)
    number, key = _number(query, "number"), query.get("camera", "")
    if not number < reader.episode_count or key not in (found := episode_videos(reader, number)):
        raise NotFoundError(f"Episode {number} has no video of {key[:100]!r}")
    return read_range(found[key].path, asked)


def _frames_part(server: DatasetServer, query: Mapping[str, str]) -> _Typed:
    reader = open_reader(server.entry(query.get("id", "")).path)
    first, stop = _number(query, "first"), _number(query, "stop")
    steps = range(first, stop, max(1, _number(query, "every")))[:_MOST_FRAMES]
    camera = _number(query, "camera") if "camera" in query else None
    side = min(max(_number(query, "side"), _LEAST_SIDE), _MOST_SIDE)
    found = read_frames(reader, _number(query, "number"), np.array(steps, np.int64), side, camera)
    return _json({one.key: frames_data(one) for one in found})


def _document_part(server: DatasetServer, query: Mapping[str, str]) -> bytes:
    entry = server.entry(query.get("id", ""))
    reader = open_reader(entry.path)
    documents = server.compute_once("documents", entry, lambda: ShownDocuments.of(reader))
    decode = server.decoder(entry)
    return documents.show(_number(query, "number"), decode).encode()


def _leaves_part(server: DatasetServer, query: Mapping[str, str]) -> bytes:
    entry = server.entry(query.get("id", ""))

    def describe() -> Html:
        reader = open_reader(entry.path)
        schema = as_html((element("h3", "Schema"), render(schema_table(entry_info(entry)))))
        if is_text(reader):
            decoded = server.decoder(entry) is not None
            return as_html((ShownDocuments.of(reader).summary(decoded=decoded), schema))
        return as_html((leaf_parts(reader, dataset_stats(reader), 0), schema))

    return server.compute_once("leaves", entry, describe).encode()


def _findings_part(server: DatasetServer, query: Mapping[str, str]) -> _Typed:
    entry = server.entry(query.get("id", ""))
    workers = server.settings.workers

    def check() -> _Typed:
        return _json(findings_data(run_checks([entry.path], select_rules(), workers=workers)))

    return server.compute_once("findings", entry, check)


def _quality_part(server: DatasetServer, query: Mapping[str, str]) -> _Typed:
    entry = server.entry(query.get("id", ""))

    def measure() -> _Typed:
        reader = open_reader(entry.path)
        listed = np.arange(min(reader.episode_count, _MOST_LISTED))
        return _json(quality_table(episode_quality(reader), listed))

    return server.compute_once("quality", entry, measure)


def _keep_mark(server: DatasetServer, dataset: str, content: bytes) -> _Typed:
    """Write the mark and the note of an episode; raises `FormatError` or `UsageError` as it is."""
    entry, given = (
        server.entry(dataset),
        decode(_GivenMark, parse_json(content, "The mark"), "The mark"),
    )
    mark = given.mark or None
    write_marks(
        entry.path, entry.manifest, lambda marks: marks.with_mark(given.number, mark, given.note)
    )
    return _json({"kept": given.number})


_PAGES: dict[str, Callable[[DatasetServer, Mapping[str, str]], bytes | _Typed]] = {
    "/": _list_page,
    "/dataset": _dataset_page,
    "/part/count": _count_part,
    "/part/document": _document_part,
    "/part/episode": _episode_part,
    "/part/findings": _findings_part,
    "/part/frames": _frames_part,
    "/part/leaves": _leaves_part,
    "/part/picture": _picture_part,
    "/part/quality": _quality_part,
    "/part/search": _search_part,
}


class _Typed(NamedTuple):
    """An answer that is not HTML."""

    kind: str  # media type
    content: bytes


def _json(value: Any) -> _Typed:
    written = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return _Typed("application/json", written.encode())


def _query(text: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(text).items()}


def _number(query: Mapping[str, str], name: str) -> int:
    """Return a number of the query, 0 if it is not there; raises `NotFoundError`."""
    given = query.get(name, "0")
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise NotFoundError(f"{name} is {given[:40]!r}, not a number")
    return int(given)
