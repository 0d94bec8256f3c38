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

    @property
    def type(self) -> str:
        """What people are told of it: `text`, or the item type and how it is encoded."""
        return "text" if self.text else self.dtype


@dataclass(frozen=True)
class EncodedLeafInfo(LeafInfo):
    """A leaf of encoded images; `dtype` and `shape` are those of decoded ones."""

    encoding: str
    """`jpeg` or `png`."""

    @property
    def type(self) -> str:
        """The item type and the encoding."""
        return f"{self.dtype} ({self.encoding})"


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
    own: dict[str, Any] = {
        "id": str(entry.id),
        "path": str(entry.path),
        "transitions": int(manifest.counts["transitions"]),
        "episodes": int(manifest.counts["episodes"]),
        "bytes": entry.bytes,
        "schema": schema_of(DatasetReader(entry.path, manifest)),
        # a manifest from elsewhere may have whole URLs
        "files": tuple({k: _redacted(v) for k, v in file.items()} for file in manifest.files),
    }
    names = [field.name for field in fields(DatasetInfo)]
    return DatasetInfo(**{n: own[n] if n in own else getattr(manifest, n) for n in names})


def _redacted(value: Any) -> Any:
    if isinstance(value, list):
        return [redact(str(item)) for item in value]
    return redact(value) if isinstance(value, str) else value


def schema_of(reader: DatasetReader) -> dict[str, LeafInfo]:
    """List the leaves that a source gave, whatever the layout, sorted by key."""
    tables = {"observations": reader.observation_leaves, "steps": reader.step_leaves}
    leaves = {
        join_key(key): _leaf(leaf, rows)
        for rows, table in tables.items()
        for key, leaf in table.items()
        if key != EPISODE
    }
    return dict(sorted(leaves.items()))


def _leaf(spec: LeafSpec, rows: str) -> LeafInfo:
    about = spec.dtype, spec.shape, rows, spec.text
    return EncodedLeafInfo(*about, spec.encoding) if spec.encoding else LeafInfo(*about)


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
    begin, stop = 0, reader.transitions
    if episode is not None:
        if not 0 <= episode < reader.episode_count:
            raise NotFoundError(
                f"{reader.manifest.id} has no episode {episode}: its {reader.episode_count} "
                "episodes are numbered from 0"
            )
        begin = int(reader.starts[episode])
        stop = begin + int(reader.lengths[episode])
    rows = np.arange(begin, min(stop, begin + count))
    columns = reader.transitions_at(rows)
    del columns[EPISODE]
    numbers = np.searchsorted(reader.starts, rows, side="right") - 1
    steps = rows - reader.starts[numbers]
    texts = {join_key(key): reader.as_text(key, values) for key, values in columns.items()}
    return tuple(
        TransitionRow(int(row), int(number), int(step), {k: texts[k][i] for k in sorted(texts)})
        for i, (row, number, step) in enumerate(zip(rows, numbers, steps, strict=True))
    )
