"""Zip files: the members that went in, and hostile, lying or damaged ones refused."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.errors import FormatError, IntegrityError, NotFoundError, OfflineDataError
from offline_data.readers import zip_directory, zips
from offline_data.readers.zips import open_zip, zip_members

MOST = 1 << 20

LOCAL, ENTRY, FINISH = b"PK\3\4", b"PK\1\2", b"PK\5\6"

FIRST, SECOND = b"1001;1002;" * 30, b"2001;2002;" * 30

Raw = bytes | bytearray

Memory = Callable[[int], AbstractContextManager[None]]

shared_folder = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class Unseekable(io.BytesIO):
    """A pipe, to which `zipfile` writes sizes after the data."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise OSError

    def seek(self, *_: int) -> int:
        raise OSError


def packed(
    tree: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, to: io.BytesIO | None = None
) -> bytearray:
    """Pack files as if on Unix, under names without their mark of text in UTF-8."""
    to = to or io.BytesIO()
    with zipfile.ZipFile(to, "w", method) as archive:
        for name, content in tree.items():
            archive.writestr(name, content)
    return bytearray(to.getvalue())


def two(method: int = zipfile.ZIP_DEFLATED) -> bytearray:
    return packed({"first": FIRST, "second": SECOND}, method)


def places(archive: Raw, mark: bytes) -> list[int]:
    found = [archive.find(mark)]
    while found[-1] >= 0:
        found.append(archive.find(mark, found[-1] + 4))
    return found[:-1]


def patched(archive: bytearray, mark: bytes, offset: int, value: bytes) -> bytearray:
    """Overwrite bytes of the last record of a kind: of the second member of `two()`."""
    at = places(archive, mark)[-1] + offset
    archive[at : at + len(value)] = value
    return archive


def renamed(name: bytes) -> bytearray:
    """`two()`, where the second member is named so before its data and in the directory."""
    archive = packed({"first": FIRST, "_" * len(name): SECOND})
    return patched(patched(archive, LOCAL, 30, name), ENTRY, 46, name)


def u16(number: int) -> bytes:
    return struct.pack("<H", number)


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def joined(data: bytes, *entries: bytes) -> bytes:
    """A zip file of data as they are, and a directory of these entries."""
    directory = b"".join(entries)
    sizes = struct.pack("<HHIIH", len(entries), len(entries), len(directory), len(data), 0)
    return data + directory + FINISH + bytes(4) + sizes


def parts(archive: Raw) -> tuple[bytes, bytearray]:
    """Return the data of a zip file of one member, and its entry in the directory."""
    start, finish = places(archive, ENTRY)[-1], places(archive, FINISH)[-1]
    return bytes(archive[:start]), bytearray(archive[start:finish])


def quoted() -> bytes:
    """A zip file where the first member's data are the second member, header and all."""
    inner, inner_entry = parts(packed({"second": SECOND}))
    outer, entry = parts(packed({"first": bytes(inner)}, zipfile.ZIP_STORED))
    inner_entry[42:46] = u32(len("first") + 30)
    return joined(outer, bytes(entry), bytes(inner_entry))


def quoted_by_a_field() -> bytes:
    """A zip file where the first member's data are the second's, as an extra field leads there."""
    data, first = parts(packed({"first": SECOND}))
    kernel = data[35:]
    second, entry = parts(packed({"second": SECOND}))
    head = bytearray(data[:35])
    head[28:30] = u16(len(kernel) + 36)
    entry[42:46] = u32(35 + len(kernel))
    return joined(bytes(head) + kernel + second, bytes(first), bytes(entry))


def write(tmp_path: Path, archive: Raw) -> Path:
    path = tmp_path / "x"
    path.write_bytes(archive)
    return path


def read(path: Path, most: int = MOST) -> dict[str, bytes]:
    return {member.name: member.stream.read() for member in zip_members(path, most=most)}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@shared_folder
