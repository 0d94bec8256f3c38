"""Tar archives: the members that went in, and hostile or damaged ones refused."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.errors import FormatError, IntegrityError, NotFoundError, OfflineDataError
from offline_data.readers.tar import METADATA, is_tar, tar_members

MOST = 1 << 20
END = bytes(1024)
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]

Memory = Callable[[int], AbstractContextManager[None]]

shared_folder = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, **more: str) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def record(name: str, content: bytes, kind: bytes = tarfile.REGTYPE) -> bytes:
    return header(name, len(content), kind) + content + bytes(-len(content) % 512)


def pax(*pairs: tuple[str, str], kind: bytes = tarfile.XHDTYPE) -> bytes:
    lines = b""
    for key, value in pairs:
        body = f" {key}={value}\n".encode()
        size = next(n for n in range(len(body), len(body) + 9) if n == len(body) + len(str(n)))
        lines += f"{size}".encode() + body
    return record("pax", lines, kind)


GOOD = record("a/first", b"1001") + record("second", b"2001;2002")


@pytest.fixture(params=["plain", "gzip"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], Path]:
    """Write an archive, in each of the two forms; its name says nothing of its kind."""

    def written(archive: bytes) -> Path:
        path = tmp_path / "x"
        path.write_bytes(gzip.compress(archive, 1) if request.param == "gzip" else archive)
        return path

    return written


def read(path: Path, most: int = MOST) -> dict[str, bytes]:
    return {member.name: member.stream.read() for member in tar_members(path, most=most)}


def names(path: Path, most: int = MOST) -> list[str]:
    return [member.name for member in tar_members(path, most=most)]


@pytest.mark.parametrize("kind", FORMATS)
@shared_folder
@given(data=st.data())
def test_what_went_in_comes_out(
    write: Callable[[bytes], Path],
    trees: st.SearchStrategy[dict[str, bytes]],
    kind: int,
    data: st.DataObject,
) -> None:
    tree = data.draw(trees)
    if kind == tarfile.USTAR_FORMAT:
        tree = {name[-80:].strip("/"): content for name, content in tree.items() if len(name) < 50}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=kind) as tar:
        for name, content in tree.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    path = write(archive.getvalue())
    found = [
        (member.name, member.size, member.stream.read(700) + member.stream.read())
        for member in tar_members(path, most=sum(map(len, tree.values())))
    ]
    assert found == [(name, len(content), content) for name, content in tree.items()]


def test_archives_of_the_field(realdata: Path) -> None:
    paths = sorted((realdata / "fixtures_generated").rglob("*.tar"))
    assert paths
    for path in paths:
        with tarfile.open(path) as theirs:
            files = {i.name: theirs.extractfile(i) for i in theirs if i.isfile()}
            assert read(path, 1 << 30) == {name: f.read() for name, f in files.items() if f}


def test_folders_are_skipped_and_a_leading_dot_is_dropped(write: Callable[[bytes], Path]) -> None:
    folders = header("./", kind=tarfile.DIRTYPE) + header("./a/", kind=tarfile.DIRTYPE)
    path = write(folders + record("./a/first", b"1001") + header("a", kind=tarfile.DIRTYPE) + END)
    assert read(path) == {"a/first": b"1001"}


def test_an_archive_of_nothing(write: Callable[[bytes], Path]) -> None:
    assert names(write(bytes(10240))) == []


def test_members_may_be_left_unread(write: Callable[[bytes], Path]) -> None:
    path = write(record("big", b"1" * 5000) + GOOD + END)
    members = tar_members(path, most=MOST)
    assert next(members).name == "big"
    assert next(members).stream.read(2) == b"10"
    assert [(member.name, member.stream.read()) for member in members] == [("second", b"2001;2002")]


def test_a_stream_ends_with_its_turn(write: Callable[[bytes], Path]) -> None:
    members = tar_members(write(GOOD + END), most=MOST)
    first = next(members)
    next(members)
    with pytest.raises(ValueError, match="closed file"):
        first.stream.read()


def test_members_that_are_passed_over_are_not_read(tmp_path: Path) -> None:
    size = 1 << 42
    path = tmp_path / "x.tar"
    with path.open("wb") as file:
        file.write(header("hole", size))
        file.seek(size, io.SEEK_CUR)
        file.write(record("after", b"2001") + END)
    assert [(m.name, m.size) for m in tar_members(path, most=1 << 50)] == [
        ("hole", size),
        ("after", 4),
    ]


def test_extended_headers_say_name_and_size(write: Callable[[bytes], Path]) -> None:
    long = "folder/" + "n" * 200
    archive = pax(("path", long), ("comment", "x"), ("size", "4")) + record("short", b"1001")[:512]
    archive += record("", b"1001")[512:]
    archive += record("L", b"./long/gnu\0", tarfile.GNUTYPE_LONGNAME) + record("short", b"2001")
    archive += pax(("comment", "of all"), kind=tarfile.XGLTYPE) + record("third", b"3001")
    assert read(write(archive + END)) == {long: b"1001", "long/gnu": b"2001", "third": b"3001"}


def test_the_size_of_an_extended_header_counts(write: Callable[[bytes], Path]) -> None:
    path = write(pax(("size", "9")) + header("a", 0) + b"2001;2002" + bytes(503) + END)
    assert read(path) == {"a": b"2001;2002"}


HOSTILE = {
    "absolute": (record("/etc/x", b"1"), "'/etc/x'"),
    "above": (record("a/../../x", b"1"), r"'a/../../x'"),
    "above, in a pax header": (pax(("path", "../x")) + record("a", b"1"), r"'\.\./x'"),
    "above, in a GNU header": (record("L", b"../x\0", b"L") + record("a", b"1"), r"'\.\./x'"),
    "folder above": (header("../a", kind=tarfile.DIRTYPE), r"'\.\./a'"),
    "twice": (record("second", b"1"), "'second' .* twice"),
    "file and folder": (record("second/x", b"1"), "'second/x' .* both a file and a folder"),
    "symbolic link": (header("bad", kind=b"2", linkname="/etc"), "'bad' .* symbolic link"),
    "hard link": (header("bad", kind=b"1", linkname="second"), "'bad' .* hard link"),
    "character device": (header("bad", kind=b"3"), "'bad' .* character device"),
    "block device": (header("bad", kind=b"4"), "'bad' .* block device"),
    "fifo": (header("bad", kind=b"6"), "'bad' .* fifo"),
    "GNU sparse": (header("bad", 1 << 40, kind=b"S"), "'bad' .* sparse"),
    "pax sparse": (pax(("GNU.sparse.major", "1")) + record("bad", b"1"), "sparse"),
    "unknown kind": (header("bad", kind=b"V"), "'bad' .* unknown type b'V'"),
    "too large": (header("bad", MOST), f"'bad' .* has {MOST} bytes"),
    "beyond 8 GiB": (header("bad", 1 << 62), f"'bad' .* has {1 << 62} bytes"),
    "negative": (header("bad", -512), "'bad' .* has -512 bytes"),
    "name that is not UTF-8": (record("bad\udcff", b"1"), "'bad.* not UTF-8"),
    "one name for all": (pax(("path", "x"), kind=b"g") + record("a", b"1"), "one path for all"),
    "one size for all": (pax(("size", "9"), kind=b"g") + record("a", b"1"), "one size for all"),
    "size in words": (pax(("size", "-1")) + record("a", b"1"), "size '-1'"),
    "pax without records": (record("p", b"no records", b"x") + record("a", b"1"), "pax header"),
    "pax with a wrong length": (record("p", b"99 a=b\n", b"x") + record("a", b"1"), "pax header"),
    "pax without a line end": (record("p", b"6 a=bX", b"x") + record("a", b"1"), "pax header"),
    "pax that goes back": (record("p", b"0 a=b\n", b"x") + record("a", b"1"), "pax header"),
    "header of no member": (pax(("path", "x")), "announces a member and ends"),
    "negative header": (header("p", -512, b"x"), "announces -512 bytes"),
    "no header": (b"no header" + bytes(503), "no header of a member at byte 2048"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_members_are_refused_by_name(write: Callable[[bytes], Path], kind: str) -> None:
    bad, found = HOSTILE[kind]
    members = tar_members(write(GOOD + bad + END), most=MOST)
    assert [next(members).name, next(members).name] == ["a/first", "second"]
    with pytest.raises(IntegrityError, match=f"(?s)/x.*{found}"):
        next(members)


def test_more_than_allowed_in_all(write: Callable[[bytes], Path]) -> None:
    path = write(GOOD + END)
    assert names(path, most=13) == ["a/first", "second"]
    with pytest.raises(FormatError, match="'second' that has 9 bytes, which makes 13 in all"):
        names(path, most=12)


@pytest.mark.parametrize(
    ("end", "found"),
    [
        (b"", "is cut short: it ends at byte 2048, in a header"),
        (END + b"more", "goes on after its end"),
        (END + record("third", b"3001") + END, "goes on after its end"),
        (bytes(METADATA + 1024), "goes on after its end"),
    ],
    ids=["none", "bytes", "archive", "flood"],
)
def test_the_end_is_an_end(write: Callable[[bytes], Path], end: bytes, found: str) -> None:
    with pytest.raises(FormatError, match=found):
        names(write(GOOD + end))


def test_a_damaged_header_is_not_the_end(write: Callable[[bytes], Path]) -> None:
    damaged = bytearray(GOOD + END)
    damaged[1024] ^= 1
    with pytest.raises(FormatError, match="no header of a member at byte 1024"):
        names(write(bytes(damaged)))


def test_cut_at_any_byte_is_an_error(write: Callable[[bytes], Path]) -> None:
    for size in range(len(GOOD) + 512):
        with pytest.raises(FormatError):
            names(write(GOOD[:size] + END[: max(0, size - len(GOOD))]))


@pytest.mark.parametrize("unread", [True, False])
def test_a_member_that_is_cut_short_is_named(write: Callable[[bytes], Path], unread: bool) -> None:
    path = write(GOOD[:1540])
    with pytest.raises(FormatError, match=r"/x is cut short: .* its member 'second'"):
        assert names(path) if unread else read(path)


@shared_folder
@given(at=st.integers(0, len(GOOD) + len(END) - 1), flip=st.integers(1, 255))
def test_any_other_byte_never_escapes_the_tree(tmp_path: Path, at: int, flip: int) -> None:
    damaged = bytearray(GOOD + END)
    damaged[at] ^= flip
    (tmp_path / "x").write_bytes(damaged)
    try:
        found = read(tmp_path / "x")
    except OfflineDataError:
        return
    assert list(found) == ["a/first", "second"]
    assert [len(content) for content in found.values()] == [4, 9]


@shared_folder
@given(at=st.integers(0), flip=st.integers(1, 255))
def test_any_other_byte_in_gzip_is_an_error_or_harmless(tmp_path: Path, at: int, flip: int) -> None:
    damaged = bytearray(gzip.compress(GOOD + END))
    damaged[at % len(damaged)] ^= flip
    (tmp_path / "x").write_bytes(damaged)
    try:
        found = read(tmp_path / "x")
    except OfflineDataError:
        return
    assert found == {"a/first": b"1001", "second": b"2001;2002"}


@shared_folder
@given(
    st.binary(max_size=600).map(lambda raw: raw + bytes(-len(raw) % 512)), st.sampled_from("xgL")
)
def test_any_extended_header_never_escapes_the_tree(tmp_path: Path, raw: bytes, kind: str) -> None:
    extended = record("h", raw.rstrip(b"\0"), kind.encode())
    (tmp_path / "x").write_bytes(extended + GOOD + END)
    try:
        found = read(tmp_path / "x")
    except OfflineDataError:
        return
    assert list(found.values()) == [b"1001", b"2001;2002"]


def bomb(start: bytes, zeros: int) -> Iterator[bytes]:
    """Yield a gzip file that inflates to `start` and many zeros."""
    packer = zlib.compressobj(1, wbits=31)
    yield packer.compress(start)
    for _ in range(zeros // 1_000_000):
        yield packer.compress(bytes(1_000_000))
    yield packer.flush()


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", b"X"])
def test_a_header_of_gigabytes_is_not_read(
    tmp_path: Path, kind: bytes, memory_below: Memory
) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.writelines(bomb(GOOD + header("p", 1 << 33, kind), 100_000_000))
    with (
        memory_below(3 << 20),
        pytest.raises(FormatError, match=r"/x .* 8589934592 bytes of names"),
    ):
        names(path)


def test_headers_together_are_bounded(write: Callable[[bytes], Path], memory_below: Memory) -> None:
    half = pax(*[("comment", "y" * 900)] * 600)
    assert METADATA // 2 < len(half) < METADATA
    path = write(half + GOOD + half + record("third", b"3001") + END)
    assert names(path) == ["a/first", "second", "third"]
    with (
        memory_below(8 << 20),
        pytest.raises(FormatError, match="expected at most 1048576 between"),
    ):
        names(write(half + half + GOOD + END))


def test_a_long_chain_of_headers(write: Callable[[bytes], Path]) -> None:
    chain = pax(("comment", "x")) * 900
    assert names(write(chain + GOOD + END)) == ["a/first", "second"]
    with pytest.raises(FormatError, match="between two members"):
        names(write(chain * 2 + GOOD + END))


def test_a_header_of_digits_takes_no_longer(write: Callable[[bytes], Path]) -> None:
    with pytest.raises(FormatError, match="pax header is not made of records"):
        names(write(record("p", b"1" * (METADATA - 512), b"x") + GOOD + END))


def test_zeros_without_end_are_not_followed(tmp_path: Path, memory_below: Memory) -> None:
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.writelines(bomb(GOOD, 100_000_000))
    with memory_below(5 << 20), pytest.raises(FormatError, match="goes on after its end"):
        names(path)


def test_memory_is_bounded(tmp_path: Path, memory_below: Memory) -> None:
    size = 100_000_000
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.writelines(bomb(header("a", size), size + 1024 + 1_000_000))
    with memory_below(3 << 20):
        members = tar_members(path, most=size)
        member = next(members)
        blocks = iter(lambda: member.stream.read(1 << 18), b"")
        assert sum(map(len, blocks)) == size


@pytest.mark.parametrize(
    ("head", "found"), [(b"<html>" + bytes(600), "a web page"), (b"\x89HDF" * 200, "begins with")]
)
def test_other_files_are_described(write: Callable[[bytes], Path], head: bytes, found: str) -> None:
    with pytest.raises(FormatError, match=rf"/x is not a tar archive: .*{found}"):
        names(write(head))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"x\.tar"):
        names(tmp_path / "x.tar")


def test_heads_of_tar() -> None:
    old = bytearray(header("a", 1)[:257] + bytes(255))
    old[148:156] = b"%06o\0 " % (sum(old[:148] + old[156:]) + 8 * 32)
    assert is_tar(GOOD[:512])
    assert is_tar(bytes(old))
    assert not is_tar(bytes(512))
    assert not is_tar(b"")
    assert not is_tar(b"\x93NUMPY" + bytes(506))
