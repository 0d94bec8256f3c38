"""The dataset made of a recording: its log as raw data, behind the dataset that it continues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, UsageError
from offline_data.base.exact import first_changed, rounded_integer
from offline_data.base.ids import DatasetId
from offline_data.base.plurals import plural
from offline_data.base.progress import Progress
from offline_data.episode import Dropped, EpisodeBatch, Skipped
from offline_data.episode.fields import (
    EPISODE_COLUMNS,
    TERMINATED,
    TRUNCATED,
    Key,
    check_key,
    join_key,
)
from offline_data.episode.joining import BATCH_BYTES
from offline_data.formats.base import PART_BYTES, RawDataset, Shard, SourceInfo
from offline_data.formats.local import StoredEpisodes
from offline_data.formats.minari.leaves import nothing
from offline_data.formats.options import Options
from offline_data.pipeline.ingest.in_memory import convert_in_memory
from offline_data.pipeline.record.log import LogContent, LogEpisode, read_recording
from offline_data.store.layout import EPISODE, EPISODES, LayoutName
from offline_data.store.library import Entry, Stored, find, remove, revisions
from offline_data.store.manifest import Manifest
from offline_data.store.reader import open_reader

ADAPTER = "recorder"  # recorded in the manifest

COLUMNS = ("id", "seed", "options", "interrupted")  # of episodes, in every recording

NOTE_INTERRUPTED = (
    "Episodes that reset() or close() ended before the environment did are `interrupted`; their last "
    "step is marked truncated."
)

_KINDS = {bool: "bool", int: "int64", float: "float64", str: "object"}


def find_recorded(
    log: Path, dataset: DatasetId, settings: Settings, *, resume: bool, force: bool
) -> tuple[LogContent | None, Entry | None, str | None]:
    """Return the unfinished recording at `log` and the finished dataset that are continued.

    The third is the revision of the dataset that is replaced. A log whose dataset has been published
    is not continued, and with `force` none. Raises `UsageError` if one of them exists and is neither to
    be continued nor replaced, or is not of a recording.
    """
    entry = find(settings.root, dataset)
    recording = None if force else read_recording(log)
    if recording is not None:
        there, _ = revisions(settings.root / dataset.folder)
        made = [one for one in there if one.manifest.about.get(ADAPTER) == recording.id]
        before = [one for one in there if one.id.revision in {recording.base, recording.replaces}]
        if made:  # killed between publishing and deleting
            for old in before if resume else ():
                remove(old)
            recording, entry = None, made[0]
    if recording is not None and not recording.episodes and not resume:
        recording = None
    found = None if entry is None else entry.id.revision
    if force:
        return None, None, found
    if entry is not None and not resume:
        raise UsageError(
            f"{dataset} already exists ({entry.path})",
            hint="resume=True appends to it, force=True replaces it; or choose another name",
        )
    if recording is None:
        if entry is not None and entry.manifest.converter.get("adapter") != ADAPTER:
            raise UsageError(
                f"{dataset} was not made by Recorder ({entry.path}): it cannot be continued",
                hint="record under another name",
            )
        return None, entry, None
    if not resume:
        raise UsageError(
            f"{dataset} has an unfinished recording of "
            f"{plural(len(recording.episodes), 'episode')} ({log})",
            hint="resume=True continues it, force=True deletes it",
        )
    if found is not None and found == recording.replaces:
        return recording, None, found
    if found != recording.base:
        begun = "continues" if recording.base else "begins"
        other = f"found {dataset}@{found}" if found else "found no such dataset"
        restore = f"restore it, or remove {log}" if recording.base else f"remove {dataset}@{found}"
        raise UsageError(
            f"{log} {begun} {dataset}{f'@{recording.base}' if recording.base else ''}; {other}",
            hint=f"{restore}; force=True replaces both",
        )
    return recording, entry, None


def check_same_environment(
    recorded: Mapping[str, Any], mine: Mapping[str, Any], dataset: DatasetId
) -> None:
    """Raise `UsageError` unless spaces and id of an environment are those of a recording."""
    before, now = (one["environment"].get("id") for one in (recorded, mine))
    if before != now:
        raise UsageError(
            f"{dataset} was recorded in the environment {before}; this one is {now}",
            hint="record it under another name",
        )
    theirs, ours = (
        {
            key: leaf
            for root in ("observation", "action")
            for key, leaf in _leaf_spaces(one["spaces"][root], root)
        }
        for one in (recorded, mine)
    )
    for key in dict.fromkeys([*theirs, *ours]):
        if theirs.get(key) != ours.get(key):
            raise UsageError(
                f"The space of {key} is {_words(ours.get(key))}; {dataset} was recorded with "
                f"{_words(theirs.get(key))}",
                hint="record it under another name",
            )


def _leaf_spaces(space: Mapping[str, Any], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the parts of a space in JSON that have no parts, by path."""
    parts = space.get("subspaces") if isinstance(space, Mapping) else None
    if not isinstance(parts, (Mapping, list, tuple)):
        yield name, space
        return
    for below, part in parts.items() if isinstance(parts, Mapping) else enumerate(parts):
        yield from _leaf_spaces(part, f"{name}/{below}")


