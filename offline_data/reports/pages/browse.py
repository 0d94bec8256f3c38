"""A read-only server of pages about the datasets under a root, for the browser of the same user.

It listens on the loopback address only, and answers only requests that have the cookie which its
secret address sets and that name its own address as host, so that neither other users of the
machine nor other pages in the browser (DNS rebinding) can read it. No part of an address becomes
part of a path: datasets are looked up among those found under the root.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, urlsplit

from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import run_checks
from offline_data.analysis.episodes import episode_quality
from offline_data.analysis.info import entry_info, schema_table
from offline_data.analysis.statistics import dataset_stats
from offline_data.base.config import Settings
from offline_data.base.errors import AccessError, NotFoundError, OfflineDataError
from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural
from offline_data.document.html import Html, as_html, element, render, table_of
from offline_data.reports.pages import sections
from offline_data.reports.pages.distributions import leaf_parts, spread_parts
from offline_data.reports.pages.episodes import example_episodes, read_episode
from offline_data.reports.pages.page import (
    icon,
    page,
    page_of_sections,
    section,
    security_policy,
)
from offline_data.reports.pages.player import article, episode_list, player
from offline_data.reports.pages.texts import Decode, is_text, text_parts
from offline_data.store.library import Entry, list_datasets, list_local
from offline_data.store.manifest import Manifest
from offline_data.store.reader import open_reader

_T = TypeVar("_T")

LOOPBACK = "127.0.0.1"

_PICTURES, _PICTURE_BYTES = 400, 6 << 20  # of each image leaf of an episode, bytes of all
_EPISODES = 50  # episodes on a page of their table
_AT_ONCE = 1 << 29  # bytes of a dataset whose statistics are computed without a click

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
    one; raises `AccessError` if it cannot be used. `find_decoder` returns what turns tokens of a
    dataset into text, if it is on this disk.
    """

    daemon_threads = True

    def __init__(
        self,
        settings: Settings,
        port: int = 0,
        find_decoder: Callable[[Manifest], Decode | None] = lambda _: None,
    ) -> None:
        self.find_decoder = find_decoder
        self.settings, self.token = settings, secrets.token_urlsafe(24)
        self._computing, self._computed = threading.Lock(), dict[tuple[str, ...], Any]()
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

    def compute_once(self, part: str, entry: Entry, compute: Callable[[], _T]) -> _T:
        """Return a part of a dataset's page that takes long, computed once, one at a time."""
        key = (part, str(entry.path), entry.manifest.created, str(entry.manifest.sha256))
        with self._computing:
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
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        if self.headers.get("Host") not in self.server.hosts:
            self._refuse(f"This server is reached at {LOOPBACK} only.")
        elif address.path.startswith("/open/"):
            self._admit(address.path.removeprefix("/open/"))
        elif not self._has_cookie():
            self._refuse("Open the address that `offline-data browse` printed.")
        elif address.path not in _PAGES:
            self._fail(HTTPStatus.NOT_FOUND, "There is no such page.")
        else:
            try:
                self._answer(HTTPStatus.OK, _PAGES[address.path](self.server, query))
            except NotFoundError as error:
                self._fail(HTTPStatus.NOT_FOUND, error.message)
            except OfflineDataError as error:
                self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, error.message)
            except Exception as error:  # noqa: BLE001 - a page shows it; the server continues
                message = f"unexpected {type(error).__name__}: {error}"
                self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, message)

    do_HEAD = do_GET  # noqa: N815 - names that the standard library calls

    def do_POST(self) -> None:
        """Refuse: the server changes nothing."""
        self._fail(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD.", {"Allow": "GET, HEAD"})

    do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = do_POST  # noqa: N815

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
            self._answer(status, element("p", message).encode())

    def _answer(
        self, status: HTTPStatus, content: bytes, headers: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        policy = f"{security_policy(served=True)}; frame-ancestors 'none'"
        fixed = {"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
        for name, value in {**_HEADERS, **fixed, **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        with suppress(ConnectionError):
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)


def _list_page(server: DatasetServer, _: Mapping[str, str]) -> bytes:
    listing = list_local(server.settings.root)
    rows = [
        (
            element("a", sections.dataset_name(one.id), href=_address("dataset", one.id)),
            f"{one.transitions:,}",
            f"{one.episodes:,}",
            human_bytes(one.bytes),
        )
        for one in listing.datasets
    ]
    search = element("input", id="search", type="search", placeholder="Search", aria_label="Search")
    found = table_of(("Dataset", "Transitions", "Episodes", "Size"), rows, numbers=3)
    none = element("p", "There are none: offline-data download gets one.")
    return page(
        "Datasets on this disk",
        section(
            "datasets",
            plural(len(rows), "dataset"),
            element("p", "Under ", element("code", server.settings.root), class_="soft"),
            (search, found) if rows else none,
            (element("p", note, class_="soft") for note in listing.notes),
        ),
        served=True,
    )


def _dataset_page(server: DatasetServer, query: Mapping[str, str]) -> bytes:
    entry = server.entry(query.get("id", ""))
    info, name, reader = entry_info(entry), str(entry.id), open_reader(entry.path)
    asked = f"(reads {human_bytes(entry.bytes)})" * (entry.bytes > _AT_ONCE)
    listed = _later(_address("part/episodes", name, page=query.get("page", "0")))
    address = _address("part/episode", name)
    parts = {
        "state": ("Overview", sections.state(info)),
        "findings": (
            "Findings",
            _later(_address("part/findings", name), asked and f"Check the dataset {asked}"),
        ),
        "episodes": (
            "Episodes",
            Html() if is_text(reader) else player(reader, listed, address=address),
        ),
        "distributions": (
            "Texts" if is_text(reader) else "Returns, lengths and leaves",
            _later(_address("part/distributions", name), asked and f"Compute {asked}"),
        ),
        "leaves": ("Schema", render(schema_table(info))),
        "metadata": ("Metadata", sections.metadata(info)),
    }
    return page_of_sections(name, parts, links=[("/", "All datasets")], served=True)


def _later(address: str, label: str = "") -> Html:
    """Return the place of a part that the script of the page loads, at a click if it has a label."""
    if not label:
        return element("div", data_load=address)
    return element("div", element("button", label, type="button", data_ask=address))


def _episode_part(server: DatasetServer, query: Mapping[str, str]) -> bytes:
    reader = open_reader(server.entry(query.get("id", "")).path)
    number = _number(query, "number")
    return article(read_episode(reader, number, pictures=_PICTURES, budget=_PICTURE_BYTES)).encode()


def _distributions_part(server: DatasetServer, query: Mapping[str, str]) -> bytes:
    entry = server.entry(query.get("id", ""))

    def describe() -> Html:
        reader = open_reader(entry.path)
        if is_text(reader):
            return text_parts(reader, server.find_decoder(entry.manifest))
        stats, middle = dataset_stats(reader), [*example_episodes(reader)]
        leaves = leaf_parts(reader, stats, middle[len(middle) // 2])
        return as_html((spread_parts(reader, stats), leaves))

    return server.compute_once("distributions", entry, describe).encode()


def _findings_part(server: DatasetServer, query: Mapping[str, str]) -> bytes:
    entry = server.entry(query.get("id", ""))
    workers = server.settings.workers

    def check() -> Html:
        return sections.findings(run_checks([entry.path], select_rules(), workers=workers))

    return server.compute_once("findings", entry, check).encode()


def _episodes_part(server: DatasetServer, query: Mapping[str, str]) -> bytes:
    entry = server.entry(query.get("id", ""))
    reader, first = open_reader(entry.path), _number(query, "page") * _EPISODES
    stop = min(first + _EPISODES, reader.episode_count)

    pages = [
        element(
            "a",
            label,
            href=_address("dataset", str(entry.id), page=at // _EPISODES) + Html("#episodes"),
        )
        for label, at in (("Previous", first - _EPISODES), ("Next", stop))
        if 0 <= at < reader.episode_count and at != first
    ]
    counted = f"{first:,} to {stop - 1:,} of {reader.episode_count:,}"
    bar = element("div", element("span", counted, class_="soft"), pages, class_="pages")
    quality = server.compute_once("quality", entry, lambda: episode_quality(reader))
    found = episode_list(reader, range(first, stop), quality)
    return as_html((found, bar if pages else None)).encode()


_PAGES: dict[str, Callable[[DatasetServer, Mapping[str, str]], bytes]] = {
    "/": _list_page,
    "/dataset": _dataset_page,
    "/part/distributions": _distributions_part,
    "/part/episode": _episode_part,
    "/part/episodes": _episodes_part,
    "/part/findings": _findings_part,
}


def _address(path: str, dataset: str, **query: object) -> str:
    more = "".join(f"&{name}={quote(str(value))}" for name, value in query.items())
    return f"/{path}?id={quote(dataset, safe='')}{more}"


def _number(query: Mapping[str, str], name: str) -> int:
    """Return a number of the query, 0 if it is not there; raises `NotFoundError`."""
    given = query.get(name, "0")
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise NotFoundError(f"{name} is {given[:40]!r}, not a number")
    return int(given)
