"""Hosts that go wrong, by any fault and in any order: the right bytes or a clear error, never a wrong file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from offline_data.base.config import Settings
from offline_data.base.errors import (
    AuthError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
)
from offline_data.fetch.files import FetchedFile, RemoteFile
from offline_data.fetch.retry import FetchLimits
from tests.fetch.conftest import MAGIC
from tests.fetch.published import KINDS, PATH, published
from tests.toys.servers import Answer, Fault, FileServer

pytestmark = pytest.mark.slow

Fetch = Callable[..., FetchedFile]
Names = Callable[[], list[str]]

HTML = Answer(b"<!DOCTYPE html><title>Log in</title>", headers={"Content-Type": "text/html"})


FAULTS: dict[str, tuple[list[Fault], type[OfflineDataError] | None]] = {
    "right": ([], None),
    "cut at once": ([Fault(cut_after=0)], None),
    "cut in the magic": ([Fault(cut_after=3)], None),
    "cut": ([Fault(cut_after=70_000)], None),
    "cut at the last byte": ([Fault(cut_after=199_999)], None),
    "cut five times, further each time": (
        [Fault(cut_after=10_000) for _ in range(5)],
        None,
    ),
    "cut at once for ever": ([Fault(cut_after=0)] * 9, NetworkError),
    "stalled": ([Fault(stall_after=50_000)], None),
    "stalled for ever": ([Fault(stall_after=0)] * 9, NetworkError),
    "503": ([Fault(Answer(b"", 503))] * 2, None),
    "500 for ever": ([Fault(Answer(b"", 500))] * 9, NetworkError),
    "429": ([Fault(Answer(b"", 429, {"Retry-After": "0"}))], None),
    "429 for an hour": ([Fault(Answer(b"", 429, {"Retry-After": "3600"}))], NetworkError),
    "403": ([Fault(Answer(b"", 403))], AuthError),
    "401": ([Fault(Answer(b"", 401))], AuthError),
    "404": ([Fault(Answer(b"", 404))], NotFoundError),
    "410": ([Fault(Answer(b"", 410))], NotFoundError),
    "418": ([Fault(Answer(b"", 418))], NetworkError),
    "HTML": ([Fault(HTML)], IntegrityError),
    "HTML after a cut": ([Fault(cut_after=9_000), Fault(HTML)], IntegrityError),
    "claims more than it sends": ([Fault(claimed_length=250_000)] * 9, None),
    "claims less than it sends": ([Fault(claimed_length=100)], IntegrityError),
    "empty": ([Fault(Answer(b""))], IntegrityError),
    "redirect": ([Fault(Answer(b"", 302, {"Location": PATH}))], None),
    "redirected in a circle": ([Fault(Answer(b"", 302, {"Location": PATH}))] * 30, NetworkError),
    "gzip": ([Fault(Answer(b"\x1f\x8b", 200, {"Content-Encoding": "gzip"}))], NetworkError),
    "cut, then the whole again": ([Fault(cut_after=9_000), Fault(ignore_range=True)], None),
    "cut, then 404": ([Fault(cut_after=9_000), Fault(Answer(b"", 404))], NotFoundError),
    "cut, then a shorter range": (
        [Fault(cut_after=2), Fault(Answer(b"DF", 206, {"Content-Range": "bytes 2-3/200000"}))],
        None,
    ),
    "cut, then it seems shorter": (
        [Fault(cut_after=9_000), Fault(Answer(b"?", 416, {"Content-Range": "bytes */5"}))],
        None,
    ),
    "another range": (
        [Fault(cut_after=9_000), Fault(Answer(b"x", 206, {"Content-Range": "bytes 0-0/199992"}))],
        None,
    ),
}


# a source that publishes nothing about the file leaves no way to tell
UNKNOWABLE = {("claims less than it sends", "nothing"), ("empty", "nothing")}
OF_EVERY_KIND = {
    *("right", "cut", "503", "404", "HTML", "claims more than it sends", "empty"),
    *("redirect", "cut, then the whole again", "another range"),
}
"""Faults that are tried on every kind of source; the others where all or nothing is published."""
CASES = [
    (fault, kind)
    for fault in FAULTS
    for kind in (list(KINDS) if fault in OF_EVERY_KIND else ["all", "nothing"])
    if (fault, kind) not in UNKNOWABLE
]


@pytest.mark.parametrize(("fault", "kind"), CASES)
def test_every_fault_ends_in_the_right_bytes_or_in_a_clear_error_and_no_file(
    fault: str,
    kind: str,
    online: Settings,
    content: bytes,
    named: Names,
    fetch: Fetch,
    tmp_path: Path,
    quick: FetchLimits,
    impatient: FetchLimits,
) -> None:
    faults, error = FAULTS[fault]
    limits = impatient if fault.startswith("stalled") else quick
    with KINDS[kind](content, online, tmp_path) as at:
        if fault == "claims more than it sends" and at.file.size is not None:
            error = IntegrityError
        at.server.script(at.path, *(_here(fault, at.path) for fault in faults))
        if error is None:
            assert fetch(at.file, at.settings, limits=limits).path.read_bytes() == content
            assert len(named()) == 1
            return
        with pytest.raises(error, match=r"127\.0\.0\.1") as caught:
            fetch(at.file, at.settings, limits=limits)
        assert type(caught.value) is error
        assert named() == []
        assert caught.value.hint
        at.server.clear_script()
        assert fetch(at.file, at.settings).path.read_bytes() == content


def _here(fault: Fault, path: str) -> Fault:
    """Let a redirect lead to where it came from."""
    if fault.answer is None or "Location" not in fault.answer.headers:
        return fault
    return replace(fault, answer=replace(fault.answer, headers={"Location": path}))


def test_a_web_page_in_the_place_of_the_rest_does_not_cost_what_is_here(
    server: FileServer, online: Settings, content: bytes, fetch: Fetch
) -> None:
    file = RemoteFile("door.hdf5", (server.at(PATH),), magic=MAGIC)
    server.script(PATH, Fault(cut_after=90_000), Fault(HTML))
    with pytest.raises(IntegrityError, match="web page"):
        fetch(file, online)
    assert fetch(file, online).path.read_bytes() == content
    assert server.requests[-1].headers["range"] == "bytes=90000-"


@pytest.mark.parametrize("told", ["md5", "crc32c"])
def test_the_digest_that_the_source_publishes_is_compared_across_a_cut(
    told: str, server: FileServer, online: Settings, content: bytes, fetch: Fetch
) -> None:
    server.script(PATH, Fault(cut_after=77_777))
    file = RemoteFile("door.hdf5", (server.at(PATH),), *published(content, told))
    assert fetch(file, online).path.read_bytes() == content
    assert server.requests[1].headers["range"] == "bytes=77777-"


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 7},
        {"digest": "sha256:" + "0" * 64},
        {"digest": "md5:" + "0" * 32},
        {"digest": "crc32c:00000000"},
        {"magic": b"PAR1"},
    ],
)
def test_a_file_that_is_not_as_published_gets_no_name(
    wrong: dict[str, Any],
    server: FileServer,
    online: Settings,
    named: Names,
    fetch: Fetch,
    left: Names,
) -> None:
    file = replace(RemoteFile("door.hdf5", (server.at(PATH),)), **wrong)
    with pytest.raises(IntegrityError, match=r"door\.hdf5"):
        fetch(file, online)
    assert named() == []
    assert left() == []


STEPS = st.sampled_from(
    [
        Fault(cut_after=0),
        Fault(cut_after=1),
        Fault(cut_after=40_000),
        Fault(cut_after=150_000),
        Fault(Answer(b"", 503)),
        Fault(ignore_range=True, cut_after=90_000),
        Fault(claimed_length=100_000),
        Fault(HTML),
        Fault(Answer(b"", 404)),
        Fault(Answer(b"no such range", 416, {"Content-Range": "bytes */5"})),
    ]
)


@hypothesis_settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(faults=st.lists(STEPS, max_size=6), digest=st.booleans(), validators=st.booleans())
def test_any_order_of_faults_ends_in_the_right_bytes_or_in_an_error(
    faults: list[Fault],
    digest: bool,
    validators: bool,
    content: bytes,
    tmp_path_factory: pytest.TempPathFactory,
    fetch: Fetch,
) -> None:
    settings = Settings(root=tmp_path_factory.mktemp("any"))
    told = published(content, "all" if digest else "size")
    with FileServer({PATH: content}, validators=validators) as server:
        server.script(PATH, *faults)
        file = RemoteFile("door.hdf5", (server.at(PATH),), *told)
        try:
            found = fetch(file, settings)
        except (NetworkError, NotFoundError, IntegrityError):
            assert sorted((settings.downloads / "sha256").glob("*/*")) == []
            server.clear_script()
            found = fetch(file, settings)
        assert found.path.read_bytes() == content
