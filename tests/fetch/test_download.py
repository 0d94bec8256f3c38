"""A partial file: its digests at any moment, its state, and what survives a crash of the machine."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import AccessError, NetworkError
from offline_data.base.files import boot_id
from offline_data.fetch import download as download_module
from offline_data.fetch.cache import PartialState, partial_path, state_path
from offline_data.fetch.download import BackgroundWorker, PartialFile
from offline_data.fetch.files import FetchedFile, RemoteFile
from tests.toys.servers import Answer, Fault, FileServer

if TYPE_CHECKING:
    Fetch = Callable[..., FetchedFile]
    Names = Callable[[], list[str]]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"url": "http://host/x", "validator": 3}', PartialState("http://host/x")),
        (b'{"url": 7, "validator": [], "total": -1, "boot": {}, "durable": "9"}', PartialState()),
        (b'{"url": "http://ho', PartialState()),
        (b"[1]", PartialState()),
    ],
)
def test_damaged_fields_of_a_state_are_not_known(
    content: bytes, expected: PartialState, tmp_path: Path
) -> None:
    path = state_path(tmp_path / "key.part")
    assert PartialState.read(path) == PartialState()
    path.write_bytes(content)
    assert PartialState.read(tmp_path / "key.part") == expected


def test_the_running_system_is_named_alike_every_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert boot_id() == boot_id() != ""
    missing: Any = tmp_path / "boot_id"
    monkeypatch.setattr("offline_data.base.files._BOOT_ID", missing)
    assert boot_id() is None


SET = "/set/door.hdf5"
DOWN = [Fault(Answer(b"", 503))] * 9
ANOTHER = "00000000-another-boot"
PUBLISHED = RemoteFile("door.hdf5", ("http://host/x",))


def open_part(path: Path, published: RemoteFile = PUBLISHED) -> PartialFile:
    return PartialFile(path, published, lambda _: None)


@pytest.mark.parametrize("block", [1_000, 65_536])
def test_digests_are_those_of_the_bytes_that_are_here(
    block: int, tmp_path: Path, content: bytes
) -> None:
    published = replace(PUBLISHED, digest="md5:" + "0" * 32)
    pieces = [content[at : at + block] for at in range(0, len(content), block)] * 10
    with open_part(tmp_path / "key.part", published) as part:
        part.start("http://host/x", None, None)
        sent = b""
        for number, piece in enumerate(pieces):
            part.append(piece)
            sent += piece
            if number in {0, 15, 16, 17, len(pieces) - 1}:
                assert part.path.read_bytes() == sent
                assert part.hashes.hex() == hashlib.sha256(sent).hexdigest()
                assert part.size == part.hashes.size == len(sent)
        assert part.hashes.hex("md5") == hashlib.md5(sent, usedforsecurity=False).hexdigest()
        part.start("http://host/x", None, None)
        part.append(b"again")
    assert part.hashes.hex() == hashlib.sha256(b"again").hexdigest()


def test_synced_bytes_are_noted_while_the_rest_still_comes(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_module, "SYNC_EVERY", 50_000)
    synced: list[int] = []
    sync = os.fsync

    def spy(handle: int) -> None:
        if os.fstat(handle).st_ino == path.stat().st_ino:
            synced.append(os.fstat(handle).st_size)
        sync(handle)

    monkeypatch.setattr(os, "fsync", spy)
    path = tmp_path / "key.part"
    durable = []
    with open_part(path) as part:
        part.start("http://host/x", '"tag"', None)
        for at in range(0, 200_000, 40_000):
            part.append(content[at : at + 40_000])
            part._syncing.wait()
            durable.append(PartialState.read(path).durable)
            assert durable[-1] <= max(synced, default=0)
        part.secure()
        assert PartialState.read(path) == PartialState(
            "http://host/x", '"tag"', None, boot_id(), len(content)
        )
    assert durable == [0, 80_000, 80_000, 160_000, 160_000]


def test_a_state_that_takes_the_place_of_another_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with open_part(tmp_path / "key.part") as part:
        part.start("http://host/x", '"1"', 9)
        assert synced == []
        assert PartialState.read(part.path).validator == '"1"'
        part.append(b"con")
        part.start("http://host/x", '"2"', 7)
        assert synced
        assert PartialState.read(part.path) == PartialState("http://host/x", '"2"', 7, boot_id())


def cut_part(server: FileServer, online: Settings, file: RemoteFile, fetch: Fetch) -> Path:
    """Leave the first 150,000 bytes of a file, as a failed fetch does."""
    server.script(SET, Fault(cut_after=150_000), *DOWN)
    with pytest.raises(NetworkError):
        fetch(file, online)
    server.clear_script()
    server.requests.clear()
    part = partial_path(online, file.urls[0])
    assert part.stat().st_size == 150_000
    return part


def crash(part: Path, state: dict[str, Any] | None, lost_from: int) -> None:
    """Put zeros in the place of what had not reached the disk, and another state beside it."""
    content = part.read_bytes()
    part.write_bytes(content[:lost_from] + bytes(len(content) - lost_from))
    if state is None:
        state_path(part).unlink()
    else:
        state_path(part).write_text(json.dumps(state))


STATES: dict[str, tuple[dict[str, Any] | None, int]] = {
    "another boot": ({"boot": ANOTHER, "durable": 60_000}, 60_000),
    "another boot, nothing synced": ({"boot": ANOTHER, "durable": 0}, 0),
    "no name of the boot": ({"boot": None, "durable": 60_000}, 60_000),
    "an older form": ({}, 0),
    "the state is lost too": (None, 0),
}


@pytest.mark.parametrize("which", STATES)
@pytest.mark.parametrize("told", ["sha256", "nothing"])
def test_bytes_that_a_crash_took_end_in_the_right_file(
    which: str,
    told: str,
    server: FileServer,
    online: Settings,
    content: bytes,
    fetch: Fetch,
) -> None:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}" if told == "sha256" else None
    file = RemoteFile("door.hdf5", (server.at(SET),), digest=digest)
    part = cut_part(server, online, file, fetch)
    assert PartialState.read(part).durable == (0 if digest else 150_000)
    said, durable = STATES[which]
    known = {"url": file.urls[0], "validator": PartialState.read(part).validator}
    crash(part, None if said is None else {**known, **said}, durable)
    assert fetch(file, online).path.read_bytes() == content
    ranges = [request.headers.get("range") for request in server.requests]
    # a digest tells in the end, so nothing is given up before; else only what was synced is kept
    assert ranges == (
        ["bytes=150000-", None] if digest else [f"bytes={durable}-" if durable else None]
    )


@pytest.mark.skipif(boot_id() is None, reason="the running system has no name here")
def test_what_was_not_synced_is_kept_while_the_system_runs(
    server: FileServer, online: Settings, content: bytes, fetch: Fetch
) -> None:
    file = RemoteFile("door.hdf5", (server.at(SET),))
    part = cut_part(server, online, file, fetch)
    state_path(part).write_bytes(replace(PartialState.read(part), durable=0).encode())
    assert fetch(file, online).path.read_bytes() == content
    assert [request.headers["range"] for request in server.requests] == ["bytes=150000-"]


@pytest.mark.skipif(boot_id() is None, reason="the running system has no name here")
def test_a_part_of_another_boot_becomes_one_of_this(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.part"
    path.write_bytes(content[:150_000])
    state = PartialState("http://host/x", '"tag"', None, ANOTHER, 60_000)
    state_path(path).write_bytes(state.encode())
    killed = open_part(path)
    killed.__enter__()
    killed.append(content[60_000:70_000])
    assert PartialState.read(path) == replace(state, boot=boot_id())
    with open_part(path) as part:
        assert part.size == 70_000
        assert part.hashes.hex() == hashlib.sha256(content[:70_000]).hexdigest()
        assert part.range_from("http://host/x") == {"Range": "bytes=70000-", "If-Range": '"tag"'}
    killed.__exit__(None, None, None)


def test_a_disk_that_once_failed_to_sync_is_not_believed_later(
    server: FileServer,
    online: Settings,
    fetch: Fetch,
    named: Names,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(download_module, "SYNC_EVERY", 100_000)
    failures = [OSError(errno.EIO, "Input/output error")]
    sync = os.fsync

    def fail_once(handle: int) -> None:
        if failures:
            raise failures.pop()
        sync(handle)

    monkeypatch.setattr(os, "fsync", fail_once)
    with pytest.raises(AccessError, match="Input/output error"):
        fetch(RemoteFile("door.hdf5", (server.at(SET),)), online)
    assert named() == []


def test_a_failure_is_told_and_ends_the_calls_after_it() -> None:
    def fail() -> None:
        raise OSError(5, "the first failure")

    seen: list[int] = []
    worker = BackgroundWorker(limit=2)
    for call in (lambda: seen.append(1), fail, lambda: seen.append(2)):
        worker.put(call)
    with pytest.raises(OSError, match="the first failure"):
        worker.wait()
    worker.close()
    assert seen == [1]
