"""`manifest.json`: what a dataset directory says of itself; its presence means "done"."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from offline_data.episodes.fields import Dropped
from offline_data.errors import AccessError, ManifestError, NewerFormatError, NotFoundError
from offline_data.store.layout import FORMAT_VERSION, LAYOUTS, MANIFEST, LayoutName, TableSpec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from offline_data.episodes.fields import Key


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
        """Return the form on disk; `schema` holds the tables."""
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
        return cls(**known, tables=tables, extra=extra)


_DERIVED = ("format_version", "schema")
_PLAIN_FIELDS = tuple(n for n in Manifest.__dataclass_fields__ if n not in {"tables", "extra"})


def dump_manifest(manifest: Manifest) -> str:
    """Write a manifest as the text of its file, ending in a newline."""
    return json.dumps(manifest.to_json(), indent=1, ensure_ascii=False, allow_nan=True) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a dataset directory.

    Raises:
        NotFoundError: `folder` is not a dataset directory.
        NewerFormatError: It was written by a newer version of this package.
        ManifestError: The file is damaged.
        AccessError: It may not be read by this user.
    """
    text = _read_text(folder)
    try:
        value = json.loads(text)
        version = value["format_version"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise _newer(folder, version, value)
        manifest = Manifest.from_json(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestError(
            f"{folder / MANIFEST} is damaged: {type(error).__name__}: {error}",
            hint="convert the dataset again: offline-data download ID --force",
        ) from error
    if manifest.layout not in LAYOUTS:
        raise ManifestError(f"{folder / MANIFEST} names layout {manifest.layout!r}: unknown")
    return manifest


def _read_text(folder: Path) -> str:
    try:
        return (folder / MANIFEST).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            f"{folder} is not a dataset directory: it has no {MANIFEST}",
            hint="`offline-data list` shows the datasets on this disk",
        ) from None
    except UnicodeDecodeError as error:
        raise ManifestError(f"{folder / MANIFEST} is damaged: {error}") from error
    except OSError as error:
        raise AccessError(f"{folder / MANIFEST} cannot be read: {error.strerror}") from error


def _newer(folder: Path, version: int, value: Mapping[str, Any]) -> NewerFormatError:
    writer = value.get("converter", {}).get("version", "unknown")
    return NewerFormatError(
        f"{folder} has format version {version}, written by offline-data {writer}; "
        f"this version reads up to {FORMAT_VERSION}",
        hint=f"pip install 'offline-data>={writer}'",
    )
