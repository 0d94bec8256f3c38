"""Read a dataset directory with numpy: mapped read-only, opened in milliseconds at any size."""

from __future__ import annotations

import errno
import os
import shlex
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from math import prod
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import (
    AccessError,
    FormatError,
    IntegrityError,
    ManifestError,
    NotFoundError,
)
from offline_data.base.files import map_privately
from offline_data.base.json import read_json, shown
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import (
    DONE,
    EPISODE_COLUMNS,
    TERMINATED,
    TRUNCATED,
    Key,
    join_key,
    next_of,
)
from offline_data.raw.pixels import at_once
from offline_data.store.encoded import VERIFY, EncodedColumn, blocks_of
from offline_data.store.layout import (
    EPISODE,
    EPISODES,
    FRAME_BYTES,
    OBSERVATIONS,
    ROOT_FLAGS,
    STEPS,
    TED,
    TEXT,
    VIDEO,
    LeafSpec,
)
from offline_data.store.manifest import Manifest, read_manifest
from offline_data.store.marks import MarkKeys, Marks, mark_keys, marks_file, read_marks
from offline_data.store.video import StoredVideo, VideoColumn, read_videos

MAX_TEXT_BYTES = 1 << 30
"""Bytes of the largest `text.json` that is read; a conversion holds all its words in memory, too."""


