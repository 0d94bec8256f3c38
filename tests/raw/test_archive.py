"""Archives of every kind: what went in comes out, and what is hostile or damaged is refused whole."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import threading
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.base.errors import AccessError, FormatError, IntegrityError
from offline_data.raw import archive
from offline_data.raw.archive import Member, open_members
from tests.refusals import Refusals

REFUSALS = Refusals.beside(__file__)
BUDGET = 1 << 20
GNU, PAX = tarfile.GNU_FORMAT, tarfile.PAX_FORMAT

TREE = {
    "b/second": b"2001;2002",
    "a/first": b"1001",
    "empty": b"",
    "long/" + "é" * 120: b"7" * 3000,
}

Write = Callable[..., Path]


def tar(
    tree: dict[str, bytes],
    more: tuple[tarfile.TarInfo, ...] = (),
    mode: str = "w",
    form: int = PAX,
) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode=mode, format=form) as new:  # type: ignore[call-overload]
        folder = tarfile.TarInfo("./a")
        folder.type = tarfile.DIRTYPE
        new.addfile(folder)
        for name, content in tree.items():
            info = tarfile.TarInfo(f"./{name}" if name in TREE else name)
            info.size, info.mode, info.mtime, info.uid = len(content), 0o6777, 1, 12345
            new.addfile(info, io.BytesIO(content))
        for info in more:
            new.addfile(info)
    return archive.getvalue()


def packed(tree: dict[str, bytes], modes: dict[str, int] | None = None, method: int = 8) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as new:
        new.writestr("a/", b"")
        for name, content in tree.items():
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = (modes or {}).get(name, 0o106777) << 16
            new.writestr(info, content, method)
    return archive.getvalue()


def entry(name: str, kind: bytes, size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, "/etc/passwd", size
    return info


KINDS = {
    "zip": packed(TREE),
    "zip stored": packed(TREE, method=0),
    "tar": tar(TREE),
    "tar gnu": tar(TREE, form=GNU),
    "tar.gz": tar(TREE, mode="w:gz"),
    "tar.xz": tar(TREE, mode="w:xz"),
    "tar.bz2": tar(TREE, mode="w:bz2"),
}

HOSTILE = {
    "zip above": packed({**TREE, "a/../../x": b"1"}),
    "zip absolute": packed({**TREE, "/x": b"1"}),
    "zip backslash": packed({**TREE, "a\\..\\x": b"1"}),
    "zip link": packed({**TREE, "link": b"/etc/passwd"}, {"link": 0o120777}),
    "zip both": packed({**TREE, "empty/x": b"1"}),
    "zip too large": packed({**TREE, "x": bytes(BUDGET)}),
    "zip damaged": KINDS["zip"].replace(b"b/second", b"b/SECOND", 1),
    "zip other content": KINDS["zip stored"].replace(b"2001;2002", b"2001;2003"),
    "zip cut short": KINDS["zip"][:-30],
    "zip encrypted": KINDS["zip"].replace(b"PK\1\2\x14\x03\x14\0\0\0", b"PK\1\2\x14\x03\x14\0\1\0"),
    "zip name of 300 bytes": packed({"x" * 300: b"1"}),
    "gz too large": gzip.compress(bytes(BUDGET + 1)),
    "gz cut short": gzip.compress(b"1001")[:-1],
    "gz damaged": gzip.compress(b"1001")[:-5] + bytes(5),
    "xz too large": lzma.compress(bytes(BUDGET + 1)),
    "bz2 damaged": bz2.compress(b"1001" * 99)[:-5] + bytes(5),
    "tar cut short": KINDS["tar"][:2000],
    "tar cut between members": KINDS["tar"][: KINDS["tar"].index(b"a/first") - 2],
    "tar without an end": KINDS["tar"].rstrip(b"\0")
    + bytes(-len(KINDS["tar"].rstrip(b"\0")) % 512),
    "tar damaged header": KINDS["tar"].replace(b"a/first", b"a/FIRST", 1),
    "tar.gz cut short": KINDS["tar.gz"][:-9],
    "tar.gz damaged": KINDS["tar.gz"][:-5] + bytes(5),
    "tar.gz with endless zeros": gzip.compress(tar(TREE) + bytes(1 << 25)),
    "a chain of headers": tar({}, tuple(entry("x", tarfile.XGLTYPE) for _ in range(3000))),
    "7z": b"7z\xbc\xaf\x27\x1c\0\4",
    "nothing": b"",
    "zeros": bytes(10240),
}


TARS: dict[str, tuple[dict[str, bytes], tuple[tarfile.TarInfo, ...]]] = {
    "above": ({**TREE, "a/../../x": b"1"}, ()),
    "absolute": ({**TREE, "/x": b"1"}, ()),
    "link": (TREE, (entry("link", tarfile.SYMTYPE),)),
    "hard link": (TREE, (entry("link", tarfile.LNKTYPE),)),
    "through a link": (TREE, (entry("l", tarfile.SYMTYPE), entry("l/x", tarfile.REGTYPE))),
    "fifo": (TREE, (entry("f", tarfile.FIFOTYPE),)),
    "device": (TREE, (entry("f", tarfile.CHRTYPE),)),
    "twice": (TREE, (entry("empty", tarfile.REGTYPE),)),
    "both": (TREE, (entry("empty/x", tarfile.REGTYPE),)),
    "file that is a folder": (TREE, (entry("a", tarfile.REGTYPE),)),
    "too large": ({**TREE, "x": bytes(BUDGET)}, ()),
    "sizes that lie": (TREE, (entry("x", tarfile.REGTYPE, 99_999),)),
    "extended header of a TiB": (TREE, (entry("x", tarfile.XHDTYPE, 1 << 40),)),
    "long name of a TiB": (TREE, (entry("x", tarfile.GNUTYPE_LONGNAME, 1 << 40),)),
    "sparse": (TREE, (entry("x", tarfile.GNUTYPE_SPARSE),)),
}


def hostile(name: str, mode: str = "w") -> bytes:
    """Return a tar; sizes of a TiB are written as GNU does: in a pax header, they would not be its own."""
    return tar(*TARS[name], mode, GNU if "TiB" in name else PAX)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write an archive whose name says nothing."""

    def written(archive: bytes, name: str = "x") -> Path:
        (tmp_path / "raw").mkdir(exist_ok=True)
        path = tmp_path / "raw" / name
        path.write_bytes(archive)
        return path

    return written