def _words(space: Any) -> str:
    if not isinstance(space, Mapping) or "type" not in space:
        return "nothing"
    said = {k: v for k, v in space.items() if k not in {"type", "charset"}}
    listed = ", ".join(f"{name} {value}" for name, value in said.items())
    return f"{space['type']} ({listed if len(listed) < 200 else listed[:200] + '…'})"


def schema_of(entry: Entry) -> dict[str, Any]:
    """Return the `schema` record of a log that continues a dataset."""
    reader = open_reader(entry.path)
    tables = {"steps": reader.step_leaves, "observations": reader.observation_leaves}
    leaves = [
        [join_key(key), "object" if leaf.text else leaf.dtype, leaf.shape, table]
        for table, found in tables.items()
        for key, leaf in found.items()
        if key not in {EPISODE, TERMINATED, TRUNCATED}
    ]
    spaces, environment = entry.manifest.spaces, entry.manifest.environment
    return {"spaces": spaces, "environment": environment, "leaves": leaves}


def column_kinds(manifest: Manifest) -> dict[str, str]:
    """Return dtypes of the columns of episodes that `mark` has set."""
    leaves = manifest.tables[EPISODES].leaves
    return {
        leaf.key[0]: "object" if leaf.text else leaf.dtype
        for leaf in leaves
        if leaf.key[0] not in {*EPISODE_COLUMNS, *COLUMNS}
    }


def merge_kind(kinds: dict[str, str], name: str, value: Any) -> None:
    """Note the dtype of a value of a column; `UsageError` if it does not fit, or the name is taken.

    Raises `FormatError` if it cannot be a file name.
    """
    if name in {*COLUMNS, *EPISODE_COLUMNS}:
        raise UsageError(f"{name!r} is a column of every recording; choose another name")
    check_key((name,))
    kind = _KINDS.get(type(value))
    if kind == "int64" and not -(1 << 63) <= value < 1 << 63:
        kind = None
    before = kinds.get(name, kind)
    if before == "float64" and isinstance(value, int) and float(value) != value:
        kind = None  # it would be rounded
    if kind is None or (before != kind and {before, kind} != {"int64", "float64"}):
        raise UsageError(
            f"{name} is {value!r}; expected "
            + ("a bool, a number or text" if before == kind else f"{before}, as before")
        )
    kinds[name] = kind if before == kind else "float64"


def add_kinds(kinds: dict[str, str], recording: LogContent) -> None:
    """Add the dtypes of the columns that a log has."""
    for episode in recording.episodes.values():
        for name, value in episode.head["marks"].items():
            merge_kind(kinds, name, value)