@pickled_by_name
class DatasetReader:
    """Reads a dataset directory of either layout, by feature, step or episode.

    Creating one only reads the manifest, unless it is given. Arrays are read-only views of the
    files. Instances can be pickled and shared by threads.
    """

    _marks: tuple[object, Marks] | None = None

    def __init__(self, path: Path, manifest: Manifest | None = None) -> None:
        self.path = path
        self.manifest = read_manifest(path) if manifest is None else manifest
        self._mapped: dict[str, NDArray[np.uint8]] = {}
        self._videos: dict[str, list[StoredVideo]] = {}

    def __getstate__(self) -> dict[str, Any]:
        opened: dict[str, Any] = {"_mapped": {}, "_videos": {}, "_marks": None}
        return {"path": self.path, "manifest": self.manifest, **opened}

    @property
    def transitions(self) -> int:
        """`N`, step rows in all episodes."""
        return int(self.manifest.counts["transitions"])

    @property
    def episode_count(self) -> int:
        """`E`, number of episodes."""
        return int(self.manifest.counts["episodes"])

    @property
    def steps_table(self) -> str:
        """Table of the features with a row per step: `steps`, or `ted` in that layout."""
        return STEPS if STEPS in self.manifest.tables else TED

    @cached_property
    def step_leaves(self) -> dict[Key, LeafSpec]:
        """Features with `N` rows by TED key: `action`, `next/reward`, … and `episode`."""
        if STEPS in self.manifest.tables:
            return self.manifest.tables[STEPS].by_key
        observed = set(self.observation_leaves)
        made = {*observed, *map(next_of, observed), DONE, *ROOT_FLAGS}
        ted = self.manifest.tables[TED].by_key
        return {key: leaf for key, leaf in ted.items() if key not in made}

    @cached_property
    def observation_leaves(self) -> dict[Key, LeafSpec]:
        """Features that exist before and after an action, by root key."""
        if OBSERVATIONS in self.manifest.tables:
            return self.manifest.tables[OBSERVATIONS].by_key
        ted, apart = self.manifest.tables[TED].by_key, {*ROOT_FLAGS, *self.manifest.two_copies}
        twice = (key for key in ted if key[0] != "next" and next_of(key) in ted)
        return {key: ted[key] for key in twice if key not in apart}

    @cached_property
    def _specs(self) -> dict[str, dict[Key, LeafSpec]]:
        return {name: table.by_key for name, table in self.manifest.tables.items()}

    @cached_property
    def leaves(self) -> dict[Key, LeafSpec]:
        """`step_leaves` and `observation_leaves` together."""
        return {**self.step_leaves, **self.observation_leaves}

    @cached_property
    def episodes(self) -> dict[Key, NDArray[np.generic]]:
        """`[E, …]` columns: `start`, `length`, `return`, flags, `id`, …; text as codes."""
        return {key: self.leaf(EPISODES, key) for key in self.manifest.tables[EPISODES].by_key}

    @property
    def marks_version(self) -> tuple[int, ...]:
        """Value that differs once the marks of episodes have been changed; empty: there are none."""
        try:
            state = marks_file(self.path).lstat()
        except OSError:
            return ()
        return state.st_mtime_ns, state.st_ino, state.st_size

    @property
    def marks(self) -> Marks:
        """Marks of the episodes, as they are on the disk now; warns of a file that is ignored."""
        version = self.marks_version
        if self._marks is None or self._marks[0] != version:
            self._marks = version, read_marks(self.path, self.manifest)
            if self._marks[1].ignored:
                warnings.warn(self._marks[1].ignored, stacklevel=2)
        return self._marks[1]

    @cached_property
    def mark_keys(self) -> MarkKeys:
        """Keys of the columns of `mark_columns`."""
        return mark_keys(self.manifest.tables[EPISODES].by_key)

    @property
    def mark_columns(self) -> dict[Key, list[str]]:
        """Columns `mark` and `note` of the episodes, text `[E]`; see `mark_keys`."""
        return self.marks.columns(self.mark_keys, self.episode_count)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """`[E]` first step row of each episode, contiguous; see `lengths`."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """`[E]` steps of each episode, contiguous; raises `ManifestError`."""
        starts = np.array(self.episodes[("start",)], dtype=np.int64)
        lengths = np.array(self.episodes[("length",)], dtype=np.int64)
        count, ends = self.transitions, np.cumsum(lengths)
        # A sum that overflows has been larger than the count before.
        possible = lengths.min() >= 1 and max(lengths.max(), ends.max()) <= count
        if not possible or ends[-1] != count or (starts != ends - lengths).any():
            name = self.manifest.tables[EPISODES][("start",)].file
            raise _damage_error(self.path, name, "its episodes are not the rows of the dataset")
        return lengths

    @cached_property
    def last_rows(self) -> NDArray[np.int64]:
        """`[E]` last step row of each episode."""
        return self.starts + self.lengths - 1

    @cached_property
    def final(self) -> NDArray[np.bool_]:
        """`[E]` whether the observation after the last action of each episode is known."""
        return np.array(self.episodes[("final_observation",)], dtype=bool)

    def episode_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the episode of each of some step rows, in the shape of `rows`."""
        return np.asarray(np.searchsorted(self.starts, rows, side="right") - 1)

    @cached_property
    def invalid_rows(self) -> NDArray[np.int64]:
        """Step rows, ascending, that are not terminated and whose next observation is unknown."""
        last = self.last_rows[~self.final]
        ended = self.step(TERMINATED)[last, 0] if len(last) else np.zeros(0, bool)
        return np.asarray(last[~ended], dtype=np.int64)

    @cached_property
    def vocabularies(self) -> Mapping[str, Mapping[Key, list[str]]]:
        """`{table: {key: words}}` of text features; a code is an index into its words."""
        tables = self.manifest.tables.items()
        texts = [(table, leaf.key) for table, spec in tables for leaf in spec.leaves if leaf.text]
        if not texts:
            return {}
        try:
            words = _vocabularies(read_json(self.path / TEXT, max_bytes=MAX_TEXT_BYTES))
        except (NotFoundError, FormatError, ValueError) as error:
            raise _damage_error(self.path, TEXT, str(error)) from error
        for table, key in texts:
            if _words_of(words.get(table, {}), key) is None:
                raise _damage_error(self.path, TEXT, f"it lacks {shown(join_key(key))} of {table}")
        return words

    def leaf(self, table: str, key: Key) -> NDArray[np.generic]:
        """Map one feature of one table: `[rows, *shape]`, read-only, strided.

        An encoded feature is an `EncodedColumn`, which `numpy.asarray` decodes.
        """
        spec, leaf = self.manifest.tables[table], self._specs[table][key]
        if leaf.encoding is None:
            return _view(leaf, spec.rows, partial(self._map, leaf.file))
        kind = leaf.encoding, leaf.dtype, leaf.shape
        where = f"feature {join_key(key)!r} of {table} in {self.path}"
        if leaf.encoding == VIDEO:
            if leaf.file not in self._videos:
                self._videos[leaf.file] = read_videos(self.path, leaf, self.manifest.digests)
            frames = self._map(leaf.file)[: FRAME_BYTES * spec.rows].view("<i4").reshape(-1, 2)
            column: Any = VideoColumn(self._videos[leaf.file], frames, kind, where)
            return cast("NDArray[Any]", column)
        data, offsets = self._map(leaf.file), self._map(leaf.offsets)[: 8 * (spec.rows + 1)]
        return cast("NDArray[Any]", EncodedColumn(data, offsets.view("<i8"), kind, where))

    def writable_leaf(self, table: str, key: Key) -> NDArray[np.generic]:
        """Map a raw feature privately: writing changes this process's memory alone."""
        spec = self.manifest.tables[table]
        leaf, path = spec[key], self.path / spec[key].file
        return _view(leaf, spec.rows, lambda: map_privately(path, leaf.stride * spec.rows))

    def step(self, key: Key) -> NDArray[np.generic]:
        """Map a step feature by TED key, `[N, …]`; text as codes."""
        return self.leaf(self.steps_table, key)

    def words(self, key: Key, *tables: str) -> list[str] | None:
        """Return a feature's vocabulary, of steps, observations or given tables; None: no text."""
        for table in tables or (STEPS, OBSERVATIONS, TED):
            found = _words_of(self.vocabularies.get(table, {}), key)
            if found is not None:
                return found
        return None

    def as_text(self, key: Key, values: NDArray[Any], *tables: str) -> NDArray[Any]:
        """Return values of a feature, with text codes as `str` objects; see `words`."""
        words = self.words(key, *tables)
        return values if words is None else decode(values, words)

    def observations_at(self, key: Key, rows: NDArray[np.int64], *, after: bool) -> NDArray[Any]:
        """Gather an observation before (or after) the action of each of `rows`; see `leaf`."""
        if TED in self.manifest.tables:
            return np.asarray(self.leaf(TED, next_of(key) if after else key)[rows])
        found = rows + self.step(EPISODE)[rows].astype(np.int64) + int(after)
        values = self.leaf(OBSERVATIONS, key)
        if found.size and not 0 <= found.min() <= found.max() < len(values):
            raise _damage_error(
                self.path, OBSERVATIONS, "a step row names an episode that is not there"
            )
        return values[found]

    def values_at(self, key: Key, rows: NDArray[np.int64], *, after: bool = False) -> Any:
        """Gather a feature at step rows, `[n, …]`, of observations before (or after) the action.

        Text comes as codes, encoded features stay encoded.
        """
        if key in self.observation_leaves:
            return self.observations_at(key, rows, after=after)
        return self.step(key)[rows]

    def decoded_at(
        self, key: Key, rows: NDArray[np.int64], *, after: bool = False
    ) -> Iterator[NDArray[Any]]:
        """Yield `values_at` of a feature, `[k, …]` each; images decoded, a few at a time."""
        leaf = self.leaves[key]
        most = max(1, len(rows)) if leaf.encoding else at_once(leaf.nbytes, copies=8)
        for begin in range(0, len(rows), most):
            yield from blocks_of(self.values_at(key, rows[begin : begin + most], after=after))

    def transitions_at(self, rows: NDArray[np.int64]) -> dict[Key, NDArray[Any]]:
        """Gather whole steps as TED, root flags and `next/done` included.

        `rows` are `[n]` step rows in `[0, N)`. Text comes as codes, encoded features stay encoded.
        """
        out: dict[Key, NDArray[Any]] = {}
        for key in self.observation_leaves:
            out[key] = self.observations_at(key, rows, after=False)
            out[next_of(key)] = self.observations_at(key, rows, after=True)
        for key in self.step_leaves:
            out[key] = self.step(key)[rows]
        out[DONE] = out[TERMINATED] | out[TRUNCATED]
        for flag in ROOT_FLAGS:
            out[flag] = np.zeros((len(rows), 1), bool)
        return out

    def read_pieces(
        self,
        episodes: NDArray[np.int64],
        steps: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> EpisodeBatch:
        """Read pieces of episodes as a batch: their numbers, first steps and lengths, `[C]` each.

        Text comes as codes, encoded features stay encoded. Rows that are contiguous in files of
        layout `compact` are views of the files; all others are copied.
        """
        begins = self.starts[episodes] + steps
        follows = (np.diff(episodes) == 1) & (begins[1:] == begins[:-1] + lengths[:-1])
        together = len(episodes) > 0 and bool(follows.all())

        def index(first: NDArray[np.int64], counts: NDArray[np.int64]) -> slice | NDArray[np.int64]:
            if together:
                return slice(int(first[0]), int(first[0] + counts.sum()))
            before = np.cumsum(counts) - counts
            return np.asarray(np.arange(int(counts.sum())) + np.repeat(first - before, counts))

        rows, pairs = index(begins, lengths), index(begins + episodes, lengths + 1)
        observations: dict[Key, NDArray[Any]] = {}
        for key in self.observation_leaves:
            if TED in self.manifest.tables:
                after = self.observations_at(key, begins + lengths - 1, after=True)
                seen = np.insert(self.leaf(TED, key)[rows], np.cumsum(lengths), after, axis=0)
            else:
                seen = self.leaf(OBSERVATIONS, key)[pairs]
            observations[key] = seen
        early = steps + lengths < self.lengths[episodes]
        return EpisodeBatch(
            lengths,
            {key: self.step(key)[rows] for key in self.step_leaves if key != EPISODE},
            observations,
            self.final[episodes] | early,
            {
                k: np.array(c[episodes])
                for k, c in self.episodes.items()
                if k[0] not in EPISODE_COLUMNS
            },
        )

    def episode_batch(self, first: int, stop: int) -> EpisodeBatch:
        """Read episodes `[first, stop)` back as a batch, text as `str`; copies."""
        numbers, lengths = np.arange(first, stop), self.lengths[first:stop].copy()
        batch = self.read_pieces(numbers, np.zeros_like(numbers), lengths)

        def copied(columns: Mapping[Key, Any], *tables: str) -> dict[Key, Any]:
            own = {k: np.array(c) if isinstance(c, np.ndarray) else c for k, c in columns.items()}
            return {key: self.as_text(key, column, *tables) for key, column in own.items()}

        return replace(
            batch,
            steps=copied(batch.steps),
            observations=copied(batch.observations),
            episodes=copied(batch.episodes, EPISODES),
        )

    def check_files(self) -> None:
        """Raise `ManifestError` if a file is missing or has another size; or `AccessError`."""
        plain: set[str] = set()
        for name, entry in self.manifest.digests.items():
            problem = file_problem(self.path, name, entry["size"], plain)
            if problem:
                raise _damage_error(self.path, name, f"it {problem}")

    def _map(self, file: str) -> NDArray[np.uint8]:
        if file not in self._mapped:
            try:
                self._mapped[file] = np.memmap(self.path / file, np.uint8, mode="r")
            except (FileNotFoundError, ValueError) as error:
                raise _damage_error(self.path, file, str(error)) from error
            except OSError as error:
                raise AccessError(f"{self.path / file} cannot be read: {error.strerror}") from error
        return self._mapped[file]


def _view(leaf: LeafSpec, rows: int, open_file: Callable[[], Any]) -> NDArray[np.generic]:
    shape, dtype = (rows, *leaf.shape), np.dtype(leaf.dtype)
    if leaf.stride * rows == 0:
        return np.zeros(shape, dtype)
    inner = (dtype.itemsize * prod(leaf.shape[i + 1 :]) for i in range(len(leaf.shape)))
    view: NDArray[Any] = np.ndarray(shape, dtype, open_file(), leaf.offset, (leaf.stride, *inner))
    return view


def open_reader(path: Path) -> DatasetReader:
    """Open a dataset directory after checking that all files exist with their sizes.

    Digests are not checked (see `verify`): the time does not depend on the size of the data.
    Raises `NotFoundError`, `NewerFormatError`, `ManifestError`, `AccessError`.
    """
    reader = DatasetReader(path)
    reader.check_files()
    return reader


def file_problem(folder: Path, name: str, size: int, plain: set[str]) -> str | None:
    """Return what is wrong with a file of a dataset directory, without reading it, or None.

    `plain` are folders known not to be links; those of `name` are added. Raises `AccessError`.
    """
    path = f"{folder}/{name}"
    try:
        state = os.lstat(path)
        parts = name.split("/")
        above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        linked = [one for one in above - plain if Path(folder, one).is_symlink()]
        plain |= above.difference(linked)
        if linked or stat.S_ISLNK(state.st_mode):
            if folder.resolve() not in Path(path).resolve().parents:
                return "is a link that leads out of the dataset directory"
            state = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
        if isinstance(error, RuntimeError) or error.errno in {errno.ELOOP, errno.ENAMETOOLONG}:
            return f"cannot be found: {error}"
        raise AccessError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(state.st_mode):
        return "is not a plain file"
    return None if state.st_size == size else f"has {plural(state.st_size, 'byte')}, not {size}"


def _words_of(leaves: Mapping[Key, list[str]], key: Key) -> list[str] | None:
    """Return the vocabulary of a feature; a `next` feature has that of its root."""
    return leaves.get(key, leaves.get(key[1:]) if key[0] == "next" else None)


def _vocabularies(entries: Any) -> dict[str, dict[Key, list[str]]]:
    words: dict[str, dict[Key, list[str]]] = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        match entry:
            case {"table": str(table), "key": [*key], "words": [*known]} if all(
                isinstance(text, str) for text in (*key, *known)
            ):
                words.setdefault(table, {})[tuple(key)] = known
            case _:
                raise ValueError(f"it has {shown(entry)}, expected a table, a key and its words")
    return words


def decode(codes: NDArray[Any], words: list[str]) -> NDArray[np.object_]:
    """Turn text codes of any shape into `str` objects, -1 into None; raises `IntegrityError`.

    Example:
        >>> decode(np.array([1, -1, 0]), ["go", "stop"]).tolist()
        ['stop', None, 'go']
    """
    if codes.size and not -1 <= codes.min() <= codes.max() < len(words):
        raise IntegrityError(
            f"Text codes run from {codes.min()} to {codes.max()}, and the vocabulary has "
            f"{plural(len(words), 'word')}",
            hint=VERIFY,
        )
    table = np.array([*words, None], dtype=object)
    return np.asarray(table[codes], dtype=object)


def _damage_error(folder: Path, name: str, why: str) -> ManifestError:
    return ManifestError(
        f"The dataset in {folder} is damaged: {name}: {why}",
        hint=f"`offline-data check --files {shlex.quote(str(folder))}` names every damaged file and how to "
        "replace it",
    )
