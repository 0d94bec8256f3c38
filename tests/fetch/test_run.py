"""One file from one host that works, and what can be wrong on this side."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offline_data.base import files
from offline_data.base.config import Settings
from offline_data.base.errors import (
    AccessError,
    IntegrityError,
    NoSpaceError,
)
from offline_data.fetch.cache import partial_path
from offline_data.fetch.files import FetchedFile, RemoteFile
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.retry import FetchLimits
from offline_data.fetch.run import run_fetch
from tests.links import link
from tests.syncs import Syncs
from tests.toys.servers import Answer, Fault, FileServer

if TYPE_CHECKING:
    Fetch = Callable[..., FetchedFile]
    Names = Callable[[], list[str]]
    Hex = Callable[[bytes], str]

MAGIC = b"\x89HDF\r\n\x1a\n"
PATH = "/set/door.hdf5"


def test_a_file_arrives_under_the_name_of_its_content(
    server: FileServer, online: Settings, content: bytes, tally: Any, sha256: Hex, fetch: Fetch
) -> None:
    file = RemoteFile("door.hdf5", (server.at(PATH),), len(content), None, MAGIC)
    found = fetch(file, online, progress=tally)
    assert found.path.read_bytes() == content
    assert found == FetchedFile(
        "door.hdf5", found.path, sha256(content), len(content), server.at(PATH), compared="size"
    )
    assert found.path == online.downloads / "sha256" / found.sha256[:2] / found.sha256
    assert (tally.seen, tally.total, tally.unit) == (len(content), len(content), "B")
    assert not list((online.downloads / "partial").iterdir())
    assert not os.access(found.path, os.W_OK) or os.geteuid() == 0
    assert found.path.stat().st_mode & 0o222 == 0


@pytest.mark.parametrize("theirs", [True, False])
@pytest.mark.parametrize("place", [".", "sha256", "partial", "locks", "index"])
def test_links_of_another_user_are_not_written_through(
    place: str,
    theirs: bool,
    server: FileServer,
    online: Settings,
    tmp_path: Path,
    fetch: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    link(online.downloads / place, target, 54321 if theirs else os.geteuid(), monkeypatch)
    file = RemoteFile("door.hdf5", (server.at(PATH),))
    if theirs:
        with pytest.raises(AccessError, match="is a link of another user"):
            fetch(file, online)
        assert not list(target.iterdir())
    else:
        assert fetch(file, online).path.exists()
        assert list(target.iterdir()) or place == "partial"  # where nothing stays


def test_a_part_that_is_a_link_of_another_user(
    server: FileServer,
    online: Settings,
    tmp_path: Path,
    fetch: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"as it was")
    url = server.at(PATH)
    link(partial_path(online, url), precious, 54321, monkeypatch)
    with pytest.raises(AccessError, match="is a link of another user"):
        fetch(RemoteFile("door.hdf5", (url,)), online)
    assert precious.read_bytes() == b"as it was"


def test_it_is_on_the_disk_before_it_gets_its_name_and_the_name_after(
    server: FileServer,
    online: Settings,
    content: bytes,
    sha256: Hex,
    fetch: Fetch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    syncs, named, replace = Syncs(monkeypatch), list[Path](), Path.replace

    def checked(self: Path, target: Path) -> Path:
        if target.name == sha256(content):
            named.append(target)
            assert syncs.lacks([self]) == []
            assert syncs.lacks([target.parent]) == [target.parent]
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", checked)
    digest = f"sha256:{sha256(content)}"
    found = fetch(RemoteFile("door.hdf5", (server.at(PATH),), digest=digest), online)
    assert named == [found.path]
    assert syncs.lacks([found.path.parent]) == []


@pytest.mark.parametrize("size", [None, 0])
@pytest.mark.parametrize("digest", [None, "md5:d41d8cd98f00b204e9800998ecf8427e"])
def test_a_file_may_be_empty(
    server: FileServer, online: Settings, fetch: Fetch, size: int | None, digest: str | None
) -> None:
    server.files["/set/empty.txt"] = b""
    file = RemoteFile("empty.txt", (server.at("/set/empty.txt"),), size, digest)
    found = fetch(file, online)
    assert (found.path.read_bytes(), found.size) == (b"", 0)
    assert not list((online.downloads / "partial").iterdir())
    asked = len(server.requests)
    assert fetch(file, online) == found
    assert len(server.requests) == asked


def test_what_is_here_is_not_asked_for_again(
    server: FileServer, online: Settings, content: bytes, fetch: Fetch
) -> None:
    file = RemoteFile("door.hdf5", (server.at(PATH),))
    first = fetch(file, online)
    asked = len(server.requests)
    assert fetch(file, online) == first
    assert len(server.requests) == asked
    other = RemoteFile("copy.hdf5", ("http://127.0.0.1:1/x",), digest=f"sha256:{first.sha256}")
    assert fetch(other, online).path == first.path


@pytest.mark.parametrize("path", ["door.csv", "door.html"])
def test_a_web_page_is_refused_unless_it_is_the_file(
    server: FileServer, online: Settings, path: str, fetch: Fetch
) -> None:
    page = Answer(b"<!DOCTYPE html>", headers={"Content-Type": "text/html"})
    server.always(PATH, Fault(page))
    file = RemoteFile(path, (server.at(PATH),))
    if path == "door.html":
        assert fetch(file, online).path.read_bytes() == page.body
        return
    with pytest.raises(IntegrityError, match="is a web page"):
        fetch(file, online)


def test_a_changed_file_is_refused_unless_forced(
    server: FileServer, online: Settings, content: bytes, sha256: Hex, fetch: Fetch
) -> None:
    file = RemoteFile("door.hdf5", (server.at(PATH),))
    first = fetch(file, online)
    first.path.unlink()
    server.files[PATH] = changed = content + b"more"
    with pytest.raises(IntegrityError, match="changed") as caught:
        fetch(file, online)
    assert sha256(content) in caught.value.message
    assert sha256(changed) in caught.value.message
    forced = plan_fetch([file], online, force=True)
    assert run_fetch(forced, online)[0].path.read_bytes() == changed
    asked = len(server.requests)
    run_fetch(forced, online)  # as planned before another process fetched it anew
    assert fetch(file, online).path.read_bytes() == changed
    assert len(server.requests) == asked


def test_too_little_space_is_found_when_the_host_says_the_size(
    server: FileServer,
    online: Settings,
    content: bytes,
    monkeypatch: pytest.MonkeyPatch,
    fetch: Fetch,
    left: Names,
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: len(content) - 1)
    with pytest.raises(NoSpaceError, match=r"door\.hdf5"):
        fetch(RemoteFile("door.hdf5", (server.at(PATH),)), online)
    assert left() == []


def test_a_disk_that_becomes_full_leaves_nothing_behind(
    server: FileServer,
    online: Settings,
    monkeypatch: pytest.MonkeyPatch,
    named: Names,
    fetch: Fetch,
    left: Names,
) -> None:
    from offline_data.fetch.download import PartialFile

    def full(self: PartialFile, block: bytes) -> None:
        if self.size > 50_000:
            with files.disk_errors(self.path):
                raise OSError(errno.ENOSPC, "No space left on device")
        original(self, block)

    original = PartialFile.append
    monkeypatch.setattr(PartialFile, "append", full)
    with pytest.raises(NoSpaceError, match="full"):
        fetch(RemoteFile("door.hdf5", (server.at(PATH),)), online)
    assert left() == []
    assert named() == []


def test_a_root_that_is_a_file_is_named(server: FileServer, tmp_path: Path, fetch: Fetch) -> None:
    root = tmp_path / "root"
    root.write_text("not a folder")
    with pytest.raises(AccessError, match="root"):
        fetch(RemoteFile("door.hdf5", (server.at(PATH),)), Settings(root=root))


def test_waits_grow_and_are_the_servers_own_where_it_says_so(
    server: FileServer, online: Settings, fetch: Fetch
) -> None:
    waits: list[float] = []
    limits = FetchLimits(first_wait=1.0, tries=9)
    busy = Answer(b"", 429, {"Retry-After": "7"})
    server.script(PATH, *[Fault(Answer(b"", 503))] * 3, Fault(busy))
    fetch(RemoteFile("door.hdf5", (server.at(PATH),)), online, limits=limits, sleep=waits.append)
    *grown, told = waits
    assert told == 7.0
    bounds = [(0.5, 1.0), (1.0, 2.0), (2.0, 4.0)]
    assert all(low <= wait <= high for wait, (low, high) in zip(grown, bounds, strict=True))
