"""JSON and values of every annotation; `test_refusals` has what is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

from offline_data.base.decode import Count, Sha256, decode
from offline_data.base.errors import AccessError, UsageError
from offline_data.base.ids import DatasetId, parse_id
from offline_data.base.json import MAX_DEPTH, count_of, parse_json, read_json


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


def nested(depth: int) -> str:
    """`depth` lists within each other."""
    return "[" * depth + "]" * depth


def test_values_stay_exact() -> None:
    text = f'{{"n": 9007199254740993, "big": {10**30}, "x": 0.1, "é": "\\ud83d\\ude00"}}'
    values = {"n": 9007199254740993, "big": 10**30, "x": 0.1, "é": "\U0001f600"}
    assert parse_json(text, "here") == values
    assert parse_json(b"\xef\xbb\xbf[1]", "here") == [1]  # a byte-order mark
    inf = float("inf")
    assert parse_json("[Infinity, -Infinity, 1e999]", "here") == [inf, -inf, inf]
    parse_json(nested(MAX_DEPTH), "here")
    assert [count_of(0, "total"), count_of(2**63 - 1, "total")] == [0, 2**63 - 1]


def test_a_file_is_read_as_far_as_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[12345]")
    assert read_json(tmp_path / "a.json", max_bytes=7) == [12345]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "a.json").chmod(0)
    with pytest.raises(AccessError, match="cannot be read"):
        read_json(tmp_path / "a.json")
