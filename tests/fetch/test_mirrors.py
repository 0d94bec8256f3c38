"""Several places for a file: mirrors, hosts that fail, threads; damaged mirrors are refused or skipped."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offline_data.base.config import Settings, resolve_settings
from offline_data.base.errors import (
    AuthError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
)
from offline_data.fetch.files import FetchedFile, RemoteFile
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.retry import FetchLimits
from offline_data.fetch.run import run_fetch
from tests.fetch.conftest import MAGIC
from tests.toys.servers import Answer, Fault, FileServer

if TYPE_CHECKING:
    Fetch = Callable[..., FetchedFile]
    Hex = Callable[[bytes], str]

PATH = "/set/door.hdf5"
HTML = Answer(b"<!DOCTYPE html><title>Log in</title>", headers={"Content-Type": "text/html"})


def test_a_mirror_comes_first_and_its_failure_is_named(
    server: FileServer, online: Settings, content: bytes, fetch: Fetch
) -> None:
    with FileServer({"/m/door.hdf5": content}) as mirror:
        settings = replace(online, mirrors=((server.url + "/set", mirror.url + "/m"),))
        found = fetch(RemoteFile("door.hdf5", (server.at(PATH),)), settings)
        assert (found.url, found.failed) == (mirror.at("/m/door.hdf5"), ())
        assert server.requests == []
        mirror.always("/m/door.hdf5", Fault(HTML))
        file = RemoteFile("door.hdf5", (server.at(PATH),), magic=MAGIC)
        found = fetch(file, replace(settings, root=online.root / "b"))
    assert found.url == server.at(PATH)
    assert len(found.failed) == 1
    assert found.failed[0].startswith(mirror.url.removeprefix("http://") + ": ")
    assert "web page" in found.failed[0]


@pytest.mark.parametrize(
    ("mirror", "published", "kind"),
    [(404, 403, AuthError), (403, 404, NotFoundError), (404, 500, NetworkError)],
)
def test_where_no_place_is_left_the_published_host_decides_the_kind_of_error(
    mirror: int,
    published: int,
    kind: type[OfflineDataError],
    server: FileServer,
    online: Settings,
    fetch: Fetch,
) -> None:
    server.always(PATH, Fault(Answer(b"", published)))
    server.always("/m/door.hdf5", Fault(Answer(b"", mirror)))
    settings = replace(online, mirrors=((server.url + "/set", server.url + "/m"),))
    with pytest.raises(
        kind, match=f"any of 2 places:\\n  .*{mirror}.*\\n  .*{published}"
    ) as caught:
        fetch(RemoteFile("door.hdf5", (server.at(PATH),)), settings)
    assert type(caught.value) is kind


def test_a_part_from_a_mirror_is_continued_elsewhere_if_a_digest_will_tell(
    server: FileServer, online: Settings, content: bytes, sha256: Hex, fetch: Fetch
) -> None:
    digest = f"sha256:{sha256(content)}"
    with FileServer({PATH: content}) as mirror:
        mirror.script(PATH, Fault(cut_after=120_000), *[Fault(Answer(b"", 503))] * 9)
        settings = replace(online, mirrors=((server.url, mirror.url),))
        found = fetch(RemoteFile("door.hdf5", (server.at(PATH),), digest=digest), settings)
    assert found.path.read_bytes() == content
    assert [request.headers.get("range") for request in server.requests] == ["bytes=120000-"]


def test_a_wrong_part_is_dropped_and_the_file_fetched_whole(
    server: FileServer, online: Settings, content: bytes, sha256: Hex, fetch: Fetch
) -> None:
    file = RemoteFile("door.hdf5", (server.at(PATH),), digest=f"sha256:{sha256(content)}")
    with FileServer({PATH: content[::-1]}) as mirror:
        mirror.script(PATH, Fault(cut_after=120_000), *[Fault(Answer(b"", 503))] * 9)
        settings = replace(online, mirrors=((server.url, mirror.url),))
        assert fetch(file, settings).path.read_bytes() == content
    asked = [request.headers.get("range") for request in server.requests]
    assert asked == ["bytes=120000-", None]


def test_a_dead_host_is_tried_last_for_the_files_after_it(
    server: FileServer, online: Settings, content: bytes, quick: FetchLimits
) -> None:
    paths = [f"/set/{number}.hdf5" for number in range(4)]
    server.files.update({path: content + path.encode() for path in paths})
    with FileServer({}) as mirror:
        for path in paths:
            mirror.always(path, Fault(Answer(b"", 503)))
        settings = replace(online, mirrors=((server.url, mirror.url),))
        files = [RemoteFile(path[1:], (server.at(path),)) for path in paths]
        limits = replace(quick, files_at_once=1)
        found = run_fetch(plan_fetch(files, settings), settings, limits=limits)
        assert len(mirror.requests) == quick.tries
    assert [file.path.read_bytes() for file in found] == [content + p.encode() for p in paths]
    assert [len(file.failed) for file in found] == [1, 0, 0, 0]


def test_many_files_share_one_count_of_bytes_and_few_connections(
    online: Settings, tally: Any, quick: FetchLimits
) -> None:
    files = {f"/{number}": number.to_bytes(4, "big") * 50_000 for number in range(1, 13)}
    with Busy(files) as server:
        for path in files:
            server.script(path, Fault(cut_after=30_000), Fault(ignore_range=True))
        wanted = [RemoteFile(path[1:], (server.at(path),)) for path in files]
        found = run_fetch(
            plan_fetch(wanted, online), online, tally, limits=replace(quick, per_host=3)
        )
        assert 1 < server.most <= 3
    assert [file.path.read_bytes() for file in found] == list(files.values())
    assert [file.name for file in found] == [path[1:] for path in files]
    assert (tally.seen, tally.total) == (12 * 200_000, 12 * 200_000)


class Busy(FileServer):
    """Counts the requests that are under way at the same time."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(files)
        self.now = self.most = 0
        self.lock = threading.Lock()

    def answer(self, request: Any) -> Answer:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        until = time.monotonic() + 60
        while self.most < 2 and time.monotonic() < until:  # the first waits for a second
            self.closing.wait(0.01)
        self.closing.wait(0.02)
        with self.lock:
            self.now -= 1
        return super().answer(request)


