"""Archives of every kind: found by first bytes, extracted whole or not at all."""

from __future__ import annotations

import errno
import gzip
import io
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offline_data.errors import (
    AccessError,
    FormatError,
    IntegrityError,
    NoSpaceError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.readers import archives
from offline_data.readers.archives import extract, open_members
from offline_data.readers.members import Member

MOST = 1 << 20

TREE = {"b/second": b"2001;2002", "a/first": b"1001", "empty": b""}

Snapshot = Callable[[Path], dict[str, "bytes | None"]]


def tar(tree: dict[str, bytes], more: tuple[tarfile.TarInfo, ...] = (), mode: str = "w") -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode=mode) as new:  # type: ignore[call-overload]
        for name, content in tree.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime, info.uid = len(content), 0o6777, 1, 12345
            new.addfile(info, io.BytesIO(content))
        for info in more:
            new.addfile(info)
    return archive.getvalue()


def packed(tree: dict[str, bytes], modes: dict[str, int] | None = None) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as new:
        for name, content in tree.items():
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = (modes or {}).get(name, 0o106777) << 16
            new.writestr(info, content, zipfile.ZIP_DEFLATED)
    return archive.getvalue()


def link(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


KINDS = {
    "zip": packed(TREE),
    "tar": tar(TREE),
    "tar.gz": tar(TREE, mode="w:gz"),
}

HOSTILE = {
    "zip above": packed({**TREE, "a/../../x": b"1"}),
    "zip absolute": packed({**TREE, "/x": b"1"}),
    "zip link": packed({**TREE, "link": b"/etc/passwd"}, {"link": 0o120777}),
    "zip both": packed({**TREE, "empty/x": b"1"}),
    "zip too large": packed({**TREE, "x": bytes(MOST)}),
    "zip damaged": KINDS["zip"].replace(b"b/second", b"b/SECOND", 1),
    "gz too large": gzip.compress(bytes(MOST + 1)),
    "gz cut short": gzip.compress(b"1001")[:-1],
    "gz damaged": gzip.compress(b"1001")[:-5] + bytes(5),
    **{
        f"{mode} {kind}": tar(tree, more, mode=mode)
        for mode in ("w", "w:gz")
        for kind, tree, more in [
            ("above", {**TREE, "a/../../x": b"1"}, ()),
            ("absolute", {**TREE, "/x": b"1"}, ()),
            ("link", TREE, (link("link"),)),
            ("through a link", {**TREE}, (link("a/link"), tarfile.TarInfo("a/link/x"))),
            ("twice", TREE, (tarfile.TarInfo("empty"),)),
            ("both", TREE, (tarfile.TarInfo("empty/x"),)),
            ("too large", {**TREE, "x": bytes(MOST)}, ()),
        ]
    },
    "tar cut short": KINDS["tar"][:2000],
    "tar.gz cut short": KINDS["tar.gz"][:-9],
    "tar.gz damaged": KINDS["tar.gz"][:-5] + bytes(5),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    """Write an archive whose name says nothing."""

    def written(archive: bytes) -> Path:
        (tmp_path / "raw").mkdir(exist_ok=True)
        path = tmp_path / "raw" / "x"
        path.write_bytes(archive)
        return path

    return written


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_is_found_by_first_bytes(write: Callable[[bytes], Path], kind: str) -> None:
    members = open_members(write(KINDS[kind]), most=13)
    assert {member.name: member.stream.read() for member in members} == TREE


@pytest.mark.parametrize("name", ["reward_ckpt.0.gz", "reward_ckpt.0"])
def test_a_lone_gzip_file_is_one_member(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"1001;" * 2000))
    members = open_members(path, most=10_000)
    assert [(m.name, m.size, m.stream.read()) for m in members] == [
        ("reward_ckpt.0", -1, b"1001;" * 2000)
    ]
    with pytest.raises(FormatError, match="more than the 9999 bytes"):
        list(open_members(path, most=9_999))


@pytest.mark.parametrize(
    ("head", "found"),
    [
        (b"BZh91AY&SY", "by bzip2, which is not supported"),
        (b"\xfd7zXZ\0\0\4", "by xz, which is not supported"),
        (b"7z\xbc\xaf\x27\x1c\0\4", "by 7z, which is not supported"),
        (b"Rar!\x1a\x07\1\0", "by rar, which is not supported"),
        (b"(\xb5/\xfd\4", "by zstd, which is not supported"),
        (b"<html>404", "a web page"),
        (b"\x89HDF\r\n\x1a\n", r"begins with b'\\x89HDF"),
        (b"", "is empty"),
        (bytes(10240), "begins with"),
    ],
)
def test_other_files_are_described(write: Callable[[bytes], Path], head: bytes, found: str) -> None:
    with pytest.raises(FormatError, match=f"/x is not a zip, tar or gzip file: .*{found}"):
        open_members(write(head), most=MOST)


def test_a_tar_archive_that_is_damaged_at_once_is_still_one(
    write: Callable[[bytes], Path],
) -> None:
    with pytest.raises(FormatError, match="/x is not a tar archive: it begins with b'a/SECOND'"):
        list(open_members(write(KINDS["tar"].replace(b"b/second", b"a/SECOND", 1)), most=MOST))


def test_archives_that_others_made_and_nobody_reads(realdata: Path) -> None:
    path = realdata / "fixtures_generated" / "gendgrl" / "coinrun.tar.xz"
    with pytest.raises(FormatError, match=r"coinrun\.tar\.xz .* by xz, which is not supported"):
        open_members(path, most=MOST)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"x\.zip"):
        open_members(tmp_path / "x.zip", most=MOST)


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_written_as_they_are(
    write: Callable[[bytes], Path], tmp_path: Path, snapshot: Snapshot, kind: str
) -> None:
    folder = tmp_path / "new" / "folder"
    before = os.umask(0o077)
    try:
        files = extract(write(KINDS[kind]), folder, most=13)
    finally:
        os.umask(before)
    assert [path.relative_to(folder).as_posix() for path in files] == list(TREE)
    assert [path.read_bytes() for path in files] == list(TREE.values())
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o644}
    assert {path.stat().st_uid for path in files} == {os.getuid()}
    assert min(path.stat().st_mtime for path in files) > 1_000_000
    assert set(snapshot(tmp_path / "new")) == {str(folder / name) for name in ["", "a", "b", *TREE]}


