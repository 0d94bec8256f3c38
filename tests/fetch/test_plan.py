from __future__ import annotations

from dataclasses import replace

import pytest

from offline_data.base.config import Settings
from offline_data.base.files import boot_id
from offline_data.fetch.cache import (
    FetchRecord,
    PartialState,
    partial_path,
    state_path,
    whole_path,
    write_record,
)
from offline_data.fetch.files import RemoteFile
from offline_data.fetch.plan import FileStep, plan_fetch

URL = "http://host.example/door.hdf5"
SHA = "ab" * 32
FILE = RemoteFile("door.hdf5", (URL,), size=5)


def step(file: RemoteFile, settings: Settings, *, force: bool = False) -> FileStep:
    return plan_fetch([file], settings, force=force).steps[0]


def put(settings: Settings, data: bytes = b"abcde", digest: str | None = None) -> None:
    path = whole_path(settings, SHA)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    write_record(settings, FetchRecord(URL, SHA, 5, URL, "2024-01-01", digest=digest))


def test_nothing_is_touched(online: Settings) -> None:
    plan = plan_fetch([FILE], online)
    assert not online.root.exists()
    assert (plan.steps[0].action, plan.wanted, plan.unknown) == ("fetch", 5, 0)
    assert plan.free > 0


def test_what_is_here_is_kept(online: Settings) -> None:
    put(online)
    assert step(FILE, online, force=True).action == "replace"
    kept = step(FILE, online)
    assert (kept.action, kept.wanted, kept.path) == ("keep", 0, whole_path(online, SHA))


@pytest.mark.parametrize(
    ("file", "action"),
    [
        (replace(FILE, digest=f"sha256:{SHA}"), "keep"),
        (replace(FILE, digest="md5:" + "1" * 32), "keep"),
        (replace(FILE, size=None), "keep"),
        (replace(FILE, size=6), "replace"),
        (replace(FILE, digest="sha256:" + "0" * 64), "replace"),
        (replace(FILE, digest="md5:" + "2" * 32), "replace"),
    ],
)
def test_what_is_published_now_decides_whether_it_is_kept(
    file: RemoteFile, action: str, online: Settings
) -> None:
    put(online, digest="md5:" + "1" * 32)
    assert step(file, online).action == action


def test_a_file_that_lost_bytes_is_not_kept(online: Settings) -> None:
    put(online, b"abcd")
    found = step(FILE, online)
    assert (found.action, found.path) == ("fetch", None)


def test_the_same_content_from_elsewhere_is_kept(online: Settings) -> None:
    put(online)
    other = RemoteFile("x", ("http://other.example/x",), 5, f"sha256:{SHA.upper()}")
    assert step(other, online).action == "keep"
    whole_path(online, SHA).write_bytes(b"abcd")  # it lost bytes
    assert step(other, online).action == "fetch"


def test_a_part_is_resumed(online: Settings) -> None:
    part = partial_path(online, URL)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"ab")
    published = replace(FILE, digest=f"sha256:{SHA}")
    assert (step(published, online).action, step(published, online).wanted) == ("resume", 3)
    state_path(part).write_bytes(PartialState(URL, '"tag"', 5, boot_id(), durable=2).encode())
    assert (step(FILE, online).action, step(FILE, online).wanted) == ("resume", 3)
    assert step(replace(FILE, size=None), online).wanted is None


def test_of_a_part_that_a_crash_may_have_damaged_only_what_is_sure_is_counted(
    online: Settings,
) -> None:
    part = partial_path(online, URL)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"abc")
    assert step(FILE, online).action == "fetch"
    state_path(part).write_bytes(PartialState(URL, '"tag"', 5, "another boot", durable=1).encode())
    assert (step(FILE, online).action, step(FILE, online).wanted) == ("resume", 4)


def test_a_damaged_record_counts_as_none(online: Settings) -> None:
    put(online)
    for damaged in (b"", b"{", b"[]", b'{"url": 3}', b'{"sha256": "../../etc/passwd"}'):
        (record,) = (online.downloads / "index").iterdir()
        record.write_bytes(damaged)
        assert step(FILE, online).action == "fetch"


def test_places_are_mirrors_first(online: Settings) -> None:
    mirrors = (("http://host.example", "http://near.example"), ("http://host", "file:///mnt"))
    settings = replace(online, mirrors=mirrors)
    file = replace(FILE, urls=(URL, "http://b.example/x"))
    assert step(file, settings).places == (
        "http://near.example/door.hdf5",
        "file:///mnt.example/door.hdf5",
        URL,
        "http://b.example/x",
    )


def test_a_plan_reads_well(online: Settings) -> None:
    put(online)
    unknown = RemoteFile("big.hdf5", ("http://host.example/big.hdf5",))
    more = RemoteFile("more.hdf5", ("http://host.example/more.hdf5",), size=3 << 20)
    lines = str(plan_fetch([FILE, unknown, more], online)).splitlines()
    assert lines[:3] == [
        "keep            0 B  door.hdf5  (here already)",
        "fetch             ?  big.hdf5  (not here)",
        "fetch       3.0 MiB  more.hdf5  (not here)",
    ]
    assert lines[3].startswith("3.0 MiB and 1 file of unknown size to fetch; ")
    assert lines[3].endswith(f" free in {online.downloads}")
