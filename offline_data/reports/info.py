"""One dataset: what its manifest or a catalogue says of it, and its first transitions."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import join_key
from offline_data.errors import NotFoundError
from offline_data.ids import looks_like_path, parse_id
from offline_data.store.layout import EPISODE
from offline_data.store.library import locate
from offline_data.store.reader import DatasetReader
from offline_data.urls import redact

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from offline_data.config import Settings
    from offline_data.reports.catalog import CatalogDataset
    from offline_data.store.layout import LeafSpec
    from offline_data.store.library import Entry


@dataclass(frozen=True)
class LeafInfo:
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
    schema: Mapping[str, LeafInfo]
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


def schema_of(reader: DatasetReader) -> dict[str, LeafInfo]:
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


def _leaf(spec: LeafSpec, rows: str) -> LeafInfo:
    return LeafInfo(spec.dtype, spec.shape, rows, spec.text)


@dataclass(frozen=True)
class TransitionRow:
    """One transition in TED."""

    index: int
    """Step row, in [0, N)."""
    episode: int
    """Number of its episode, in [0, E)."""
    step: int
    """Place in its episode, from 0."""
    values: Mapping[str, NDArray[Any]]
    """`[*shape]` values by key, parts joined by `/`, in order; text as `str` objects."""


def first_transitions(
    reader: DatasetReader, count: int, episode: int | None = None
) -> tuple[TransitionRow, ...]:
    """Read the first `count` transitions, of one episode or of the whole dataset.

    Fewer come back where there are fewer. The observation after the last action of an episode
    without a final observation repeats the one before it.

    Raises:
        NotFoundError: No such episode.
    """
    begin, stop = _range(reader, episode)
    rows = np.arange(begin, min(stop, begin + count))
    columns = reader.transitions_at(rows)
    del columns[EPISODE]
    numbers = np.searchsorted(reader.starts, rows, side="right") - 1
    texts = {join_key(key): reader.as_text(key, values) for key, values in columns.items()}
    return tuple(
        TransitionRow(
            int(row),
            int(number),
            int(row - reader.starts[number]),
            {name: texts[name][i] for name in sorted(texts)},
        )
        for i, (row, number) in enumerate(zip(rows, numbers, strict=True))
    )


def _range(reader: DatasetReader, episode: int | None) -> tuple[int, int]:
    if episode is None:
        return 0, reader.transitions
    if not 0 <= episode < reader.episode_count:
        raise NotFoundError(
            f"{reader.manifest.id} has no episode {episode}: its {reader.episode_count} episodes "
            "are numbered from 0"
        )
    begin = int(reader.starts[episode])
    return begin, begin + int(reader.lengths[episode])
