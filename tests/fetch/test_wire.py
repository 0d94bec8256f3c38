"""Answers that no honest host gives: the right bytes or a clear error, in a bounded time and space."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import IntegrityError, NetworkError, NotFoundError, OfflineDataError
from offline_data.fetch.files import FetchedFile, RemoteFile
from offline_data.fetch.retry import FetchLimits
from tests.fetch.conftest import MAGIC
from tests.fuzz.http_variants import UNKNOWABLE, VARIANTS
from tests.toys.servers import Fault, FileServer

if TYPE_CHECKING:
    Fetch = Callable[..., FetchedFile]
    Names = Callable[[], list[str]]

PATH = "/set/door.hdf5"
UNSIZED = 256_000


def file_at(server: FileServer, told: str, content: bytes) -> RemoteFile:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    size = len(content) if told == "size" else None
    return RemoteFile(
        "door.hdf5", (server.at(PATH),), size, digest if told == "sha256" else None, MAGIC
    )


CASES = [
    (variant, cut, told)
    for variant in VARIANTS
    for cut, told in ((False, "nothing"), (True, "sha256"))
    if variant not in UNKNOWABLE or told == "sha256"
]


def is_quick(variant: str, cut: bool, told: str) -> bool:
    """Whether it is run by default, as one half of them is."""
    return ([*VARIANTS].index(variant) + cut + (told == "sha256")) % 2 == 0


@pytest.mark.parametrize(
    ("variant", "cut", "told"),
    [pytest.param(*case, marks=() if is_quick(*case) else pytest.mark.slow) for case in CASES],
)
def test_hostile_answers(
    variant: str,
    cut: bool,
    told: str,
    server: FileServer,
    content: bytes,
    online: Settings,
    quick: FetchLimits,
    fetch: Fetch,
    named: Names,
    left: Names,
) -> None:
    server.script(PATH, *([Fault(cut_after=90_000)] if cut else []))
    server.always(PATH, Fault(wire=VARIANTS[variant]))
    file, limits = file_at(server, told, content), replace(quick, unsized=UNSIZED)
    begin = time.monotonic()
    failed = None
    try:
        assert fetch(file, online, limits=limits).path.read_bytes() == content
    except OfflineDataError as error:
        failed = error
    if failed is not None:
        assert named() == []
        assert failed.hint
        assert "\x1b" not in failed.message
    assert time.monotonic() - begin < 120
    parts = [online.downloads / "partial" / name for name in left() if name.endswith(".part")]
    assert sum(part.stat().st_size for part in parts) <= UNSIZED
    server.clear_script()
    assert fetch(file, online, limits=limits).path.read_bytes() == content


RANGES = [name for name in VARIANTS if name.startswith("206") and name not in UNKNOWABLE]


@pytest.mark.parametrize("variant", RANGES)
def test_a_wrong_range_is_dropped_and_the_file_fetched_from_its_beginning(
    variant: str, server: FileServer, content: bytes, online: Settings, fetch: Fetch
) -> None:
    server.script(PATH, Fault(cut_after=90_000), Fault(wire=VARIANTS[variant]))
    file = file_at(server, "nothing", content)
    assert fetch(file, online).path.read_bytes() == content


def test_the_limit_of_an_answer_without_a_size_is_told(
    server: FileServer, content: bytes, online: Settings, quick: FetchLimits, fetch: Fetch
) -> None:
    server.always(PATH, Fault(wire=VARIANTS["endless, chunked"]))
    with pytest.raises(IntegrityError, match=r"sent 250\.0 KiB without saying how many") as caught:
        fetch(file_at(server, "nothing", content), online, limits=replace(quick, unsized=UNSIZED))
    assert "mirrors" in str(caught.value.hint).lower()


def test_what_is_published_bounds_an_answer_without_a_size(
    server: FileServer, content: bytes, online: Settings, fetch: Fetch
) -> None:
    server.always(PATH, Fault(wire=VARIANTS["endless, chunked"]))
    with pytest.raises(IntegrityError, match="has more than 200,000 bytes; published"):
        fetch(file_at(server, "size", content), online)


def test_a_length_that_no_file_has_is_wrong(
    server: FileServer, content: bytes, online: Settings, fetch: Fetch
) -> None:
    server.always(PATH, Fault(claimed_length=10**18))
    with pytest.raises(IntegrityError, match="has 1,000,000,000,000,000,000 bytes; expected"):
        fetch(file_at(server, "nothing", content), online)


def test_no_content_is_no_file(server: FileServer, online: Settings, fetch: Fetch) -> None:
    server.always(PATH, Fault(wire=VARIANTS["204"]))
    with pytest.raises(NetworkError, match="answered 204"):
        fetch(RemoteFile("empty.json", (server.at(PATH),)), online)


def test_a_status_line_cannot_steer_a_terminal(
    server: FileServer, online: Settings, fetch: Fetch
) -> None:
    server.always(PATH, Fault(wire=VARIANTS["a reason that steers a terminal"]))
    with pytest.raises((NotFoundError, NetworkError)) as caught:
        fetch(RemoteFile("door.hdf5", (server.at(PATH),)), online)
    assert "\x1b" not in caught.value.message
