"""Datasets at their places in a root, conversions in which all rows are compared, and raw reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from offline_data.base.config import Settings
from offline_data.base.ids import parse_id
from offline_data.episode import EpisodeBatch
from offline_data.formats.base import Release, Source
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.toy import write_toy


def write_stored(root: Path, dataset: str, *batches: EpisodeBatch, **options: Any) -> Path:
    """Write `source:name@revision` at its place under `root`; returns its directory."""
    parsed = parse_id(dataset)
    folder = root / parsed.folder / str(parsed.revision)
    write_toy(folder, batches, dataset=dataset, **options)
    return folder


def convert_and_open(path: Path, settings: Settings, **options: Any) -> DatasetReader:
    """Convert files as `local:toy` and compare all rows with them."""
    from offline_data.pipeline.ingest import Options, convert

    return open_reader(convert(path, "toy", settings, Options(audit="all", **options)).path)


def read_shards(source: Source, release: Release) -> list[EpisodeBatch]:
    """Read all shards of the user's files."""
    assert release.local is not None
    raw = source.open(release, release.local)
    return [batch for shard in raw.shards() for batch in raw.read(shard)]
