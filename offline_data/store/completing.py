"""The end of writing: the episode table, what describes the files, digests, the manifest last."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from offline_data.store.audit import check_episodes
from offline_data.store.layout import EPISODES, MANIFEST, TEXT, TableSpec
from offline_data.store.manifest import Manifest, dump_manifest
from offline_data.store.meta import meta_files
from offline_data.store.packing import Column, pack
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.tables import TableWriter, encoded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.store.census import Census
    from offline_data.store.sink import FileDigest, Sink
    from offline_data.store.text import Vocabularies


@dataclass(frozen=True)
class Contents:
    """What has been written of a dataset directory, and what is known of it."""

    tables: Mapping[str, TableSpec]
    """Tables whose files are there, with all their rows."""
    episodes: Mapping[Key, NDArray[Any]]
    """`[E, …]` columns of the episode table; text as `str`."""
    given: Mapping[Key, Column]
    """Types of those columns, where they do not follow from the arrays."""
    census: Census
    """Counts of everything."""
    audit: Mapping[str, Any]
    """What the manifest says about what was read back."""
    two_copies: tuple[Key, ...] = ()
    """See `Manifest.two_copies`."""
    digests: Mapping[str, FileDigest] = field(default_factory=dict)
    """Of files that the sink does not know."""


def complete(sink: Sink, header: Manifest, contents: Contents, words: Vocabularies) -> Manifest:
    """Write the rest, look at the whole once more as a reader, and write the manifest last.

    Args:
        sink: Of the folder; its files are forced to the disk.
        header: What the manifest says of the source, and the layout.
        contents: What has been written.
        words: Vocabularies of text leaves; those of episode columns are added.

    Raises:
        AuditError: The episode table differs from what it was made from.
        NoSpaceError, AccessError: The disk.
    """
    tables = {**contents.tables, EPISODES: _write_episodes(sink, contents, words)}
    for name, table in tables.items():
        for path, text in meta_files(name, table).items():
            sink.append(path, text.encode())
    listed = words.dump()
    if listed is not None:
        sink.append(TEXT, listed.encode())
    digests = {**contents.digests, **sink.finish()}
    manifest = _manifest(header, contents, tables, {k: vars(v) for k, v in sorted(digests.items())})
    check_episodes(DatasetReader(sink.folder, manifest), contents.episodes)
    sink.append(MANIFEST, dump_manifest(manifest).encode())
    sink.finish()
    open_reader(sink.folder)
    return manifest


def _write_episodes(sink: Sink, contents: Contents, words: Vocabularies) -> TableSpec:
    specs = {
        key: contents.given.get(key, Column(key, values.dtype, values.shape[1:]))
        for key, values in contents.episodes.items()
    }
    writer = TableWriter(pack(EPISODES, specs.values()), sink)
    codes = {
        key: encoded(EPISODES, specs[key], values, words).__getitem__
        for key, values in contents.episodes.items()
    }
    writer.append(codes, contents.census.counts["episodes"])
    return writer.spec


def _manifest(
    header: Manifest,
    contents: Contents,
    tables: dict[str, TableSpec],
    digests: dict[str, dict[str, Any]],
) -> Manifest:
    census = contents.census
    dropped = dict.fromkeys([*header.dropped_leaves, *census.dropped])
    return replace(
        header,
        tables=tables,
        counts=dict(census.counts),
        created=datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        notes=tuple(dict.fromkeys([*header.notes, *census.notes])),
        dropped=tuple(vars(leaf) for leaf in dropped),
        non_finite=census.non_finite_json(),
        audit=contents.audit,
        two_copies=contents.two_copies,
        digests=digests,
    )
