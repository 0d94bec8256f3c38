"""A file that changes while it comes: never spliced, whatever the host says or leaves out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from email.utils import formatdate
from typing import TYPE_CHECKING

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError
from offline_data.fetch.files import FetchedFile, RemoteFile
from tests.toys.servers import Answer, Fault, LocalServer, Request

if TYPE_CHECKING:
    Fetch = Callable[..., FetchedFile]
    Names = Callable[[], list[str]]

PATH = "/door.hdf5"
CUT = 120_000
LONG_AGO = formatdate(time.time() - 86_400, usegmt=True)
LATER = formatdate(time.time() - 43_200, usegmt=True)


class ChangingServer(LocalServer):
    """Serves one file, and another in its place from the second request on.

    Args:
        before: What the first request gets.
        after: What the later ones get.
        heeds: Whether `If-Range` is.
        says: Whether a range comes with the headers of the whole.
    """

    def __init__(
        self, before: Answer, after: Answer, *, heeds: bool = True, says: bool = True
    ) -> None:
        super().__init__()
        self.before, self.after, self.heeds, self.says = before, after, heeds, says

    def answer(self, request: Request) -> Answer:
        now = self.before if len(self.requests) == 1 else self.after
        asked = request.headers.get("range")
        known = {now.headers.get("ETag"), now.headers.get("Last-Modified")}
        if asked is None or (self.heeds and request.headers.get("if-range") not in {None, *known}):
            return now
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(now.body):
            return Answer(b"", 416, {"Content-Range": f"bytes */{len(now.body)}"})
        span = {"Content-Range": f"bytes {start}-{len(now.body) - 1}/{len(now.body)}"}
        told = now.headers if self.says else {}
        return Answer(now.body[start:], 206, {**told, **span})

    def asked(self) -> list[tuple[str | None, str | None]]:
        """Give `Range` and `If-Range` of every request."""
        return [(r.headers.get("range"), r.headers.get("if-range")) for r in self.requests]


def run(server: ChangingServer, file: RemoteFile, settings: Settings, fetch: Fetch) -> bytes:
    server.script(PATH, Fault(cut_after=CUT))
    return fetch(file, settings).path.read_bytes()


def file_at(server: LocalServer, digest_of: bytes | None = None) -> RemoteFile:
    digest = None if digest_of is None else f"sha256:{hashlib.sha256(digest_of).hexdigest()}"
    return RemoteFile("door.hdf5", (server.url + PATH,), digest=digest)


HEADERS: dict[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "the tag changes": ({"ETag": '"1"'}, {"ETag": '"2"'}),
    "the tag stays": ({"ETag": '"1"'}, {"ETag": '"1"'}),
    "the tag becomes a weak one": ({"ETag": '"1"'}, {"ETag": 'W/"1"'}),
    "the tag becomes a date": ({"ETag": '"1"'}, {"Last-Modified": LONG_AGO}),
    "the date changes": ({"Last-Modified": LONG_AGO}, {"Last-Modified": LATER}),
    "the date stays": ({"Last-Modified": LONG_AGO}, {"Last-Modified": LONG_AGO}),
    "nothing is said": ({}, {}),
}
KINDS = [(how, True) for how in HEADERS] + [("the tag changes", False), ("the date changes", False)]
"""What the headers become, and whether a range comes with them or with none."""
UNKNOWABLE = {  # no digest, the same size, and a host that says it is the same file or nothing
    ("the tag stays", True, True),
    ("the tag stays", True, False),
    ("the date stays", True, True),
    ("the date stays", True, False),
    ("the date changes", False, False),
}
SIZES = {"same size": 0, "longer": 500, "shorter": -500, "shorter than what came": -100_000}


SPLICED = [
    (how, says, size)
    for how, says in KINDS
    for size in SIZES
    if (size == "same size" and (how, says, False) not in UNKNOWABLE)
    or (size != "same size" and how in {"the tag changes", "the tag stays", "nothing is said"})
]
CONTINUED = [(how, says) for how, says in KINDS if (how, says, True) not in UNKNOWABLE]


@pytest.mark.parametrize(("how", "says", "size"), SPLICED)
def test_a_host_that_ignores_the_condition_is_noticed(
    how: str, says: bool, size: str, content: bytes, online: Settings, fetch: Fetch
) -> None:
    after = (content[::-1] + b"more" * 125)[: len(content) + SIZES[size]]
    check(how, says, False, content, after, None, online, fetch)


@pytest.mark.parametrize(("how", "says"), CONTINUED)
def test_a_host_that_heeds_the_condition_starts_over(
    how: str, says: bool, content: bytes, online: Settings, fetch: Fetch
) -> None:
    check(how, says, True, content, content[::-1], None, online, fetch)


@pytest.mark.parametrize("heeds", [True, False])
@pytest.mark.parametrize(("how", "says"), KINDS)
def test_a_digest_tells_where_nothing_else_does(
    how: str, says: bool, heeds: bool, content: bytes, online: Settings, fetch: Fetch
) -> None:
    check(how, says, heeds, content, content[::-1], content[::-1], online, fetch)


def check(
    how: str,
    says: bool,
    heeds: bool,
    before: bytes,
    after: bytes,
    digest_of: bytes | None,
    settings: Settings,
    fetch: Fetch,
) -> None:
    old, new = HEADERS[how]
    pages = Answer(before, headers=old), Answer(after, headers=new)
    with ChangingServer(*pages, heeds=heeds, says=says) as server:
        assert run(server, file_at(server, digest_of), settings, fetch) == after


@pytest.mark.parametrize("heeds", [True, False])
def test_the_published_bytes_are_not_had_from_a_host_that_changed_them(
    heeds: bool, content: bytes, online: Settings, fetch: Fetch, named: Names
) -> None:
    pages = (Answer(page, headers={"ETag": '"1"'}) for page in (content, content[::-1]))
    with ChangingServer(*pages, heeds=heeds) as server:
        with pytest.raises(IntegrityError, match="sha256"):
            run(server, file_at(server, content), online, fetch)
        assert server.asked()[1:] == [(f"bytes={CUT}-", '"1"'), (None, None)]
    assert named() == []


NOW = "the time of the answer"
ASKED: dict[str, tuple[dict[str, str], bool, tuple[str | None, str | None]]] = {
    "a tag": ({"ETag": '"1"', "Last-Modified": LONG_AGO}, False, (f"bytes={CUT}-", '"1"')),
    "a weak tag": ({"ETag": 'W/"1"'}, False, (None, None)),
    "a weak tag, a digest": ({"ETag": 'W/"1"'}, True, (f"bytes={CUT}-", None)),
    "a weak tag and a date": (
        {"ETag": 'W/"1"', "Last-Modified": LONG_AGO}, False, (f"bytes={CUT}-", LONG_AGO),
    ),
    "a date": ({"Last-Modified": LONG_AGO}, False, (f"bytes={CUT}-", LONG_AGO)),
    "a date of this minute": ({"Last-Modified": NOW}, False, (None, None)),
    "a date of this minute, a digest": ({"Last-Modified": NOW}, True, (f"bytes={CUT}-", None)),
    "no date": ({"Last-Modified": "yesterday"}, False, (None, None)),
    "nothing": ({}, False, (None, None)),
    "nothing, a digest": ({}, True, (f"bytes={CUT}-", None)),
}  # fmt: skip


@pytest.mark.parametrize("said", ASKED)
def test_only_what_identifies_the_bytes_is_a_condition(
    said: str, content: bytes, online: Settings, fetch: Fetch
) -> None:
    headers, digest, asked = ASKED[said]
    now = formatdate(usegmt=True)
    page = Answer(content, headers={k: now if v is NOW else v for k, v in headers.items()})
    with ChangingServer(page, page) as server:
        assert run(server, file_at(server, content if digest else None), online, fetch) == content
        assert server.asked() == [(None, None), asked]


def test_the_wrong_kind_of_file_is_noticed_with_its_first_bytes(
    content: bytes, online: Settings, fetch: Fetch
) -> None:
    page = Answer(b"\x89HDR" + content, headers={"ETag": '"1"'})
    with ChangingServer(page, page) as server:
        server.script(PATH, Fault(cut_after=3), Fault(stall_after=100_000))
        file = RemoteFile("door.hdf5", (server.url + PATH,), magic=b"\x89HDF\r\n\x1a\n")
        with pytest.raises(IntegrityError, match="begins with"):
            fetch(file, online)
        assert server.asked() == [(None, None), ("bytes=3-", '"1"')]


def test_a_range_that_was_not_asked_for_is_not_taken(
    content: bytes, online: Settings, fetch: Fetch
) -> None:
    page = Answer(content, headers={"ETag": '"1"'})
    size = len(content)
    part = Answer(content[::-1], 206, {"Content-Range": f"bytes 0-{size - 1}/{size}"})
    with ChangingServer(page, page) as server:
        server.script(PATH, Fault(part))
        assert fetch(file_at(server), online).path.read_bytes() == content
        assert server.asked() == [(None, None), (None, None)]
