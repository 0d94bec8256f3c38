"""`local:NAME`: datasets created on this machine; reads this package's dataset directories."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError
from offline_data.base.ids import did_you_mean
from offline_data.episode.cut import runs_within
from offline_data.formats.base import (
    CatalogEntry,
    Part,
    RandomAccess,
    Release,
    Source,
    SourceInfo,
)
from offline_data.store.layout import MANIFEST
from offline_data.store.library import list_datasets
from offline_data.store.manifest import read_manifest
from offline_data.store.reader import DatasetReader, open_reader

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch


class Local(Source):
    """Datasets that were converted, preprocessed or merged on this machine."""

    name = "local"
    title = "datasets made on this machine"

    def catalog(self) -> Sequence[CatalogEntry]:
        return ()

    def remote(self, settings: Settings) -> Sequence[CatalogEntry]:  # noqa: ARG002
        return ()

    def resolve(self, name: str, revision: str | None, settings: Settings) -> Release:
        names = [e.id.name for e in list_datasets(settings.root) if e.id.source == self.name]
        create = f"create it: `offline-data convert PATH {shlex.quote(name)}`"
        wanted = f"local:{name}" + (f"@{revision}" if revision else "")
        raise NotFoundError(
            f"There is no {wanted} on this disk (looked in {settings.root})",
            hint=did_you_mean(name, names, shown="local:{}".format) or create,
        )

    def accepts(self, path: Path) -> bool:
        return (path / MANIFEST).is_file()

    def release_of(self, path: Path, name: str) -> Release:
        manifest = read_manifest(path)
        content = json.dumps([manifest.id, manifest.digests], sort_keys=True)
        return Release(name, f"local-{sha256(content.encode()).hexdigest()[:12]}", local=path)

    def open(self, release: Release, raw: Path) -> StoredEpisodes:  # noqa: ARG002
        return StoredEpisodes(raw)


class StoredEpisodes(RandomAccess):
    """Episodes of a dataset directory, to be written again; raises as `open_reader`."""

    threaded = True  # disk-bound, whatever the number of processes

    def __init__(self, path: Path) -> None:
        self.reader: DatasetReader = open_reader(path)
        manifest = self.reader.manifest
        self.info = SourceInfo(
            transitions=manifest.counts["transitions"],
            episodes=manifest.counts["episodes"],
            spaces=manifest.spaces,
            environment=manifest.environment,
            about=manifest.about,
            licence=manifest.licence,
            citation=manifest.citation,
            notes=manifest.notes,
            dropped=manifest.dropped_leaves,
            skipped=manifest.skipped_episodes,
        )

    def parts(self, budget: int) -> Sequence[Part]:
        tables = self.reader.manifest.tables.values()
        total = sum(table.rows * leaf.nbytes for table in tables for leaf in table.leaves)
        rows = max(1, budget * self.reader.transitions // max(total, 1))
        runs = runs_within(self.reader.lengths, rows)
        return [Part(first, stop) for first, stop in runs]

    def read_part(self, part: Part) -> EpisodeBatch:
        return self.reader.episode_batch(part.first, part.stop)