def read(path: Path, budget: int = BUDGET) -> dict[str, bytes]:
    return {member.name: member.stream.read() for member in open_members(path, budget=budget)}


@pytest.mark.parametrize("kind", KINDS)
def test_what_went_in_comes_out(write: Write, kind: str) -> None:
    path = write(KINDS[kind])
    assert list(read(path, 3013).items()) == list(TREE.items())
    found = [(m.name, m.size, m.stream.read(2)) for m in open_members(path, budget=BUDGET)]
    assert found == [(name, len(content), content[:2]) for name, content in TREE.items()]
    with pytest.raises(FormatError, match="which makes 3013 in all; expected at most 3012"):
        read(path, 3012)


@pytest.mark.parametrize("suffix", ["gz", "xz", "bz2"])
def test_a_lone_compressed_file_is_one_member(write: Write, suffix: str) -> None:
    compress: Any = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}[suffix]
    path = write(compress(b"1001;" * 2000), f"reward_ckpt.0.{suffix}")
    found = [(m.name, m.size, m.stream.read()) for m in open_members(path, budget=10_000)]
    assert found == [("reward_ckpt.0", -1, b"1001;" * 2000)]
    with pytest.raises(FormatError, match="more bytes than it may have"):
        [m.stream.read() for m in open_members(path, budget=9_999)]


def test_archives_of_the_field(realdata: Path) -> None:
    folder = realdata / "fixtures_generated"
    for path in [*folder.glob("gendgrl/*.tar*"), *folder.glob("oxe_jxu124/*/*.tar")]:
        with tarfile.open(path) as archive:
            expected = {m.name: archive.extractfile(m).read() for m in archive if m.isreg()}  # type: ignore[union-attr]
        assert read(path, 1 << 30) == expected != {}


