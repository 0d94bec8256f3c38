"""`manifest.json`: what a dataset directory says of itself; its presence means "done"."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offline_data.episodes.fields import Dropped
from offline_data.errors import FormatError, ManifestError, NewerFormatError, NotFoundError
from offline_data.store.layout import FORMAT_VERSION, MANIFEST, LayoutName, TableSpec
from offline_data.store.manifest_schema import check_manifest
from offline_data.strict_json import parse_json, read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offline_data.episodes.fields import Key

MAX_BYTES = 64 << 20
"""Bytes of the largest manifest that is read: it has about 300 for each raw file."""


@dataclass(frozen=True)
class Manifest:
    """A dataset's manifest; every field is JSON but `tables`.

    Unknown fields of the file are kept in `extra` and written back.
    """

    id: str
    """`source:name@revision`."""
    source: str
    """Name of the adapter that read it."""
    name: str
    """The source's own name of the dataset."""
    revision: str
    """Resolved revision of the source."""
    layout: LayoutName
    """`compact` or `ted`."""
    tables: Mapping[str, TableSpec]
    """`steps`, `observations` and `episodes`, or `ted` and `episodes`."""
    counts: Mapping[str, int]
    """`transitions`, `episodes`, `valid_transitions` (those with a known next observation or
    terminated), `terminated` and `truncated` (rows), `without_final_observation` (episodes)."""
    created: str = ""
    """UTC time of publication, ISO 8601."""
    converter: Mapping[str, Any] = field(default_factory=dict)
    """`name`, `version`, `options`."""
    files: tuple[Mapping[str, Any], ...] = ()
    """Raw files it was made from: `path`, `url`, `size`, `sha256`."""
    spaces: Mapping[str, Any] = field(default_factory=dict)
    """Observation and action space as the source gives them."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Environment spec as the source gives it."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Description, author, requirements, reference scores, …"""
    licence: str | None = None
    """SPDX name or the source's words."""
    citation: str | None = None
    """How to cite it."""
    notes: tuple[str, ...] = ()
    """Quirks, and rules that were applied."""
    dropped: tuple[Mapping[str, str], ...] = ()
    """Leaves that were not kept: `key`, `reason`."""
    non_finite: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Leaves with NaN or infinity, kept as they are: `{leaf: {"nan": n, "inf": n}}`."""
    audit: Mapping[str, Any] = field(default_factory=dict)
    """What was read back and compared: `mode`, `rows`, `episodes`, `differences` (0)."""
    digests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """`{relative path: {"size": …, "sha256": …}}` of every other file here."""
    parents: tuple[str, ...] = ()
    """Ids of the datasets it was made from."""
    two_copies: tuple[Key, ...] = ()
    """Root leaves that have another value after an action than before the next one, so that both
    are stored once per transition, in either layout."""
    sha256: str | None = field(default=None, compare=False)
    """Digest of the manifest's own file, as that file states it (see `digest_of`); None: it was
    written by a version that did not have one, or is not written yet."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields this version does not know."""

    @property
    def dropped_leaves(self) -> tuple[Dropped, ...]:
        """`dropped` as values."""
        return tuple(Dropped(**leaf) for leaf in self.dropped)

    @property
    def bytes(self) -> int:
        """Bytes of all files the manifest lists."""
        return sum(int(entry["size"]) for entry in self.digests.values())

    def to_json(self) -> dict[str, Any]:
        """Return the form on disk but `sha256`; `schema` holds the tables."""
        known = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        schema = {name: table.to_json() for name, table in self.tables.items()}
        return {"format_version": FORMAT_VERSION, **known, "schema": schema, **self.extra}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Manifest:
        """Read the form on disk; raises `KeyError`, `TypeError` where it is not one."""
        known = {name: value[name] for name in _PLAIN_FIELDS if name in value}
        for name in ("files", "notes", "dropped", "parents"):
            known[name] = tuple(known.get(name, ()))
        known["two_copies"] = tuple(tuple(key) for key in known.get("two_copies", ()))
        tables = {name: TableSpec.from_json(table) for name, table in value["schema"].items()}
        extra = {k: v for k, v in value.items() if k not in {*_PLAIN_FIELDS, *_DERIVED}}
        return cls(**known, tables=tables, sha256=value.get("sha256"), extra=extra)


_DERIVED = ("format_version", "schema", "sha256")
_PLAIN_FIELDS = tuple(
    n for n in Manifest.__dataclass_fields__ if n not in {"tables", "sha256", "extra"}
)
_ZEROS = "0" * 64
_LAST_FIELD = re.compile(rb'": "([^"]{64})"\n}\n\Z')


def dump_manifest(manifest: Manifest) -> str:
    """Write a manifest as the text of its file, its own digest included, ending in a newline."""
    value = {**manifest.to_json(), "sha256": _ZEROS}
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=True) + "\n"
    before, _, behind = text.rpartition(_ZEROS)
    return before + hashlib.sha256(text.encode()).hexdigest() + behind


def check_digest(folder: Path, manifest: Manifest) -> str | None:
    """Compare the file of a manifest with the digest in it.

    That is the sha256 of the file with the digest's own 64 digits replaced by zeros. It is the
    last field, and taken for one whatever its name is, for a bit of the name can flip, too.

    Returns:
        What is wrong, as half a sentence; None where nothing is, or where the file has no digest.
    """
    data = read_plain(folder / MANIFEST, MAX_BYTES)
    last = _LAST_FIELD.search(data)
    stated = last[1] if last else str(manifest.sha256).encode()
    if last is None and manifest.sha256 is None:
        return None
    before, found, behind = data.rpartition(stated)
    digest = hashlib.sha256(before + _ZEROS.encode() + behind).hexdigest()
    if found and digest.encode() == stated:
        return None
    return f"was changed since it was written: its digest is {digest[:12]}…, not what it states"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a dataset directory.

    Raises:
        NotFoundError: `folder` is not a dataset directory.
        NewerFormatError: It was written by a newer version of this package.
        ManifestError: The file is damaged, or says what cannot be (see `manifest_schema`).
        AccessError: It may not be read by this user.
    """
    path = folder / MANIFEST
    try:
        data = read_plain(path, MAX_BYTES)
    except NotFoundError:
        raise NotFoundError(
            f"{folder} is not a dataset directory: it has no {MANIFEST}",
            hint="`offline-data list` shows the datasets on this disk",
        ) from None
    except FormatError as error:
        raise _damaged(error.message) from error
    try:
        value = parse_json(data, str(path))
        version = value.get("format_version") if isinstance(value, dict) else None
        if type(version) is int and version > FORMAT_VERSION:
            raise _newer(folder, version, value)
        check_manifest(value)
    except FormatError as error:
        raise _damaged(error.message) from error
    except ValueError as error:
        raise _damaged(f"{path} is damaged: {error}") from error
    return Manifest.from_json(value)


def _damaged(message: str) -> ManifestError:
    return ManifestError(
        message,
        hint="convert the dataset again: offline-data download ID --force",
    )


def _newer(folder: Path, version: int, value: Mapping[str, Any]) -> NewerFormatError:
    converter = value.get("converter")
    stated = converter.get("version") if isinstance(converter, dict) else None
    writer = stated if re.fullmatch(r"[\w.+!-]{1,40}", str(stated)) else "unknown"
    return NewerFormatError(
        f"{folder} has format version {version}, written by offline-data {writer}; "
        f"this version reads up to {FORMAT_VERSION}",
        hint=f"pip install 'offline-data>={writer}'",
    )
