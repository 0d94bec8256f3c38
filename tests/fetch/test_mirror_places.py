"""Mirrors that cannot be one: refused in a sentence or passed over, never waited for."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offline_data.config import Settings, resolve_settings
from offline_data.errors import IntegrityError, NotFoundError, OfflineDataError, UsageError
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.hub import list_hub
from offline_data.paths import check_relative
from tests.fetch.conftest import MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from offline_data.fetch.files import FetchedFile
    from offline_data.testing.servers import FileServer

    Fetch = Callable[..., FetchedFile]

PATH = "/set/door.hdf5"
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


def test_it_is_an_error_where_there_is_no_other_place(tmp_path: Path, fetch: Fetch) -> None:
    make("FIFO", tmp_path / "door.hdf5")
    file = RemoteFile("door.hdf5", ((tmp_path / "door.hdf5").as_uri(),))
    with pytest.raises(NotFoundError, match="is not a plain file"):
        fetch(file, Settings(root=tmp_path / "root"))


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
    "mirror",
    ["http://[bad/", "http://h:99999/", "http://h:port/", f"http://{'a' * 300}/", "x\udcff"],
)
@pytest.mark.parametrize("side", ["prefix", "replacement"])
def test_a_url_that_is_none_is_refused(mirror: str, side: str) -> None:
    pair = f"{mirror}=http://h/" if side == "prefix" else f"http://h/={mirror}"
    with pytest.raises(UsageError, match="OFFLINE_DATA_MIRRORS"):
        resolve_settings(environ={"OFFLINE_DATA_MIRRORS": pair})


@pytest.mark.parametrize("proxy", ["foo://x", "http://u:hush@h:port", "socks9://x:1", "http://[x"])
def test_a_proxy_that_is_none(
    proxy: str, monkeypatch: pytest.MonkeyPatch, online: Settings, fetch: Fetch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(OfflineDataError) as caught:
        fetch(RemoteFile("door.hdf5", ("http://published.example/door.hdf5",)), online)
    assert caught.value.code in {"usage", "network"}
    assert "hush" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize("name", ["a" * 256, "a/" * 2100 + "b", "a\udc80b", "\ud800", "", "a\0b"])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(IntegrityError, match="is named"):
        check_relative(name)


def test_a_listing_of_the_hub_that_never_ends(
    monkeypatch: pytest.MonkeyPatch, online: Settings
) -> None:
    from itertools import repeat
    from types import SimpleNamespace

    from offline_data.fetch import hub

    entry = SimpleNamespace(path="data/x", size=1, lfs=None, blob_id="0" * 40)
    api = SimpleNamespace(
        dataset_info=lambda *_args, **_rest: SimpleNamespace(sha="c" * 40),
        list_repo_tree=lambda *_args, **_rest: repeat(entry),
    )
    monkeypatch.setattr(hub, "hub_api", lambda _settings: api)
    monkeypatch.setattr(hub, "_MOST_ENTRIES", 1000)
    with pytest.raises(IntegrityError, match="more than 1,000"):
        list_hub("u/n", "data", None, online)
