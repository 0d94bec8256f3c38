"""Documents and listings that are asked for, and what offline mode leaves."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import (
    AuthError,
    FormatError,
    IntegrityError,
    NetworkError,
    NotFoundError,
    OfflineDataError,
    OfflineError,
)
from offline_data.fetch.client import get_json
from offline_data.fetch.files import RemoteFile, assemble
from offline_data.fetch.gcs import list_bucket
from offline_data.fetch.hub import hub_api
from offline_data.fetch.plan import plan_fetch
from offline_data.fetch.retry import FetchLimits
from offline_data.fetch.run import run_fetch
from tests.toys.servers import Answer, Fault, FileServer


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        ([Fault(Answer(b"", 503)), Fault(cut_after=2)], None),
        ([Fault(Answer(b"", 404))], NotFoundError),
        ([Fault(Answer(b"", 403))], AuthError),
        ([Fault(Answer(b"", 500))] * 9, NetworkError),
        ([Fault(Answer(b"<html>log in"))], FormatError),
        ([Fault(Answer(b" " * (17 << 20)))], IntegrityError),
    ],
)
def test_faults_are_survived_or_named(
    faults: list[Fault], error: type[OfflineDataError] | None, online: Settings, quick: FetchLimits
) -> None:
    with FileServer({"/list": b'{"a": [1, 2]}'}) as server:
        server.script("/list", *faults)
        if error is None:
            assert get_json(server.at("/list"), online, limits=quick) == {"a": [1, 2]}
            return
        with pytest.raises(error, match=r"127\.0\.0\.1") as caught:
            get_json(server.at("/list"), online, limits=quick)
        assert type(caught.value) is error


def test_a_mirror_that_fails_is_passed_over(online: Settings, quick: FetchLimits) -> None:
    with FileServer({"/list": b"[7]"}) as server:
        settings = replace(online, mirrors=((server.url, "http://127.0.0.1:9"),))
        assert get_json(server.at("/list"), settings, limits=quick) == [7]


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
    assert "--offline" in str(caught.value.shell_hint)
    with pytest.raises(OfflineError, match=r"host\.example"):
        get_json("http://host.example/list", offline)
    with pytest.raises(OfflineError, match=r"^A listing is .* would come from https://"):
        list_bucket("gs://open-x/a", offline)
    with pytest.raises(OfflineError, match="offline mode"):
        hub_api(offline)


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


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("place", ["first", "second", "missing", "damaged"])
def test_documents_are_read_from_folders_that_are_mirrors(
    online: Settings, tmp_path: Path, place: str, offline: bool
) -> None:
    """The other mirror is a host; offline it is not asked."""
    (tmp_path / "list").write_text("{}" if place != "damaged" else "{")
    folder = tmp_path if place != "missing" else tmp_path / "none"
    with FileServer({"/list": b"[1]"}) as server:
        mirrors = [("http://host.invalid", folder.as_uri()), ("http://host.invalid", server.url)]
        if place == "second":
            mirrors.reverse()
        settings = replace(online, offline=offline, mirrors=tuple(mirrors))
        if offline and place in {"missing", "damaged"}:
            with pytest.raises(OfflineError):
                get_json("http://host.invalid/list", settings)
            return
        of_folder = place == "first" or offline
        assert get_json("http://host.invalid/list", settings) == ({} if of_folder else [1])
        assert bool(server.requests) != of_folder


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
