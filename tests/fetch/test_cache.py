from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import NetworkError
from offline_data.base.files import file_lock
from offline_data.fetch.cache import (
    Download,
    discard,
    list_downloads,
    lock_path,
    partial_path,
    read_record,
)
from offline_data.fetch.files import FetchedFile, RemoteFile, assemble
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.retry import FetchLimits
from offline_data.fetch.run import run_fetch
from offline_data.store.cache import cache_usage, remove_items
from tests.toys.servers import Answer, Fault, FileServer


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer({f"/{name}": name.encode() * 1000 for name in "abc"}) as running:
        running.files["/again"] = running.files["/a"]
        yield running


def fetch(server: FileServer, settings: Settings, *names: str) -> tuple[FetchedFile, ...]:
    files = [RemoteFile(f"raw/{name}", (server.at(f"/{name}"),)) for name in names]
    return run_fetch(plan_fetch(files, settings), settings)


def test_files_and_parts_are_listed(
    server: FileServer, online: Settings, quick: FetchLimits
) -> None:
    assert list_downloads(online) == ()
    a, again, b = fetch(server, online, "a", "again", "b")
    server.script("/c", Fault(cut_after=300), *[Fault(Answer(b"", 503))] * 9)
    file = RemoteFile("c", (server.at("/c"),))
    with pytest.raises(NetworkError):
        run_fetch(plan_fetch([file], online), online, limits=quick)
    os.utime(a.path, (1000, 1000))
    listed = {download.path: download for download in list_downloads(online, now=1060.0)}
    assert set(listed) == {a.path, b.path, partial_path(online, server.at("/c"))}
    assert listed[a.path].urls == (server.at("/a"), server.at("/again"))
    assert (listed[a.path].size, listed[a.path].age, listed[a.path].whole) == (1000, 60.0, True)
    part = listed[partial_path(online, server.at("/c"))]
    assert (part.size, part.urls, part.whole) == (300, (server.at("/c"),), False)
    assert again.path == a.path


def test_what_is_removed_is_gone_but_remembered(
    server: FileServer, online: Settings, quick: FetchLimits
) -> None:
    a, _ = fetch(server, online, "a", "b")
    server.script("/c", Fault(cut_after=300), *[Fault(Answer(b"", 503))] * 9)
    with pytest.raises(NetworkError):
        run_fetch(plan_fetch([RemoteFile("c", (server.at("/c"),))], online), online, limits=quick)
    assert len(remove_items(cache_usage(online).items, online).removed) == 3
    assert list_downloads(online) == ()
    assert not list((online.downloads / "partial").iterdir())
    record = read_record(online, server.at("/a"))
    assert record is not None
    assert record.sha256 == a.sha256
    assert fetch(server, online, "a")[0].path.read_bytes() == b"a" * 1000


def test_what_vanishes_while_it_is_listed_is_left_out(
    server: FileServer, online: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = fetch(server, online, "a", "b")
    stat = Path.stat

    def gone(self: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if self == a.path:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return stat(self, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", gone)
    assert [download.path for download in list_downloads(online)] == [b.path]


@pytest.mark.parametrize(
    ("whole", "urls", "again"),
    [
        (True, ("http://host.example/a",), True),
        (True, ("file:///mnt/a",), False),
        (True, (), False),
        (False, (), True),
    ],
)
def test_what_a_host_has_can_be_fetched_again(
    whole: bool, urls: tuple[str, ...], again: bool
) -> None:
    assert Download(Path("x"), 1, urls, 0.0, whole).refetchable is again


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is ten seconds earlier than the one before."""
    steps = itertools.count()
    for name in ("time", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: 1e9 - 10.0 * next(steps))


@pytest.mark.usefixtures("backwards")
def test_a_clock_that_runs_backwards_does_not_keep_a_fetch_from_saying_that_it_waits(
    server: FileServer, online: Settings, tally: Any
) -> None:
    file = RemoteFile("raw/a", (server.at("/a"),))
    plan = plan_fetch([file], online)
    lock = lock_path(online, server.at("/a"))
    lock.parent.mkdir(parents=True)
    found: list[FetchedFile] = []
    with file_lock(lock, pytest.fail):
        asker = threading.Thread(
            target=lambda: found.extend(run_fetch(plan, online, tally)), daemon=True
        )
        asker.start()
        for _ in range(10_000):
            if tally.notes:
                break
            time.sleep(0.01)
        assert tally.notes == ["raw/a is being fetched already; waiting"]
    asker.join(120)
    assert [fetched.path.read_bytes() for fetched in found] == [b"a" * 1000]


@pytest.mark.usefixtures("backwards")
def test_a_part_that_is_being_fetched_is_left_alone(online: Settings) -> None:
    part = partial_path(online, "http://host.example/x")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"abc")
    lock = online.downloads / "locks" / f"{part.stem}.lock"
    lock.parent.mkdir()
    with file_lock(lock, pytest.fail):
        assert remove_items(cache_usage(online).items, online).bytes == 0
        assert part.exists()
    assert remove_items(cache_usage(online).items, online).bytes == 3
    assert not part.exists()


def test_discard_spares_files_of_the_user(
    server: FileServer, online: Settings, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    files = [RemoteFile("a", (server.at("/a"),)), RemoteFile("m", (mine.as_uri(),))]
    found = run_fetch(plan_fetch(files, online), online)
    discard(found, online)
    assert mine.exists()
    assert list_downloads(online) == ()


def test_assembled_files_have_their_names_and_share_their_bytes(
    server: FileServer, online: Settings, tmp_path: Path
) -> None:
    found = fetch(server, online, "a", "b")
    for _ in range(2):
        assemble(found, tmp_path / "set")
        laid = sorted(path for path in (tmp_path / "set").rglob("*") if path.is_file())
        assert [path.relative_to(tmp_path / "set").as_posix() for path in laid] == [
            "raw/a",
            "raw/b",
        ]
        assert [path.read_bytes() for path in laid] == [b"a" * 1000, b"b" * 1000]
        assert laid[0].samefile(found[0].path)
    discard(found, online)
    assert laid[0].read_bytes() == b"a" * 1000


def test_a_symlink_where_a_hard_link_cannot_be(
    server: FileServer, online: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    found = fetch(server, online, "a")
    monkeypatch.setattr("pathlib.Path.hardlink_to", refuse)
    assemble(found, tmp_path / "set")
    link = tmp_path / "set" / "raw" / "a"
    assert (link.is_symlink(), link.read_bytes()) == (True, b"a" * 1000)
