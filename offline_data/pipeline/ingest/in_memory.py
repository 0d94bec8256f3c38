"""Conversion of arrays or episodes in memory, in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, UsageError
from offline_data.base.files import disk_errors, write_durably
from offline_data.base.ids import DatasetId
from offline_data.base.progress import Progress
from offline_data.episode.batch import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key
from offline_data.episode.joining import join_episodes
from offline_data.formats.base import RawDataset, Shard, SourceInfo
from offline_data.formats.flat.arrays import array_of, describe_arrays
from offline_data.formats.options import Options
from offline_data.pipeline.ingest.build import BuildJob, DatasetBuild, destination_of
from offline_data.pipeline.ingest.replay_buffers import episodes_of_buffer
from offline_data.store.layout import MANIFEST
from offline_data.store.library import Stored, entry_at, find, has_manifest, remove
from offline_data.store.manifest import dump_manifest, read_manifest
from offline_data.store.publish import dataset_lock, publish, staging_folder

ADAPTER = "memory"  # recorded in the manifest

_TERMINATED = ("terminations", "terminals", "terminated")
_TRUNCATED = ("truncations", "timeouts", "truncated")
_TAKEN = ("observations", "actions", "rewards", *_TERMINATED, *_TRUNCATED, "infos", "id", "seed")


def convert_in_memory(
    data: Mapping[str, Any] | Iterable[Any] | RawDataset,
    dataset: DatasetId,
    settings: Settings,
    options: Options,
    progress: Progress,
    *,
    adapter: str = ADAPTER,
) -> Stored:
    """Write arrays or episodes as a dataset; see `offline_data.convert`.

    The revision is a digest of the files, so they are written first, and dropped if it exists. For
    an iterator, read only once, an existing dataset of that name is an error before reading.
    """
    begin = time.perf_counter()
    if options.checkpoints is not None:
        raise UsageError("Data in memory have no checkpoints", hint="leave checkpoints out")
    raw = _raw_of(data, options)
    older = find(settings.root, dataset)
    if isinstance(data, Iterator) and older is not None and not options.force:
        raise _exists(dataset, "and an iterator can be read only once", older.path)
    staged = destination_of(dataset, settings)
    with (
        dataset_lock(settings.staging, dataset.folder, progress),
        staging_folder(settings.staging, dataset.folder, staged) as staging,
    ):
        folder = staging / "dataset"
        job = BuildJob(dataset, adapter, options.layout or "compact", staged, options)
        with DatasetBuild(raw, job, settings.workers, folder) as build:
            for warning in build.warnings:
                progress.note(warning)
            with progress.task(f"convert {dataset.name}", build.episodes, "episodes") as task:
                while done := build.step():
                    task.advance(done)
        target = _name_by_content(folder, dataset, options)
        destination, older = destination_of(target, settings), find(settings.root, dataset)
        existed = has_manifest(destination) and not options.force
        if not existed:
            if older is not None and options.whole and not options.force:
                raise _exists(dataset, "made from other data or in another layout", older.path)
            publish(folder, destination, progress)
            if older is not None and options.whole and older.path != destination:
                remove(older)
    return Stored.of(entry_at(destination), begin, existed=existed)


def _exists(dataset: DatasetId, why: str, path: Path) -> UsageError:
    return UsageError(
        f"{dataset} already exists, {why} ({path})",
        hint="choose another name, or replace it with force=True",
    )


def _name_by_content(folder: Path, dataset: DatasetId, options: Options) -> DatasetId:
    """Give a finished dataset directory the revision of its contents, and return its id."""
    manifest = read_manifest(folder)
    digests = json.dumps(manifest.digests, sort_keys=True)
    revision = f"local-{sha256(digests.encode()).hexdigest()[:12]}"
    target = dataset.at(options.revision_of(revision))
    named = dump_manifest(replace(manifest, id=str(target), revision=str(target.revision)))
    with disk_errors(folder):
        write_durably(folder / MANIFEST, named.encode())
    return target


def _raw_of(data: Mapping[str, Any] | Iterable[Any] | RawDataset, options: Options) -> RawDataset:
    found = episodes_of_buffer(data)
    data = data if found is None else found
    if isinstance(data, Mapping):
        from offline_data.formats.catalogues.d4rl import EndRule
        from offline_data.formats.d4rl.source import FORMAT, cut_to_episodes

        flat = describe_arrays(data, FORMAT)
        return cut_to_episodes(flat, EndRule(), SourceInfo(), options)
    if options.skip_bad_features:
        raise UsageError("skip_bad_features= is for files of Minari; these data are in memory")
    if options.autoreset is not None:
        raise UsageError("autoreset= is for arrays and flat files; these data are episodes")
    if isinstance(data, RawDataset):
        return data
    if isinstance(data, (bytes, np.ndarray)) or not isinstance(data, Iterable):
        raise FormatError(
            f"A {type(data).__name__} cannot be converted; expected a path, a mapping of arrays, an "
            "iterable of episodes, or a replay buffer"
        )
    return InMemoryEpisodes(data, skip_bad=options.skip_bad_episodes)


class InMemoryEpisodes(RawDataset):
    """Episodes of an iterable (see `offline_data.convert`), read once, in the caller's thread."""

    own_thread = False  # a generator may hold thread-bound objects, such as a renderer

    def __init__(self, episodes: Iterable[Any], *, skip_bad: bool) -> None:
        self.info = SourceInfo()
        self._episodes, self._skip_bad = episodes, skip_bad

    def shards(self) -> Sequence[Shard]:
        count = len(self._episodes) if isinstance(self._episodes, Sized) else None
        return (Shard("the episodes", episodes=count),)

    def read(self, shard: Shard) -> Iterator[EpisodeBatch]:  # noqa: ARG002 - there is only one
        return join_episodes(self._readings(), skip_bad=self._skip_bad)

    def _readings(self) -> Iterator[tuple[str, Callable[[], EpisodeBatch]]]:
        for number, episode in enumerate(self._episodes):
            yield f"episode {number}", partial(batch_of, episode)


