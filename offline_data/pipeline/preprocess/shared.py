"""Files of the parent that the new dataset shares, since the recipe changes none of their features."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.files import disk_errors, sync_folder
from offline_data.episode.fields import join_key
from offline_data.pipeline.preprocess.steps.base import Revision
from offline_data.store.audit import has_bits
from offline_data.store.copies import share_file
from offline_data.store.layout import EPISODE, EPISODES, OBSERVATIONS, STEPS, TED, TableSpec

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key
    from offline_data.pipeline.jobs.workdir import WorkDir
    from offline_data.store.chunk import EpisodeSelection
    from offline_data.store.reader import DatasetReader


class SharedFileChanged(Revision):
    """A feature of a shared file changes, though not in the first rows."""


def shared_files(
    reader: DatasetReader,
    chosen: EpisodeSelection,
    tables: Mapping[str, TableSpec],
    unchanged: Collection[Key],
) -> frozenset[str]:
    """Return the files with the same features in both datasets, none of which is seen to change.

    Empty in layout `ted`, and where the new dataset has not all steps in the parent's order. Text is
    shared as codes; vocabularies are another file.
    """
    whole = np.array_equal(chosen.episodes, np.arange(len(reader.lengths)))
    if TED in tables or not whole or not np.array_equal(chosen.lengths, reader.lengths):
        return frozenset()
    same = {*unchanged, EPISODE}
    before, after = (_features(of) for of in (reader.manifest.tables, tables))
    return frozenset(
        file
        for file, leaves in after.items()
        if before.get(file) == leaves
        and reader.manifest.digests[file]["size"] > 0
        and all(leaf.key in same and np.dtype(leaf.dtype).kind in "fiub" for leaf in leaves)
    )


def _features(tables: Mapping[str, TableSpec]) -> dict[str, list[Any]]:
    files: dict[str, list[Any]] = {}
    for name, table in tables.items():
        for leaf in table.leaves if name != EPISODES else ():
            files.setdefault(leaf.file, []).append(leaf)
    return files


def place_shared(files: Collection[str], reader: DatasetReader, work: WorkDir) -> None:
    """Give the unfinished dataset these files, as `share_file` does; replaces those of before."""
    folders = set()
    with disk_errors(work.dataset):
        for name in sorted(files):
            target = work.dataset / name
            target.unlink(missing_ok=True)
            share_file(reader.path / name, target, reader.manifest.digests[name])
            folders.add(target.parent)
        for folder in folders:
            sync_folder(folder)


def check_shared(
    files: Collection[str],
    batch: EpisodeBatch,
    reader: DatasetReader,
    first_row: int,
    first_episode: int,
) -> None:
    """Compare every value of a batch with shared files; raises `SharedFileChanged`."""
    if not files:
        return
    numbers = (batch.episode_of + first_episode).astype(reader.step_leaves[EPISODE].dtype)
    for table, columns, leaves, first in (
        (STEPS, {**batch.steps, EPISODE: numbers}, reader.step_leaves, first_row),
        (OBSERVATIONS, batch.observations, reader.observation_leaves, first_row + first_episode),
    ):
        for key, column in columns.items():
            if leaves[key].file not in files:
                continue
            stored = reader.leaf(table, key)[first : first + len(column)]
            known = (stored.dtype, stored.shape) == (column.dtype, column.shape)
            if not known or not has_bits(stored, column):
                raise SharedFileChanged(
                    {}, f"{join_key(key)!r} changes, though not in the first rows"
                )