@given(data=st.data())
def test_what_went_in_comes_out(
    tmp_path: Path,
    trees: st.SearchStrategy[dict[str, bytes]],
    method: int,
    streamed: bool,
    data: st.DataObject,
) -> None:
    tree = data.draw(trees)
    path = write(tmp_path, packed(tree, method, Unseekable() if streamed else None))
    total = sum(map(len, tree.values()))
    found = [
        (member.name, member.size, member.stream.read(700) + member.stream.read())
        for member in zip_members(path, most=total)
    ]
    assert found == [(name, len(content), content) for name, content in tree.items()]
    with open_zip(path, most=total) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == tree


def test_archives_of_the_field(realdata: Path) -> None:
    paths = sorted(realdata.rglob("*.npz"))
    assert paths
    for path in paths:
        with zipfile.ZipFile(path) as theirs:
            assert read(path, 1 << 30) == {name: theirs.read(name) for name in theirs.namelist()}


def test_files_of_64_bits(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with zipfile.ZipFile(path, "w") as archive, archive.open("a", "w", force_zip64=True) as file:
        file.write(FIRST)
    assert read(path) == {"a": FIRST}


def test_folders_are_skipped_and_a_leading_dot_is_dropped(tmp_path: Path) -> None:
    tree = {"./": b"", "./a/": b"", "./a/first": FIRST, "b/": b""}
    assert read(write(tmp_path, packed(tree))) == {"a/first": FIRST}


def test_an_archive_of_nothing(tmp_path: Path) -> None:
    assert read(write(tmp_path, packed({}))) == {}


def test_members_may_be_read_side_by_side(tmp_path: Path) -> None:
    with (
        open_zip(write(tmp_path, two()), most=MOST) as archive,
        archive.open("first") as first,
        archive.open("second") as second,
    ):
        pairs = [(first.read(5), second.read(5)) for _ in range(60)]
    assert b"".join(one for one, _ in pairs) == FIRST
    assert b"".join(other for _, other in pairs) == SECOND


def test_a_stream_ends_with_its_turn(tmp_path: Path) -> None:
    members = zip_members(write(tmp_path, two()), most=MOST)
    first = next(members)
    next(members)
    with pytest.raises(ValueError, match="closed file"):
        first.stream.read()


UNIX = b"\x03"
HOSTILE: dict[str, tuple[Callable[[], Raw], str]] = {
    "absolute": (lambda: renamed(b"/etc/x"), "'/etc/x'"),
    "above": (lambda: renamed(b"a/../../x"), r"'a/../../x'"),
    "backslash": (lambda: renamed(b"a\\b"), r"'a\\\\b'"),
    "name with NUL": (lambda: renamed(b"a\0/../x"), r"'a\\x00/../x'"),
    "folder above": (lambda: renamed(b"../a/"), r"'\.\./a'"),
    "twice": (lambda: renamed(b"first"), "'first' .* twice"),
    "file and folder": (lambda: renamed(b"first/x"), "'first/x' .* both a file and a folder"),
    "symbolic link": (
        lambda: patched(patched(two(), ENTRY, 5, UNIX), ENTRY, 38, u32(0o120777 << 16)),
        "'second' .* link or device",
    ),
    "device": (
        lambda: patched(patched(two(), ENTRY, 5, UNIX), ENTRY, 38, u32(0o020666 << 16)),
        "'second' .* link or device",
    ),
    "encrypted": (lambda: patched(two(), ENTRY, 8, u16(1)), "'second' .* encrypted"),
    "strongly encrypted": (lambda: patched(two(), ENTRY, 8, u16(0x41)), "'second' .* encrypted"),
    "patch": (lambda: patched(two(), ENTRY, 8, u16(0x20)), "'second' .* patch"),
    "LZMA": (lambda: patched(two(), ENTRY, 10, u16(14)), "'second' .* method 14"),
    "bzip2": (lambda: patched(two(), ENTRY, 10, u16(12)), "'second' .* method 12"),
    "too large": (lambda: patched(two(), ENTRY, 24, u32(MOST)), f"'second' .* {MOST} bytes"),
    "stored with two sizes": (
        lambda: patched(two(zipfile.ZIP_STORED), ENTRY, 24, u32(299)),
        "'second' .* 300 bytes; expected the 299",
    ),
    "one lies in another": (quoted, "'first' .* lies where the next"),
    "same place": (lambda: patched(two(), ENTRY, 42, u32(0)), "lies where the next"),
    "in the directory": (lambda: patched(two(), ENTRY, 20, u32(500)), "'second' .* directory"),
    "something before": (
        lambda: bytearray(LOCAL + bytes(40)) + two(),
        "no member that begins at byte 0",
    ),
    "newer version": (lambda: patched(two(), ENTRY, 6, u16(99)), "no readable directory"),
    "no directory": (lambda: two()[:-30], "no readable directory"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_directories_are_refused_before_anything_is_read(tmp_path: Path, kind: str) -> None:
    make, found = HOSTILE[kind]
    path = write(tmp_path, make())
    with pytest.raises(IntegrityError, match=f"/x.*{found}"), open_zip(path, most=MOST):
        pytest.fail("it was opened")
    with pytest.raises(IntegrityError, match=f"/x.*{found}"):
        next(zip_members(path, most=MOST))


LIES: dict[str, tuple[Callable[[], Raw], str]] = {
    "fewer": (lambda: patched(two(), ENTRY, 24, u32(299)), "more bytes than the 299 announced"),
    "fewer, with their CRC": (
        lambda: patched(patched(two(), ENTRY, 24, u32(299)), ENTRY, 16, u32(crc(SECOND[:299]))),
        "Bad CRC-32",
    ),
    "more": (lambda: patched(two(), ENTRY, 24, u32(301)), "fewer bytes than the 301 announced"),
    "none": (lambda: patched(two(), ENTRY, 24, u32(0)), "more bytes than the 0 announced"),
    "CRC": (lambda: patched(two(), ENTRY, 16, u32(1)), "Bad CRC-32"),
    "stored CRC": (lambda: patched(two(zipfile.ZIP_STORED), ENTRY, 16, u32(1)), "Bad CRC-32"),
    "another name": (lambda: patched(two(), LOCAL, 30, b"SECOND"), "directory 'second' and header"),
    "no header": (lambda: patched(two(), LOCAL, 0, b"PK\7\7"), "Bad magic number"),
    "damage": (lambda: patched(two(), LOCAL, 36, b"\xff\xff\xff"), "while decompressing"),
    "cut short": (lambda: patched(two(), ENTRY, 20, u32(9)), "Bad CRC-32"),
}


def crc(content: bytes) -> int:
    return zlib.crc32(content)


def test_an_entry_with_two_names_is_refused() -> None:
    info = zipfile.ZipInfo("second")
    assert zip_directory._objection(info) is None
    info.filename = "third"
    assert zip_directory._objection(info) == "is also named 'third'"


@pytest.mark.parametrize("kind", LIES)
def test_lies_come_out_with_the_last_byte(tmp_path: Path, kind: str) -> None:
    make, found = LIES[kind]
    path = write(tmp_path, make())
    members = zip_members(path, most=MOST)
    assert next(members).stream.read() == FIRST
    with pytest.raises(FormatError, match=f"/x has .*'second'.* {found}"):
        next(members).stream.read()
    with open_zip(path, most=MOST) as archive:
        assert archive.read("first") == FIRST
        size = archive.getinfo("second").file_size
        with pytest.raises(FormatError, match=f"/x has .*'second'.* {found}"):
            archive.open("second").read(max(1, size))


def test_data_of_two_members_through_an_extra_field(tmp_path: Path) -> None:
    with open_zip(write(tmp_path, quoted_by_a_field()), most=MOST) as ours:
        assert ours.read("second") == SECOND
        with pytest.raises(FormatError, match="/x has a member 'first' that lies where the next"):
            ours.read("first")


def test_more_than_allowed_in_all(tmp_path: Path) -> None:
    path = write(tmp_path, two())
    assert list(read(path, most=600)) == ["first", "second"]
    with pytest.raises(FormatError, match="'second' that has 300 bytes, which makes 600 in all"):
        next(zip_members(path, most=599))


def test_a_bomb_that_announces_little_is_not_followed(tmp_path: Path, memory_below: Memory) -> None:
    archive = packed({"first": FIRST, "second": bytes(100_000_000)})
    path = write(tmp_path, patched(archive, ENTRY, 24, u32(1000)))
    with (
        memory_below(2 << 20),
        open_zip(path, most=MOST) as opened,
        pytest.raises(FormatError, match="'second' that has more bytes than the 1000"),
    ):
        opened.read("second")


def test_memory_is_bounded(tmp_path: Path, memory_below: Memory) -> None:
    size = 100_000_000
    path = write(tmp_path, packed({"a": bytes(size)}))
    with memory_below(2 << 20), open_zip(path, most=size) as archive, archive.open("a") as stream:
        assert sum(map(len, iter(lambda: stream.read(1 << 18), b""))) == size


def test_a_directory_of_gigabytes_is_not_read(
    tmp_path: Path, memory_below: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.write(LOCAL)
        file.truncate(3 << 30)
        file.seek(0, io.SEEK_END)
        file.write(FINISH + bytes(4) + struct.pack("<HHIIH", 9, 9, 2 << 30, 1 << 30, 0))
    with (
        memory_below(1 << 20),
        pytest.raises(FormatError, match="/x has a directory of 2147483648"),
    ):
        read(path)
    monkeypatch.setattr(zips, "_DIRECTORY", 100)
    with pytest.raises(FormatError, match="expected at most 100"):
        read(write(tmp_path, two()))


def test_entries_that_the_base_class_does_not_see(tmp_path: Path) -> None:
    emptied = patched(two(), FINISH, 12, u32(0))
    hidden = two()
    at, second = places(hidden, ENTRY)
    hidden[at + 32 : at + 34] = u16(places(hidden, FINISH)[0] - second)
    for archive, left in ((emptied, []), (hidden, ["first"])):
        with zipfile.ZipFile(io.BytesIO(archive)) as theirs:
            assert theirs.namelist() == left
        with pytest.raises(FormatError, match=f"has {len(left)} entries; expected 2"):
            read(write(tmp_path, archive))


def test_an_archive_in_one_that_was_cut_short_is_not_taken_for_it(tmp_path: Path) -> None:
    inner = bytes(two())
    cut = packed({"x.zip": inner}, zipfile.ZIP_STORED)[: len("x.zip") + 30 + len(inner)]
    with zipfile.ZipFile(io.BytesIO(cut)) as theirs:
        assert theirs.namelist() == ["first", "second"]
    with pytest.raises(FormatError, match="no member that begins at byte 0"):
        read(write(tmp_path, cut))


@pytest.mark.parametrize("announced", [2, 3])
def test_numbers_of_entries_of_64_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, announced: int
) -> None:
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    archive = patched(patched(two(), FINISH, 8, b"\xff" * 4), b"PK\6\6", 32, bytes([announced]))
    if announced == 2:
        assert list(read(write(tmp_path, archive))) == ["first", "second"]
    else:
        with pytest.raises(FormatError, match="has 2 entries; expected 3"):
            read(write(tmp_path, archive))


def test_comments_are_not_in_the_way(tmp_path: Path) -> None:
    path = write(tmp_path, two())
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"PK\5" * 99
    assert read(path) == {"first": FIRST, "second": SECOND}
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(FormatError, match="does not end with the end of its directory"):
        read(path)


def test_cut_at_any_byte_is_an_error(tmp_path: Path) -> None:
    whole = two()
    for size in range(len(whole)):
        with pytest.raises(FormatError):
            read(write(tmp_path, whole[:size]))


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@settings(shared_folder, max_examples=300)
@given(at=st.integers(0), flip=st.integers(1, 255))
def test_any_other_byte_is_an_error_or_harmless(
    tmp_path: Path, method: int, at: int, flip: int
) -> None:
    damaged = two(method)
    damaged[at % len(damaged)] ^= flip
    try:
        found = read(write(tmp_path, damaged))
    except OfflineDataError:
        return
    assert found == {"first": FIRST, "second": SECOND}


@pytest.mark.parametrize("head", [b"<html>", b"", b"PK", b"PK\5\6", LOCAL + bytes(90)])
def test_other_files_are_described(tmp_path: Path, head: bytes) -> None:
    with pytest.raises(FormatError, match=r"/x (is not a zip file|has no readable directory): "):
        read(write(tmp_path, head))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"x\.zip"):
        read(tmp_path / "x.zip")
