"""What `decode` accepts for each annotation, and what its messages say of everything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

from offline_data.base.decode import Count, Sha256, decode
from offline_data.base.errors import FormatError, InvalidIdError, UsageError
from offline_data.base.ids import DatasetId, parse_id


@dataclass(frozen=True)
class File:
    path: str
    size: Count | None = None
    sha256: Sha256 | None = None


@dataclass(frozen=True)
class Part:
    at: tuple[int, str] = (0, "")


@dataclass(frozen=True)
class Described:
    dashed: ClassVar[bool] = True
    id: Annotated[DatasetId, str, parse_id]
    files: tuple[File, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    keep_raw: bool = False
    mode: Literal["all", "off"] | float = "all"
    names: str | list[str] = ""
    folder: Path | None = None
    part: Part = Part()
    more: Any = None
    magic: bytes = b""

    def __post_init__(self) -> None:
        if self.keep_raw and not self.files:
            raise UsageError("There are no files to keep", hint="name some")


def test_a_value_of_every_annotation() -> None:
    value = {
        "id": "d4rl:a",
        "files": [{"path": "x", "size": 3, "sha256": None}],
        "shares": {"a": 1, "b": 0.5},
        "keep-raw": True,
        "mode": 0.5,
        "names": ["a"],
        "folder": "x/y",
        "part": {"at": [3, "a"], "unknown": 4},
        "more": {"any": [1]},
        "magic": "89ff",
    }
    assert decode(Described, value, "f", lenient=True) == Described(
        DatasetId("d4rl", "a"),
        (File("x", 3),),
        {"a": 1, "b": 0.5},
        keep_raw=True,
        mode=0.5,
        names=["a"],
        folder=Path("x/y"),
        part=Part((3, "a")),
        more={"any": [1]},
        magic=b"\x89\xff",
    )
    with pytest.raises(FormatError, match="f: part has the unknown key 'unknown'; expected at"):
        decode(Described, value, "f")


WRONG: dict[str, tuple[Any, str]] = {
    "no object": (3, "f is 3; expected an object"),
    "missing": ({}, "f: id is missing; expected text"),
    "unknown": ({"id": "d4rl:a", "keep_raw": 1}, "f has the unknown key 'keep_raw'; expected id, "),
    "boolean": ({"keep-raw": 1}, "f: keep-raw is 1; expected true or false"),
    "boolean as number": ({"files": [{"path": "", "size": True}]}, "size is True; expected a whole"),
    "negative": ({"files": [{"path": "", "size": -1}]}, "f: files[0].size is -1; expected a whole"),
    "too large": ({"files": [{"path": "", "size": 2**63}]}, "is an integer of 64 bits; expected"),
    "float as count": ({"files": [{"path": "", "size": 1.0}]}, "files[0].size is 1.0; expected"),
    "pattern": ({"files": [{"path": "", "sha256": "A" * 64}]}, "expected 64 hex digits"),
    "null": ({"files": [{"path": None}]}, "f: files[0].path is None; expected text"),
    "element": ({"files": [{"path": "x"}, []]}, "f: files[1] is []; expected an object"),
    "key in quotes": ({"shares": {"a b": "x"}}, "f: shares.'a b' is 'x'; expected a number"),
    "choice": ({"mode": "some"}, "f: mode is 'some'; expected all or off"),
    "union": ({"names": 3}, "f: names is 3; expected text or a list"),
    "in a union": ({"names": ["a", 3]}, "f: names[1] is 3; expected text"),
    "path": ({"folder": "a\0"}, "f: folder is 'a\\x00'; expected the path of a file"),
    "length": ({"part": {"at": [3]}}, "f: part.at is [3]; expected a list of 2"),
    "bytes": ({"magic": "8"}, "f: magic is '8'; expected hex digits"),
    "whole": ({"keep-raw": True}, "f: There are no files to keep"),
    "converted": ({"id": "a"}, "f: id: 'a' is neither"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_messages_say_file_place_found_and_expected(name: str) -> None:
    value, message = WRONG[name]
    if name not in {"no object", "missing"}:
        value = {"id": "d4rl:a", **value}
    with pytest.raises((FormatError, InvalidIdError)) as caught:
        decode(Described, value, "f")
    assert message in caught.value.message


def test_errors_of_a_users_file() -> None:
    with pytest.raises(UsageError, match=r"f: tool\.x is 3; expected a table") as caught:
        decode(Described, 3, "f", "tool.x", toml=True)
    assert caught.value.code == "usage"
    with pytest.raises(UsageError, match="unknown key 'keep-rw'") as caught:
        decode(Described, {"keep-rw": True}, "f", toml=True)
    assert caught.value.hint == "did you mean keep-raw?"
    with pytest.raises(InvalidIdError, match=r"f: id: "):
        decode(Described, {"id": "../x"}, "f", toml=True)
    with pytest.raises(UsageError, match="no files to keep") as caught:
        decode(Described, {"id": "d4rl:a", "keep-raw": True}, "f", toml=True)
    assert caught.value.hint == "name some"


def test_an_annotation_that_is_not_supported_is_an_error_of_the_program() -> None:
    with pytest.raises(TypeError, match="cannot be decoded"):
        decode(set[int], [3], "f")
