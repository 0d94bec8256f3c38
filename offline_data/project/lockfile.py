"""`datasets.lock`: the exact revision, raw files and content of each dataset of a project.

Written by `lock`, sorted and without times or paths of a machine, so that the same datasets give
the same file. It may come from a stranger, as `datasets.toml` may.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from offline_data.errors import UsageError
from offline_data.files import disk_errors, write_durably
from offline_data.project.requests import (
    OPTIONS,
    check_keys,
    checked,
    id_of,
    options_of,
    options_table,
    read_datasets,
)
from offline_data.sources.text_options import TextOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offline_data.ids import DatasetId
    from offline_data.ingest.options import Options
    from offline_data.project.requests import DatasetRequest

VERSION = 1
"""Version of the file that is written, and the newest that is read."""

MAX_BYTES = 32 << 20
"""Bytes of the largest lock file: it has about 200 for each raw file."""

_HEADER = (
    "# Written by `offline-data lock`: change datasets.toml and run it again instead of editing\n"
    "# this file. Commit both.\n"
)
_AGAIN = "restore the file, or delete it and run `offline-data lock`"
_FIELDS = ("id", "requested", "options", "transitions", "episodes", "content", "converter", "files")
_FILE_FIELDS = {"path": str, "url": str, "size": int, "sha256": str}


@dataclass(frozen=True)
class LockedFile:
    """A raw file that a dataset was made from; what is not known is None."""

    path: str
    """Relative posix path among the files of the dataset."""
    url: str | None
    """URL when it was locked; `sync` asks the source instead, which may have moved it."""
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
        tables = read_datasets(file, MAX_BYTES, VERSION)
        return {
            name: _read_dataset(name, table, f"{file}: datasets.{name}")
            for name, table in tables.items()
        }
    except UsageError as error:
        hint = error.shell_hint if "version" in error.message else _AGAIN
        raise UsageError(error.message, hint=hint) from error


def _read_dataset(name: str, table: Any, where: str) -> LockedDataset:
    def field(name: str, kind: type, *pattern: str) -> Any:
        return checked(table.get(name), kind, f"{where}.{name}", *pattern)

    check_keys(checked(table, dict, where), _FIELDS, where)
    locked, requested = (id_of(table.get(one), f"{where}.{one}") for one in ("id", "requested"))
    if locked.revision is None or requested not in {locked, replace(locked, revision=None)}:
        raise UsageError(f"{where}.id is {locked}; expected a revision of {requested}")
    return LockedDataset(
        name,
        locked,
        requested,
        options_of(field("options", dict), f"{where}.options", TextOptions.from_record),
        field("transitions", int),
        field("episodes", int),
        field("content", str, "sha256:[0-9a-f]{64}", "sha256: and 64 hex digits"),
        field("converter", str),
        tuple(_read_file(f, f"{where}.files[{n}]") for n, f in enumerate(field("files", list))),
    )


def _read_file(table: Any, where: str) -> LockedFile:
    check_keys(checked(table, dict, where), _FILE_FIELDS, where)
    for name, kind in _FILE_FIELDS.items():
        if name in table or name == "path":
            hexed = ("[0-9a-f]{64}", "64 hex digits") if name == "sha256" else ()
            checked(table.get(name), kind, f"{where}.{name}", *hexed)
    return LockedFile(**dict.fromkeys(_FILE_FIELDS) | table)


def differences(
    requests: Mapping[str, DatasetRequest], locked: Mapping[str, LockedDataset]
) -> tuple[str, ...]:
    """Return what makes a lock file out of date with `datasets.toml`, a sentence each."""
    found = [f"{name} is not in the lock file" for name in requests if name not in locked]
    for name in requests.keys() & locked.keys():
        request, one = requests[name], locked[name]
        wanted = {"id": request.id, **options_table(request.options)}
        kept = {"id": one.requested, **options_table(one.options)}
        if "text" in wanted and "text" in kept:  # what the lock adds is not asked for
            added = {"tokenizer_sha256", "tokenizer_revision"} - wanted["text"].keys()
            known = {k: v for k, v in kept["text"].items() if k not in added}
            kept["text"] = {"eos": "auto", **known}
        found += [
            f"{name} has {key} {wanted.get(key, 'unset')}, in the lock file {kept.get(key, 'unset')}"
            for key in ("id", *OPTIONS)
            if wanted.get(key) != kept.get(key)
        ]
    found += [f"{name} is only in the lock file" for name in locked if name not in requests]
    return tuple(sorted(found))
