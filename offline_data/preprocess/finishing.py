"""From finished tasks to a dataset: shards laid end to end, digests, the manifest."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.disk import disk_errors
from offline_data.errors import IntegrityError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.preparing import episode_words
from offline_data.preprocess.reading import OWN_COLUMNS
from offline_data.store.layout import EPISODE, EPISODES, OBSERVATIONS
from offline_data.store.reader import decode
from offline_data.store.tables import Column, Vocabularies
from offline_data.store.writer import Contents, DatasetCounts, FileDigest, Sink, finalize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.preprocess.plan import Plan
    from offline_data.preprocess.work import Record, Work
    from offline_data.store.audit import AuditMode
    from offline_data.store.layout import LeafSpec, TableSpec
    from offline_data.store.manifest import Manifest
    from offline_data.store.reader import DatasetReader

_CHUNK = 8 << 20
"""Bytes that are read, hashed and written at once."""


@dataclass(frozen=True)
class Finish:
    """All that is known when every task is finished."""

    plan: Plan
    work: Work
    records: list[Record]
    """Of every task, in order."""

    @property
    def transitions(self) -> int:
        """Rows of the new dataset."""
        return sum(one.counts["counts"].get("transitions", 0) for one in self.records)

    @property
    def episodes(self) -> int:
        """Episodes of the new dataset."""
        return sum(one.counts["counts"].get("episodes", 0) for one in self.records)


def finish(
    plan: Plan,
    work: Work,
    header: Manifest,
    audit: AuditMode,
    reader: DatasetReader,
    digests: Mapping[str, FileDigest] | None = None,
) -> Manifest:
    """Make a whole dataset directory of what the tasks have written; it is not published yet.

    Args:
        plan: What was made.
        work: Its folder, every task of it finished.
        header: What the manifest says of the source.
        audit: What was asked to be read back.
        reader: The parent, whose episode columns are taken over.
        digests: Of the files that tasks wrote in place; None: each wrote files of its own.

    Raises:
        StepError: No episode is left; what tasks have written goes.
        IntegrityError: A file is not as long as the tasks said.
        AuditError, NoSpaceError, AccessError: See `complete`.
    """
    done = Finish(plan, work, _records(plan, work))
    if not done.episodes:
        work.clear()
        raise StepError("The recipe leaves no episode of the dataset")
    tables = _tables(done)
    census = _census(done)
    written = _joined(done, tables) if digests is None else digests
    _check_sizes(written, tables)
    work.keep_only(written)
    columns = _columns(done, reader)
    rows, episodes = (sum(one.counts["audit"][i] for one in done.records) for i in (0, 1))
    audited = {
        "mode": audit, "rows": rows, "of": done.transitions, "episodes": episodes, "differences": 0
    }  # fmt: skip
    words = _words(plan, tables)
    contents = Contents(
        tables,
        columns,
        _given(reader),
        census,
        audited,
        plan.schema.two_copies,
        written,
    )
    with Sink(work.dataset) as sink:
        return finalize(sink, _with_by_rows(header, done.records), contents, words)


def _with_by_rows(header: Manifest, records: list[Record]) -> Manifest:
    """Say of every function how many rows of it could not be vectorised, and why."""
    options = header.converter["options"]
    recipe = [dict(step) for step in options["recipe"]]
    for number, blocks, rows, why in (one for r in records for one in r.counts["by_rows"]):
        one = recipe[number].setdefault("by_rows", {"blocks": 0, "rows": 0, "why": why})
        one["blocks"] += blocks
        one["rows"] += rows
    return replace(header, converter={**header.converter, "options": {**options, "recipe": recipe}})


def _records(plan: Plan, work: Work) -> list[Record]:
    records = [work.read_record(task) for task in range(plan.count)]
    missing = [task for task, record in enumerate(records) if record is None]
    if missing:
        raise IntegrityError(f"Tasks {missing[:5]} of {plan.count} are not finished in {work.path}")
    return [record for record in records if record is not None]


def _tables(done: Finish) -> dict[str, TableSpec]:
    rows = {OBSERVATIONS: done.transitions + done.episodes}
    tables = done.plan.tables()
    return {
        name: table.with_rows(rows.get(name, done.transitions)) for name, table in tables.items()
    }


def _census(done: Finish) -> DatasetCounts:
    census = DatasetCounts()
    for record in done.records:
        census.counts.update(record.counts["counts"])
        for leaf, counts in record.counts["non_finite"].items():
            census.add_non_finite(leaf, counts)
    return census


def _one_each(table: TableSpec) -> list[LeafSpec]:
    """Return a leaf of every file: the episode number, where it lies in one."""
    ordered = sorted(table.leaves, key=lambda leaf: leaf.key != EPISODE)
    first: dict[str, LeafSpec] = {}
    for leaf in ordered:
        first.setdefault(leaf.file, leaf)
    return list(first.values())


def _joined(done: Finish, tables: Mapping[str, TableSpec]) -> dict[str, FileDigest]:
    """Make the files of the dataset of those that the tasks wrote."""
    leaves = [leaf for table in tables.values() for leaf in _one_each(table)]
    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="offline-data-join") as pool:
        digests = list(pool.map(lambda leaf: _join(done, leaf), leaves))
    return {leaf.file: digest for leaf, digest in zip(leaves, digests, strict=True)}


def _join(done: Finish, leaf: LeafSpec) -> FileDigest:
    path = done.work.dataset / leaf.file
    sha, size = hashlib.sha256(), 0
    with disk_errors(done.work.dataset):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for chunk in _shards(done, leaf):
                sha.update(chunk)
                size += len(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    return FileDigest(size, sha.hexdigest())


def _check_sizes(written: Mapping[str, FileDigest], tables: Mapping[str, TableSpec]) -> None:
    for table in tables.values():
        for name, size in table.files.items():
            if written[name].size != size:
                raise IntegrityError(
                    f"{name} has {written[name].size} bytes of new rows, expected {size}"
                )


def _shards(done: Finish, leaf: LeafSpec) -> Iterator[memoryview]:
    """Read one file of every task; episodes are numbered on from task to task."""
    before = 0
    for number, record in enumerate(done.records):
        episodes = record.counts["counts"].get("episodes", 0)
        path = done.work.shard(number) / leaf.file
        for chunk in _whole_rows(path, leaf.stride) if episodes else ():
            if leaf.key == EPISODE and before:
                rows = np.frombuffer(chunk, np.uint8).reshape(-1, leaf.stride)
                part = rows[:, leaf.offset : leaf.offset + 8].copy().view(np.int64) + before
                rows[:, leaf.offset : leaf.offset + 8] = part.view(np.uint8)
            yield memoryview(chunk)
        before += episodes


def _whole_rows(path: Path, stride: int) -> Iterator[bytearray]:
    size = max(1, _CHUNK // max(1, stride)) * stride
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(size):
            yield bytearray(chunk)


def _columns(done: Finish, reader: DatasetReader) -> dict[Key, NDArray[Any]]:
    """Join the episode columns of all tasks; text as `str`, `start` counted in the dataset."""
    parts = [record.columns for record in done.records if record.columns]
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    lengths = columns["length",].astype(np.int64)
    columns["start",] = np.cumsum(lengths) - lengths
    for key, words in episode_words(reader).items():
        if key in columns:
            columns[key] = decode(columns[key], list(words))
    return columns


def _given(reader: DatasetReader) -> dict[Key, Column]:
    leaves = reader.manifest.tables[EPISODES].leaves
    return {
        leaf.key: Column(leaf.key, np.dtype(leaf.dtype), leaf.shape, text=leaf.text)
        for leaf in leaves
        if leaf.key[0] not in OWN_COLUMNS
    }


def _words(plan: Plan, tables: dict[str, TableSpec]) -> Vocabularies:
    """Take over the words of text leaves, under the names that the leaves have now."""
    words = Vocabularies()
    for name, table in tables.items():
        for leaf in table.leaves:
            if leaf.text and leaf.key in plan.words:
                words.know(name, leaf.key, plan.words[leaf.key])
    return words
