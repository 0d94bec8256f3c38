"""`datasets.lock`: the exact revision, raw files and content of each dataset of a project.

Written by `lock`, sorted and without times or paths of a machine, so that the same datasets give
the same file. It may come from a stranger, as `datasets.toml` may.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from offline_data.base.config import read_toml
from offline_data.base.decode import Count, Sha256, decode, matching
from offline_data.base.errors import UsageError
from offline_data.base.files import disk_errors, write_durably
from offline_data.base.ids import DatasetId
from offline_data.base.pickles import pickled_by_name
from offline_data.formats.options import SAVED, Options, TextOptions
from offline_data.project.requests import (
    EXAMPLE,
    DatasetRequest,
    Id,
    Name,
    options_fields,
    options_in,
)

VERSION = 1  # of the file that is written, and the newest that is read

MAX_BYTES = 32 << 20  # bytes of the largest lock file: it has about 200 for each raw file

_HEADER = (
    "# Written by `offline-data lock`: change datasets.toml and run it again instead of editing\n"
    "# this file. Commit both.\n"
)
_AGAIN = "restore the file, or delete it and run `offline-data lock`"


@dataclass(frozen=True)
class LockedFile:
    """A raw file that a dataset was made from; what is not known is None."""

    path: str  # relative posix path among the files of the dataset
    url: str | None = None
    """URL when it was locked; `sync` asks the source instead, which may have moved it."""
    size: Count | None = None
    sha256: Sha256 | None = None


_LockedOptions = make_dataclass(
    "_LockedOptions", options_fields(Annotated[TextOptions, dict, TextOptions.from_record])
)


@dataclass(frozen=True)
class _LockedTable:
    """The table of a dataset."""

    id: Id  # with the source's revision, without that of a range of episodes
    requested: Id  # its id in `datasets.toml` when it was locked
    options: Annotated[Options, _LockedOptions, options_in]
    transitions: Count
    episodes: Count
    content: Annotated[str, matching("sha256:[0-9a-f]{64}", "sha256: and 64 hex digits")]
    """Content digest, see `offline_data.store.content`."""
    converter: str
    """Version of this package that converted it; another one may do so, if the content is the same."""
    files: tuple[LockedFile, ...]

    def __post_init__(self) -> None:
        if self.id.revision is None or self.requested not in {
            self.id,
            replace(self.id, revision=None),
        }:
            raise UsageError(f"id is {self.id}; expected a revision of {self.requested}")


@pickled_by_name
@dataclass(frozen=True)
class LockedDataset(_LockedTable):
    """A dataset of a lock file."""

    name: str  # its short name in the project

    @property
    def stored_id(self) -> DatasetId:
        """Its id on this disk, where the revision says which range of episodes it is."""
        return self.id.at(self.options.revision_of(str(self.id.revision)))

    @property
    def bytes(self) -> int:
        """Bytes of the raw files, as far as they are known."""
        return sum(file.size or 0 for file in self.files)


@dataclass(frozen=True)
class _LockVersion:
    version: Count


@dataclass(frozen=True)
class _LockFile(_LockVersion):
    datasets: Mapping[Name, _LockedTable]


def dump_lock(datasets: Mapping[str, LockedDataset]) -> str:
    """Return the text of a lock file."""
    blocks = [f"{_HEADER}version = {VERSION}\n"]
    for name, one in sorted(datasets.items()):
        fields = {
            "id": str(one.id),
            "requested": str(one.requested),
            "options": one.options.saved(),
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
    """Write a lock file if it changes; returns whether. Raises `AccessError`, `NoSpaceError`."""
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
        value = read_toml(file, MAX_BYTES, EXAMPLE)
        version = decode(_LockVersion, value, str(file), toml=True, lenient=True).version
        if version == VERSION:
            tables = decode(_LockFile, value, str(file), toml=True).datasets
            return {n: LockedDataset(**vars(table), name=n) for n, table in sorted(tables.items())}
    except UsageError as error:
        raise UsageError(error.message, hint=_AGAIN) from error
    raise UsageError(
        f"{file} has version {version}; this version of offline-data reads {VERSION}",
        hint="pip install --upgrade offline-data",
    )


def differences(
    requests: Mapping[str, DatasetRequest], locked: Mapping[str, LockedDataset]
) -> tuple[str, ...]:
    """Return what makes a lock file out of date with `datasets.toml`, a sentence each."""
    found = [f"{name} is not in the lock file" for name in requests if name not in locked]
    for name in requests.keys() & locked.keys():
        request, one = requests[name], locked[name]
        wanted = {"id": request.id, **request.options.saved()}
        kept = {"id": one.requested, **one.options.saved()}
        if "text" in wanted and "text" in kept:  # what the lock adds is not requested
            added = {"tokenizer_sha256", "tokenizer_revision"} - wanted["text"].keys()
            known = {k: v for k, v in kept["text"].items() if k not in added}
            kept["text"] = {"eos": "auto", **known}
        found += [
            f"{name} has {key} {wanted.get(key, 'unset')}, in the lock file {kept.get(key, 'unset')}"
            for key in ("id", *SAVED)
            if wanted.get(key) != kept.get(key)
        ]
    found += [f"{name} is only in the lock file" for name in locked if name not in requests]
    return tuple(sorted(found))
