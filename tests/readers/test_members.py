"""Members: names and sizes that may become files, and streams made of functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.errors import AccessError, FormatError, IntegrityError
from offline_data.readers import members
from offline_data.readers.members import Inventory, Source, buffered

ARCHIVE = Path("folder/x.tar")


@pytest.fixture
def inventory() -> Inventory:
    return Inventory(ARCHIVE, most=100)


def test_names_are_returned_as_they_are_written(inventory: Inventory) -> None:
    inventory.add_folder("./")
    inventory.add_folder("b/")
    assert inventory.add_file("./b/1001", 60) == "b/1001"
    assert inventory.add_file("b/1002", 40) == "b/1002"
    inventory.add_folder("b")


@pytest.mark.parametrize(
    "name",
    ["", "/", "/a", "../a", "a/../b", "a/..", "..", ".", "a//b", "a/", "a\\b", "a\0b", ".//a"],
)
def test_names_that_lead_elsewhere(inventory: Inventory, name: str) -> None:
    with pytest.raises(IntegrityError, match=r"A member of folder/x\.tar is named"):
        inventory.add_file(name, 1)


@pytest.mark.parametrize("name", ["/", "../", "a/../", "a\\/"])
def test_folders_that_lie_elsewhere(inventory: Inventory, name: str) -> None:
    with pytest.raises(IntegrityError, match=r"A member of folder/x\.tar is named"):
        inventory.add_folder(name)


@pytest.mark.parametrize(
    ("first", "second"), [("a", "a"), ("a", "./a"), ("a", "a/b"), ("a/b/c", "a"), ("a/b/c", "a/b")]
)
def test_no_name_is_given_twice(inventory: Inventory, first: str, second: str) -> None:
    inventory.add_file(first, 1)
    with pytest.raises(FormatError, match=r"x\.tar has a member 'a.* is there twice"):
        inventory.add_file(second, 1)


@pytest.mark.parametrize("size", [41, -1, 1 << 80])
def test_no_more_bytes_than_allowed(inventory: Inventory, size: int) -> None:
    inventory.add_file("a", 60)
    with pytest.raises(FormatError, match=r"x\.tar has a member 'b' that has .* at most 100"):
        inventory.add_file("b", size)


@pytest.mark.parametrize(
    ("name", "found"), [("é" * 128, "256 bytes"), ("a/\udcff", "not UTF-8")], ids=["long", "bytes"]
)
def test_names_no_file_can_have(inventory: Inventory, name: str, found: str) -> None:
    with pytest.raises(FormatError, match=found):
        inventory.add_file(name, 1)


def test_names_take_bounded_memory(inventory: Inventory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "_NAMES", 10 * (members._NAME + 4))
    for number in range(1001, 1010):
        inventory.add_file(str(number), 1)
    inventory.add_folder("1010")
    with pytest.raises(FormatError, match="fewer members"):
        inventory.add_folder("1010")


def test_deep_names_count_with_their_folders(
    inventory: Inventory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_NAMES", 4 * (members._NAME + 8))
    inventory.add_file("a/b/c/1", 1)
    with pytest.raises(FormatError, match="fewer members"):
        inventory.add_file("d/e", 1)


def test_a_stream_asks_for_no_more_than_a_block() -> None:
    asked = []

    def read(most: int) -> bytes:
        asked.append(most)
        return bytes(most) if len(asked) < 9 else b""

    stream = buffered(read)
    assert len(stream.read(3 * members.BLOCK + 5)) == 3 * members.BLOCK + 5
    assert len(stream.readline()) > members.BLOCK
    stream.read()
    assert max(asked) == members.BLOCK


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="cannot be read: Is a directory"):
        Source(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
def test_a_file_that_stops_being_readable() -> None:
    with Source(Path("/proc/self/mem")) as file:
        with pytest.raises(AccessError, match="mem cannot be read: Input/output error"):
            file.read(1)
        with pytest.raises(AccessError, match="mem cannot be read: Input/output error"):
            file.readinto(bytearray(1))