@REFUSALS.of("archives", [*HOSTILE, "missing"])
def test_what_is_hostile_or_damaged_is_refused(tmp_path: Path, write: Write, name: str) -> None:
    path = tmp_path / "x.zip" if name == "missing" else write(HOSTILE[name])
    REFUSALS.check("archives", name, lambda: read(path), {tmp_path: "FOLDER"})


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@REFUSALS.of("tars", TARS)
def test_hostile_tars_are_refused(tmp_path: Path, write: Write, name: str, mode: str) -> None:
    path = write(hostile(name, mode))
    REFUSALS.check("tars", name, lambda: read(path), {tmp_path: "FOLDER"})


def test_a_hostile_header_takes_no_memory(write: Write, memory_below: Callable[[int], Any]) -> None:
    path = write(gzip.compress(hostile("extended header of a TiB") + bytes(1 << 26)))
    with memory_below(8 << 20), pytest.raises(FormatError, match=f"header of {1 << 40} bytes"):
        list(open_members(path, budget=BUDGET))


def inflating() -> set[threading.Thread]:
    """Return the threads that inflate."""
    return {one for one in threading.enumerate() if "inflate" in one.name}


@pytest.mark.parametrize("mode", ["w:gz", "w:xz", "w:bz2"])
def test_threads_end_with_the_reading(
    write: Write, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where most of an archive has not been read, and a member's stream is still held."""
    monkeypatch.setattr(archive, "_INFLATED", 1 << 12)
    before, content = inflating(), os.urandom(1 << 16)
    path = write(tar({"first": content, "second": b"2001"}, mode=mode))
    members = cast("Generator[Member, None, None]", open_members(path, budget=1 << 30))
    first = next(members)
    assert (first.stream.read(9), len(inflating() - before)) == (content[:9], 1)
    members.close()
    assert inflating() == before
    members = cast("Generator[Member, None, None]", open_members(path, budget=1 << 30))
    assert {m.name: m.stream.read() for m in members} == {"first": content, "second": b"2001"}
    assert inflating() == before


@pytest.mark.parametrize("suffix", ["gz", "xz", "bz2"])
def test_what_is_before_damage_is_read(
    write: Write, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error comes out of the read that reaches it, though the thread has met it before."""
    compress: Any = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress}[suffix]
    monkeypatch.setattr(archive, "_INFLATED", 1 << 12)
    before, content = inflating(), os.urandom(1 << 16)
    path = write(compress(content)[:-9])
    members = cast("Generator[Member, None, None]", open_members(path, budget=1 << 30))
    stream = next(members).stream
    assert stream.read(1 << 12) == content[: 1 << 12]
    with pytest.raises(FormatError, match=r"/raw/x is damaged or not supported: .*end"):
        stream.read()
    members.close()
    assert inflating() == before


def test_members_that_are_not_read_are_passed_over(write: Write) -> None:
    content = os.urandom(1 << 20)
    for mode in ("w", "w:gz"):
        path = write(tar({"first": content, "second": b"2001"}, mode=mode))
        found = [m.stream.read(3) for m in open_members(path, budget=1 << 30)]
        assert found == [content[:3], b"200"]


def test_an_archive_that_may_not_be_read(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(KINDS["tar"])

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(tarfile.TarFile, "next", fail)
    with pytest.raises(AccessError, match="/raw/x cannot be read: Input/output error"):
        read(path)


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), at=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_any_other_byte_is_an_error_or_harmless(
    kind: str, at: int, byte: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Plain tars have no checksum of contents; all else comes out as it went in, or not at all."""
    damaged = bytearray(KINDS[kind])
    damaged[at % len(damaged)] = byte
    path = tmp_path_factory.mktemp("x") / "x"
    path.write_bytes(damaged)
    try:
        found = read(path)
    except IntegrityError:
        return
    if kind.startswith("tar") and "." not in kind:
        return
    # Names are not covered by a checksum of zip.
    assert sorted(found.values()) == sorted(TREE.values())