def batch_of(episode: Any) -> EpisodeBatch:
    """Return one episode as a batch, copied; `FormatError` for wrong fields, numbers of rows."""
    fields = _fields_of(episode)
    actions = dict(_leaves(fields["actions"], ("action",)))
    count = len(next(iter(actions.values()), ()))
    terminated = _flags(fields, _TERMINATED, count)
    truncated = _flags(fields, _TRUNCATED, count)
    if terminated is None and truncated is None:
        raise FormatError(f"it has none of {', '.join((*_TERMINATED, *_TRUNCATED))}")
    # the last step ends the episode: in the way that is not given if not in the one that is
    if terminated is None:
        terminated = np.zeros((count, 1), bool)
        terminated[-1:] = truncated is not None and ~truncated[-1:]
    if truncated is None:
        truncated = np.zeros((count, 1), bool)
    truncated[-1:] |= ~terminated[-1:]
    steps: dict[Key, NDArray[Any]] = {
        **actions,
        TERMINATED: terminated,
        TRUNCATED: truncated,
    }
    if "rewards" in fields:
        steps[REWARD] = _array(fields["rewards"], "rewards").reshape(-1, 1)
    observations, known = {}, True
    for key, column in _leaves(fields["observations"], ("observation",)):
        known = known and len(column) != count
        last = column[-1:] if len(column) == count else column[:0]
        observations[key] = np.concatenate([column, last])
    for key, column in _leaves(fields.get("infos") or {}, ("info",)):
        (observations if len(column) == count + 1 else steps)[key] = column
    named = {(name,): fields[name] for name in ("id", "seed") if fields.get(name) is not None}
    return EpisodeBatch(
        np.array([count], np.int64),
        steps,
        observations,
        np.array([known]),
        {key: _array([value], key[0]) for key, value in named.items()},
    )


def _fields_of(episode: Any) -> dict[str, Any]:
    if isinstance(episode, Mapping):
        fields = dict(episode)
        if unknown := sorted(map(str, fields.keys() - set(_TAKEN))):
            raise FormatError(
                f"it has unknown fields {', '.join(unknown)}; expected {', '.join(_TAKEN)}",
                hint="put other per-step arrays into infos",
            )
    else:
        fields = {name: getattr(episode, name) for name in _TAKEN if hasattr(episode, name)}
        if hasattr(episode, "to_numpy"):  # an `Episode` of this package
            fields |= episode.to_numpy()
    missing = [name for name in ("observations", "actions") if name not in fields]
    if missing:
        raise FormatError(f"it is a {type(episode).__name__} without {' and '.join(missing)}")
    return fields


def _flags(fields: Mapping[str, Any], names: Sequence[str], count: int) -> NDArray[Any] | None:
    """Return flags `[T, 1]` from an array or one bool for the last row; None if absent."""
    given = next((fields[name] for name in names if fields.get(name) is not None), None)
    if given is None:
        return None
    flags = array_of(given, names[0]).astype(bool)
    if flags.ndim == 0:
        last, flags = flags, np.zeros(count, bool)
        flags[-1:] = last
    return flags.reshape(-1, 1)


def _leaves(value: Any, key: Key) -> Iterator[tuple[Key, NDArray[Any]]]:
    """Yield the arrays of nested mappings, or of a tuple by position."""
    parts = dict(enumerate(value)) if isinstance(value, tuple) else value
    if not isinstance(parts, Mapping):
        yield key, _array(parts, "/".join(key))
        return
    for name, part in parts.items():
        yield from _leaves(part, (*key, str(name)))


def _array(value: Any, name: str) -> NDArray[Any]:
    """Return a copy, since a generator may write its next episode to the same arrays."""
    array = array_of(value, name)
    if not array.ndim:
        raise FormatError(f"{name} is a single value, {value!r}; expected a row for each step")
    text = array.dtype.kind in "US"
    return array.astype(object if text else array.dtype.newbyteorder("="), copy=True)