def test_a_host_that_does_not_listen_is_a_network_error(online: Settings, fetch: Fetch) -> None:
    with pytest.raises(NetworkError, match=r"http://127\.0\.0\.1:9/x.*3 attempts"):
        fetch(RemoteFile("x", ("http://127.0.0.1:9/x",)), online)


def test_a_file_of_this_machine_is_verified_and_not_copied(
    online: Settings, tmp_path: Path, content: bytes, sha256: Hex, fetch: Fetch
) -> None:
    mine = tmp_path / "my file.hdf5"
    mine.write_bytes(content)
    file = RemoteFile("door.hdf5", (mine.as_uri(),), len(content), None, MAGIC)
    found = fetch(file, replace(online, offline=True))
    assert (found.path, found.sha256) == (mine, sha256(content))
    assert plan_fetch([file], online).steps[0].action == "keep"
    mine.write_bytes(content[:-1] + b"!")
    os.utime(mine, ns=(1, 1))
    with pytest.raises(IntegrityError, match="changed"):
        fetch(file, online)
    assert mine.exists()
    mine.unlink()
    with pytest.raises(NotFoundError, match="my file"):
        fetch(file, online)


def test_two_threads_that_want_one_url_ask_for_it_once(
    server: FileServer, online: Settings, content: bytes, quick: FetchLimits
) -> None:
    server.script(PATH, Fault(pause=0.05))
    files = [RemoteFile(name, (server.at(PATH),)) for name in ("a", "b", "c")]
    found = run_fetch(plan_fetch(files, online), online, limits=quick)
    assert len(server.requests) == 1
    assert [file.name for file in found] == ["a", "b", "c"]
    assert {file.path.read_bytes() for file in found} == {content}


def test_one_failure_ends_the_others_soon(online: Settings, quick: FetchLimits) -> None:
    big = bytes(range(256)) * 40_000
    with FileServer({"/big": big}) as server:
        server.always("/big", Fault(pause=0.05))
        files = [RemoteFile(name, (server.at(f"/{name}"),)) for name in ("big", "missing")]
        with pytest.raises(NotFoundError, match="missing"):
            run_fetch(plan_fetch(files, online), online, limits=quick)
        assert not [thread for thread in threading.enumerate() if "(_work)" in thread.name]


KINDS = ("FIFO", "device", "folder", "socket", "link to a device", "nothing")


def make(kind: str, place: Path) -> None:
    if kind == "FIFO":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    elif kind in {"device", "link to a device"}:
        place.symlink_to("/dev/zero")
    elif kind == "socket":
        with closing(socket.socket(socket.AF_UNIX)) as bound:
            here = Path.cwd()
            os.chdir(place.parent)  # the name of a socket has a hundred bytes at most
            bound.bind(place.name)
            os.chdir(here)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_in_a_mirrors_folder_is_passed_over(
    kind: str, server: FileServer, content: bytes, tmp_path: Path, fetch: Fetch
) -> None:
    make(kind, tmp_path / "door.hdf5")
    settings = Settings(
        root=tmp_path / "root", mirrors=((server.at("/set/"), f"{tmp_path.as_uri()}/"),)
    )
    found = fetch(RemoteFile("door.hdf5", (server.at(PATH),), magic=MAGIC), settings)
    assert found.path.read_bytes() == content
    assert len(found.failed) == 1
    assert found.failed[0].startswith("this machine: There is no door.hdf5 at")


def test_a_folder_whose_name_is_no_text(
    server: FileServer, content: bytes, tmp_path: Path, fetch: Fetch
) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    (folder / "door.hdf5").write_bytes(content)
    mirrors = f"{server.at('/set/')}={folder}/"
    settings = resolve_settings(root=tmp_path / "root", environ={"OFFLINE_DATA_MIRRORS": mirrors})
    found = fetch(RemoteFile("door.hdf5", (server.at(PATH),)), settings)
    assert found.path == folder / "door.hdf5"
    assert server.requests == []


@pytest.mark.parametrize(
    "proxy", ["foo://x", "http://u:hush@h:port", "u:hush@[x", "socks9://x:1", "http://[x"]
)
def test_a_proxy_that_is_none(
    proxy: str, monkeypatch: pytest.MonkeyPatch, online: Settings, fetch: Fetch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(OfflineDataError) as caught:
        fetch(RemoteFile("door.hdf5", ("http://published.example/door.hdf5",)), online)
    assert caught.value.code == "usage" or "[x is not found" in str(caught.value)
    assert "hush" not in f"{caught.value}{caught.value.hint}"
