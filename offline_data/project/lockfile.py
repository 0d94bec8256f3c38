"""`datasets.lock`: the exact revision, raw files and content of each dataset of a project.

Written by `lock`, sorted and without times or paths of a machine, so that the same datasets give
the same file. It may come from a stranger, as `datasets.toml` may.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offline_data.errors import NotFoundError, UsageError
from offline_data.files import disk_errors, write_durably
from offline_data.project.requests import (
    OPTIONS,
    check_keys,
    check_places,
    datasets_of,
    id_of,
    options_of,
    options_table,
    read_toml,
)
from offline_data.strict_json import MAX_COUNT, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offline_data.ids import DatasetId
    from offline_data.ingest.options import Options
    from offline_data.project.requests import Request

VERSION = 1
"""Version of the file that is written, and the newest that is read."""

MAX_BYTES = 32 << 20
"""Bytes of the largest lock file: it has about 200 for each raw file."""

_HEADER = (
    "# Written by `offline-data lock`: change datasets.toml and run it again instead of editing\n"
    "# this file. Commit both.\n"
)
_AGAIN = "restore the file, or delete it and run `offline-data lock`"
_CONTENT = re.compile(r"sha256:[0-9a-f]{64}\Z")
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
_KINDS = {str: "text", int: "a whole number", dict: "a table", list: "a list of tables"}
_FIELDS = ("id", "requested", "options", "transitions", "episodes", "content", "converter", "files")


@dataclass(frozen=True)
class LockedFile:
    """A raw file that a dataset was made from; what is not known is None."""

    path: str
    """Relative posix path among the files of the dataset."""
    url: str | None
    """Where it came from; `sync` asks the source instead, which may have moved it."""
    size: int | None
    sha256: str | None


@dataclass(frozen=True)
class LockedDataset:
    """A dataset of a lock file."""

    name: str
    """Its short name in the project."""
    id: DatasetId
    """Its id with the source's revision, without that of a range of episodes."""
    requested: DatasetId
    """Its id in `datasets.toml` when it was locked."""
    options: Options
    transitions: int
    episodes: int
    content: str
    """Content digest, see `offline_data.project.content`."""
    converter: str
    """Version of this package that converted it; another one may do so, if the content is the same."""
    files: tuple[LockedFile, ...]

    @property
    def stored_id(self) -> DatasetId:
        """Its id on this disk, where the revision says which range of episodes it is."""
        return self.id.at(self.options.revision_of(str(self.id.revision)))

    @property
    def bytes(self) -> int:
        """Bytes of the raw files, as far as they are known."""
        return sum(file.size or 0 for file in self.files)


def dump_lock(datasets: Mapping[str, LockedDataset]) -> str:
    """Return the text of a lock file."""
    blocks = [f"{_HEADER}version = {VERSION}\n"]
    for name, one in sorted(datasets.items()):
        fields = {
            "id": str(one.id),
            "requested": str(one.requested),
            "options": options_table(one.options),
            "transitions": one.transitions,
            "episodes": one.episodes,
            "content": one.content,
            "converter": one.converter,
        }
        lines = [f"[datasets.{name}]", *(f"{key} = {_toml(v)}" for key, v in fields.items())]
        files = [f"    {_toml(vars(file))}," for file in one.files]
        blocks.append("\n".join([*lines, "files = [", *files, "]", ""]))
    if not datasets:
        blocks.append("[datasets]\n")
    return "\n".join(blocks)


def _toml(value: Any) -> str:
    """Write text, a number, a boolean or a table of them on one line; None is left out of tables."""
    if isinstance(value, dict):
        parts = [f"{key} = {_toml(one)}" for key, one in value.items() if one is not None]
        return f"{{ {', '.join(parts)} }}" if parts else "{}"
    # JSON's text is TOML's but for DEL, which TOML wants escaped
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def write_lock(file: Path, datasets: Mapping[str, LockedDataset]) -> bool:
    """Write a lock file unless it has the same text already; returns whether it was written.

    Raises `AccessError`, `NoSpaceError`.
    """
    data = dump_lock(datasets).encode()
    with disk_errors(file.parent):
        if file.is_file() and file.read_bytes() == data:
            return False
        write_durably(file, data)
    return True