class LogDataset(RawDataset):
    """The episodes of a log, behind those of the dataset that it continues."""

    def __init__(self, recording: LogContent, base: Entry | None) -> None:
        self._recording = recording
        self._base = None if base is None else StoredEpisodes(base.path)
        self._kinds = {} if base is None else column_kinds(base.manifest)
        episodes = [*recording.episodes.values()]
        add_kinds(self._kinds, recording)
        before = SourceInfo() if self._base is None else self._base.info
        notes = [*before.notes, *recording.notes]
        if any(episode.head["interrupted"] for episode in episodes):
            notes.append(NOTE_INTERRUPTED)
        lost = f"{plural(recording.lost, 'byte')}, of an episode that was being written at a kill"
        self.info = SourceInfo(
            transitions=(before.transitions or 0) + sum(one.length for one in episodes),
            episodes=(before.episodes or 0) + len(episodes),
            spaces=recording.schema["spaces"],
            environment=recording.schema["environment"],
            about={**before.about, ADAPTER: recording.id},
            notes=tuple(dict.fromkeys(notes)),
            dropped=tuple(
                dict.fromkeys([*before.dropped, *(Dropped(*one) for one in recording.dropped)])
            ),
            skipped=(*before.skipped, *([Skipped("the log", lost)] if recording.lost else [])),
        )

    def shards(self) -> Sequence[Shard]:
        """Return the only shard."""
        return (Shard("the recording", episodes=self.info.episodes),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 - there is only one
        """Read the continued dataset, then the log."""
        done = 0
        if self._base is not None:
            for part in self._base.parts(PART_BYTES):
                batch = self._base.read_part(part)
                done = part.stop
                yield _with_columns(batch, self._kinds)
        waiting: list[LogEpisode] = []
        size = 0
        for episode in self._recording.episodes.values():
            if waiting and size + len(episode.body) > BATCH_BYTES:
                yield self._batch(waiting, done)
                done, waiting, size = done + len(waiting), [], 0
            waiting.append(episode)
            size += len(episode.body)
        yield self._batch(waiting, done)

    def _batch(self, episodes: Sequence[LogEpisode], first: int) -> EpisodeBatch:
        lengths = np.array([one.length for one in episodes], np.int64)
        columns = [one.columns() for one in episodes]
        last = np.cumsum(lengths) - 1
        tables: dict[str, dict[Key, NDArray[Any]]] = {"steps": {}, "observations": {}}
        for leaf in episodes[0].leaves:
            tables[leaf.table][leaf.key] = np.concatenate([one[leaf] for one in columns])
        for key, name in ((TERMINATED, "terminated"), (TRUNCATED, "truncated")):
            flags = np.zeros((int(lengths.sum()), 1), bool)
            flags[last, 0] = [one.head[name] for one in episodes]
            tables["steps"][key] = flags
        dtypes = {"seed": np.int64, "options": object, "interrupted": bool}
        given: dict[Key, NDArray[Any]] = {
            (name,): np.array([one.head[name] for one in episodes], dtype)
            for name, dtype in dtypes.items()
        }
        given[("id",)] = np.arange(first, first + len(episodes))
        for name, kind in self._kinds.items():
            fill = nothing(np.dtype(kind))
            marked = [one.head["marks"].get(name, fill) for one in episodes]
            given[(name,)] = column = np.array(marked, kind)
            if (lost := rounded_integer(marked, column)) is not None:
                raise _rounds(name, lost)
        return EpisodeBatch(
            lengths, tables["steps"], tables["observations"], np.ones(len(lengths), bool), given
        )


def _rounds(name: str, value: int) -> FormatError:
    return FormatError(
        f"mark({name}=…) has {value} and floats, and float64 does not hold both",
        hint="mark it with a text",
    )


def _with_columns(batch: EpisodeBatch, kinds: Mapping[str, str]) -> EpisodeBatch:
    """Return a batch whose episodes have all columns, in their dtypes."""
    columns = dict(batch.episodes)
    for name, kind in kinds.items():
        fill = np.full(len(batch.lengths), nothing(np.dtype(kind)), kind)
        before = columns.get((name,), fill)
        if before.dtype != kind and (lost := first_changed(before, kind)) is not None:
            raise _rounds(name, lost)
        columns[(name,)] = before.astype(kind, copy=False)
    return EpisodeBatch(
        batch.lengths, batch.steps, batch.observations, batch.final_observation, columns
    )


def finish_recording(
    log: Path,
    base: Entry | None,
    dataset: DatasetId,
    settings: Settings,
    layout: LayoutName | None,
    progress: Progress,
) -> Stored | None:
    """Make the dataset of a log, publish it, and delete the log; None if it has no episode."""
    recording = read_recording(log)
    stored = None
    if recording is not None and recording.episodes:
        raw = LogDataset(recording, base)
        options = Options(layout=layout, force=True)
        stored = convert_in_memory(raw, dataset, settings, options, progress, adapter=ADAPTER)
    log.unlink(missing_ok=True)
    return stored
