"""What is known of one dataset: all its manifest says, or what a catalogue says of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from offline_data.episodes.fields import join_key
from offline_data.errors import NotFoundError
from offline_data.ids import looks_like_path, parse_id
from offline_data.store.layout import EPISODE
from offline_data.store.library import locate
from offline_data.store.reader import DatasetReader
from offline_data.urls import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from offline_data.config import Settings
    from offline_data.reports.catalog import CatalogDataset
    from offline_data.store.layout import LeafSpec
    from offline_data.store.library import Entry


@dataclass(frozen=True)
class Leaf:
    """One leaf as a batch has it."""

    dtype: str
    """numpy name of the item type (`int32` codes for text)."""
    shape: tuple[int, ...]
    """Shape of one row."""
    rows: str
    """`steps`: one row per transition; `observations`: one more per episode, also under `next`."""
    text: bool
    """Whether the values are codes into a vocabulary."""


@dataclass(frozen=True)
class DatasetInfo:
    """One dataset on this disk; fields not described here are the manifest's."""

    id: str
    """`source:name@revision`."""
    path: str
    """The dataset directory."""
    layout: str
    transitions: int
    """`N`."""
    episodes: int
    """`E`."""
    bytes: int
    """Bytes of its files."""
    schema: Mapping[str, Leaf]
    """Leaves by TED key, parts joined by `/`; observations by their root key."""
    source: str
    name: str
    revision: str
    created: str
    counts: Mapping[str, int]
    converter: Mapping[str, Any]
    spaces: Mapping[str, Any]
    environment: Mapping[str, Any]
    about: Mapping[str, Any]
    licence: str | None
    citation: str | None
    notes: tuple[str, ...]
    dropped: tuple[Mapping[str, str], ...]
    non_finite: Mapping[str, Mapping[str, int]]
    audit: Mapping[str, Any]
    files: tuple[Mapping[str, Any], ...]
    parents: tuple[str, ...]


_OF_ENTRY = {"id", "path", "transitions", "episodes", "bytes", "schema"}


def dataset_info(text: str, settings: Settings) -> DatasetInfo | CatalogDataset:
    """Describe the dataset that an id or a path means: from this disk, else from a catalogue.

    Raises:
        NotFoundError: It is neither here nor in its source's catalogue.
        InvalidIdError: Neither an id nor the path of a dataset directory.
        NetworkError: Only the source's remote could tell, and it does not answer.
    """
    try:
        return entry_info(locate(text, settings))
    except NotFoundError:
        if looks_like_path(text):
            raise
        from offline_data.reports.catalog import find_in_catalog

        found = find_in_catalog(parse_id(text), settings)
        if found is None:
            raise
        return found


def entry_info(entry: Entry) -> DatasetInfo:
    """Describe a dataset on this disk from its manifest alone."""
    manifest = entry.manifest
    plain = {
        f.name: getattr(manifest, f.name) for f in fields(DatasetInfo) if f.name not in _OF_ENTRY
    }
    return DatasetInfo(
        id=str(entry.id),
        path=str(entry.path),
        transitions=int(manifest.counts["transitions"]),
        episodes=int(manifest.counts["episodes"]),
        bytes=entry.bytes,
        schema=schema_of(DatasetReader(entry.path, manifest)),
        **{**plain, "files": tuple(map(_public, manifest.files))},
    )


def _public(file: Mapping[str, Any]) -> dict[str, Any]:
    """Redact what a manifest says of a raw file: one of another origin may have whole URLs."""
    return {
        key: redact(value)
        if isinstance(value, str)
        else [redact(str(item)) for item in value]
        if isinstance(value, list)
        else value
        for key, value in file.items()
    }


def schema_of(reader: DatasetReader) -> dict[str, Leaf]:
    """List the leaves that a source gave, whatever the layout, sorted by key."""
    steps = {key: leaf for key, leaf in reader.step_leaves.items() if key != EPISODE}
    leaves = {
        **{
            join_key(key): _leaf(spec, "observations")
            for key, spec in reader.observation_leaves.items()
        },
        **{join_key(key): _leaf(spec, "steps") for key, spec in steps.items()},
    }
    return dict(sorted(leaves.items()))


def _leaf(spec: LeafSpec, rows: str) -> Leaf:
    return Leaf(spec.dtype, spec.shape, rows, spec.text)