def read_lock(file: Path) -> dict[str, LockedDataset]:
    """Read a lock file: datasets by short name, sorted.

    Raises:
        NotFoundError: There is none.
        UsageError: It is not one, or a newer version wrote it; the message names the key.
        AccessError: It cannot be read.
    """
    try:
        whole = read_toml(file, MAX_BYTES, _AGAIN)
    except NotFoundError as error:
        raise NotFoundError(error.message, hint="write it: `offline-data lock`") from error
    version = whole.get("version")
    if _checked(version, int, f"{file}: version") != VERSION:
        raise UsageError(
            f"{file} has version {version}; this version of offline-data reads {VERSION}",
            hint="pip install --upgrade offline-data",
        )
    check_keys(whole, {"version", "datasets"}, str(file))
    found = {
        name: _read_dataset(name, table, f"{file}: datasets.{name}")
        for name, table in sorted(datasets_of(whole, file).items())
    }
    check_places(((one.name, one.id, one.options) for one in found.values()), file)
    return found


def _read_dataset(name: str, table: Any, where: str) -> LockedDataset:
    table = _checked(table, dict, where)
    check_keys(table, _FIELDS, where)
    options = _checked(table.get("options"), dict, f"{where}.options")
    check_keys(options, OPTIONS, f"{where}.options")
    files = _checked(table.get("files"), list, f"{where}.files")
    locked = id_of(table.get("id"), f"{where}.id")
    if locked.revision is None:
        raise UsageError(f"{where}.id is {locked}; expected an id with a revision", hint=_AGAIN)
    return LockedDataset(
        name,
        locked,
        id_of(table.get("requested"), f"{where}.requested"),
        options_of(options, f"{where}.options"),
        _checked(table.get("transitions"), int, f"{where}.transitions"),
        _checked(table.get("episodes"), int, f"{where}.episodes"),
        _checked(table.get("content"), str, f"{where}.content", _CONTENT),
        _checked(table.get("converter"), str, f"{where}.converter"),
        tuple(_read_file(one, f"{where}.files[{n}]") for n, one in enumerate(files)),
    )


def _read_file(table: Any, where: str) -> LockedFile:
    check_keys(_checked(table, dict, where), LockedFile.__dataclass_fields__, where)
    kinds = {"url": str, "size": int, "sha256": str}
    for name in kinds.keys() & table.keys():
        pattern = _SHA256 if name == "sha256" else None
        _checked(table[name], kinds[name], f"{where}.{name}", pattern)
    path = _checked(table.get("path"), str, f"{where}.path")
    return LockedFile(path, *(table.get(name) for name in kinds))


def _checked(value: Any, kind: type, where: str, pattern: re.Pattern[str] | None = None) -> Any:
    """Return a field of the right type, numbers from 0 to 2**63 - 1; raises `UsageError`."""
    if (
        type(value) is not kind
        or (kind is int and not 0 <= value <= MAX_COUNT)
        or (pattern is not None and not pattern.match(value))
    ):
        found = "missing" if value is None else shown(value)
        expected = pattern.pattern.removesuffix(r"\Z") if pattern else _KINDS[kind]
        raise UsageError(f"{where} is {found}; expected {expected}", hint=_AGAIN)
    return value


def differences(
    requests: Mapping[str, Request], locked: Mapping[str, LockedDataset]
) -> tuple[str, ...]:
    """Return what makes a lock file out of date with `datasets.toml`, a sentence each."""
    found = []
    for name, request in requests.items():
        one = locked.get(name)
        if one is None:
            found.append(f"{name} is not in the lock file")
            continue
        if one.requested != request.id:
            found.append(f"{name} is {request.id}, in the lock file {one.requested}")
        elif request.id.revision not in {None, one.id.revision}:
            found.append(f"{name} is {request.id}, locked at {one.id.revision}")
        wanted, kept = options_table(request.options), options_table(one.options)
        found += [
            f"{name} has {key} {_shown(wanted.get(key))}, in the lock file {_shown(kept.get(key))}"
            for key in OPTIONS
            if wanted.get(key) != kept.get(key)
        ]
    found += [f"{name} is only in the lock file" for name in locked if name not in requests]
    return tuple(found)


def _shown(value: object) -> str:
    return "unset" if value is None else str(value).lower()