def test_a_lone_gzip_file_is_written(tmp_path: Path) -> None:
    path = tmp_path / "first.npy.gz"
    path.write_bytes(gzip.compress(b"1001"))
    assert extract(path, tmp_path / "out", most=4) == (tmp_path / "out" / "first.npy",)
    assert (tmp_path / "out" / "first.npy").read_bytes() == b"1001"


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_wanted_is_written(
    write: Callable[[bytes], Path], tmp_path: Path, kind: str
) -> None:
    folder = tmp_path / "out"
    wanted = extract(write(KINDS[kind]), folder, most=13, wanted=lambda name: name != "a/first")
    assert wanted == (folder / "b/second", folder / "empty")
    assert not (folder / "a").exists()


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_refusal_leaves_nothing(
    write: Callable[[bytes], Path], tmp_path: Path, snapshot: Snapshot, kind: str
) -> None:
    path = write(HOSTILE[kind])
    before = snapshot(tmp_path)
    with pytest.raises(IntegrityError, match="/raw/x"):
        extract(path, tmp_path / "out", most=MOST)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_leaves_nothing(
    write: Callable[[bytes], Path], tmp_path: Path, snapshot: Snapshot, kind: str
) -> None:
    path = write(KINDS[kind])
    before = snapshot(tmp_path)
    during = []

    def interrupt(name: str) -> bool:
        if name == "empty":
            during.append(snapshot(tmp_path))
            raise KeyboardInterrupt
        return True

    with pytest.raises(KeyboardInterrupt):
        extract(path, tmp_path / "out", most=MOST, wanted=interrupt)
    assert snapshot(tmp_path) == before
    hidden = [name for name in during[0] if name not in before]
    assert len(hidden) == 5
    assert all(name.startswith(f"{tmp_path}/.out.") for name in hidden)


@pytest.mark.parametrize("there", ["file", "folder", "link"])
def test_nothing_that_exists_is_touched(
    write: Callable[[bytes], Path], tmp_path: Path, snapshot: Snapshot, there: str
) -> None:
    path, folder = write(KINDS["zip"]), tmp_path / "out"
    if there == "file":
        folder.write_bytes(b"mine")
    elif there == "folder":
        folder.mkdir()
    else:
        folder.symlink_to("nowhere")
    before = snapshot(tmp_path / "raw"), sorted(tmp_path.iterdir())
    with pytest.raises(UsageError, match="out exists"):
        extract(path, folder, most=MOST)
    assert (snapshot(tmp_path / "raw"), sorted(tmp_path.iterdir())) == before


def test_space_is_asked_for_before_a_member(
    write: Callable[[bytes], Path],
    tmp_path: Path,
    snapshot: Snapshot,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write(KINDS["tar"])
    before = snapshot(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 1, 8))
    with pytest.raises(NoSpaceError, match=r"'b/second' of .*/raw/x needs 9 B"):
        extract(path, tmp_path / "out", most=MOST)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, NoSpaceError), (errno.EACCES, AccessError)]
)
def test_a_disk_that_fails(
    write: Callable[[bytes], Path],
    tmp_path: Path,
    snapshot: Snapshot,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    error: type[OfflineDataError],
) -> None:
    path = write(KINDS["tar"])
    before = snapshot(tmp_path)

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(error):
        extract(path, tmp_path / "out", most=MOST)
    assert snapshot(tmp_path) == before


def test_names_that_are_one_to_the_file_system(tmp_path: Path) -> None:
    def members() -> Iterator[Member]:
        for name in ("A", "a"):
            yield Member(name, 0, io.BytesIO())

    first, second = members()
    archives._write(Path("x.zip"), first, tmp_path)
    (tmp_path / "A").rename(tmp_path / "a")
    with pytest.raises(FormatError, match=r"x\.zip has a member 'a' that has the name of another"):
        archives._write(Path("x.zip"), second, tmp_path)
