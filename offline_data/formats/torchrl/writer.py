"""TED: the dataset in layout `ted`, as `TensorDict.load_memmap` and TorchRL's storages read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from offline_data.episode import EpisodeBatch
from offline_data.formats.base import Release
from offline_data.formats.registry import get_source
from offline_data.formats.writing.base import (
    ExportJob,
    ExportOptions,
    ExportTarget,
    Holds,
    LeafPlace,
)
from offline_data.formats.writing.episodes import Leaf
from offline_data.formats.writing.plan import place_at
from offline_data.store.writer import DatasetWriter

if TYPE_CHECKING:
    from offline_data.formats.base import RawDataset


class TedTarget(ExportTarget):
    """A dataset directory of layout `ted`, which has a row for each transition."""

    name = "ted"
    title = "TorchRL's memory-mapped TED"
    holds = Holds(
        final_observation=True,
        any_leaves=True,
        missing_text=True,
        flags="rows",
        unknown_final=True,
        both=True,
    )

    def place(self, leaf: Leaf, options: ExportOptions) -> LeafPlace | str:  # noqa: ARG002
        return place_at(leaf, "/".join(leaf.key), self.holds)

    def write(self, batches: Iterable[EpisodeBatch], path: Path, job: ExportJob) -> None:
        first, *others = job.episodes.members
        manifest = first.reader.manifest
        header = replace(manifest, layout="ted", tables={}, counts={}, digests={}, two_copies=())
        if others or not first.whole:
            parents = tuple(member.reader.manifest.id for member in job.episodes.members)
            header = replace(header, parents=parents, replay=None)
        path.rmdir()
        with DatasetWriter(path, header, audit="none") as writer:
            for batch in batches:
                writer.append(batch)
            writer.finish()

    def read(self, path: Path, job: ExportJob) -> RawDataset:
        return get_source("local").open(Release(job.name, "1", local=path), path)
