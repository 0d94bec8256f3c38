from __future__ import annotations

import socket
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import pytest

from offline_data.errors import OfflineError
from offline_data.fetch.client import get_json
from offline_data.fetch.files import RemoteFile, assemble
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.run import run_fetch
from offline_data.testing.servers import FileServer

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        pytest.fail("a socket was opened in offline mode")

    for name in ("socket", "create_connection", "getaddrinfo", "socketpair"):
        monkeypatch.setattr(socket, name, refuse)


@pytest.mark.parametrize("url", ["http://host.example/a", "hf://datasets/u/n@c/a"])
def test_what_is_not_here_is_named_without_a_socket(
    url: str, online: Settings, no_sockets: None
) -> None:
    offline = replace(online, offline=True)
    with pytest.raises(OfflineError, match=f"a.hdf5 is not on this disk.*{url}") as caught:
        run_fetch(plan_fetch([RemoteFile("a.hdf5", (url,))], offline), offline)
    assert "--offline" in str(caught.value.hint)
    with pytest.raises(OfflineError, match=r"host\.example"):
        get_json("http://host.example/list", offline)


def test_what_is_here_works_without_a_socket(
    online: Settings, content: bytes, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with FileServer({"/a": content}) as server:
        files = [RemoteFile("sub/a.hdf5", (server.at("/a"),), len(content))]
        run_fetch(plan_fetch(files, online), online)
    request.getfixturevalue("no_sockets")
    offline = replace(online, offline=True)
    found = run_fetch(plan_fetch(files, offline), offline)
    assemble(found, tmp_path / "raw")
    assert (tmp_path / "raw/sub/a.hdf5").read_bytes() == content


def test_a_mirror_on_this_machine_works_offline(
    online: Settings, content: bytes, tmp_path: Path, no_sockets: None
) -> None:
    (tmp_path / "a").write_bytes(content)
    mirrors = (("http://host.example", tmp_path.as_uri()),)
    offline = replace(online, offline=True, mirrors=mirrors)
    plan = plan_fetch([RemoteFile("a.hdf5", ("http://host.example/a",))], offline)
    (found,) = run_fetch(plan, offline)
    assert found.path == tmp_path / "a"
    assert found.failed == ()
