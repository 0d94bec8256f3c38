"""What `decode` accepts for each annotation; `test_refusals` has what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from offline_data.base.decode import Count, Sha256, decode
from offline_data.base.errors import UsageError
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
