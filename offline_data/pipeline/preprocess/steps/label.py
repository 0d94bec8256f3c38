"""The step that adds columns of a file to episodes or rows: `label`."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from offline_data.base.config import user_path
from offline_data.base.errors import (
    FormatError,
    IntegrityError,
    NotFoundError,
    StepError,
    UnknownLeafError,
)
from offline_data.base.ids import unknown
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import TERMINATED, TRUNCATED, Key, split_key
from offline_data.pipeline.preprocess.steps.base import Step
from offline_data.pipeline.preprocess.steps.leaves import OUTCOMES, rebuilt
from offline_data.raw.arrays import Arrays, open_arrays
from offline_data.store.chunk import EpisodeChunk, episode_words

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data.pipeline.preprocess.steps.base import Words
    from offline_data.store.reader import DatasetReader

_STEP = "step"
"""Column of the number of a row in its episode; in a file without it each line is of an episode."""
_EPISODE = "episode"
_MOST_NAMED = 5


@dataclass(frozen=True)
class Label(Step, name="label", example="label:labels.csv"):
    r"""Add the columns of a file to episodes, or to rows: `label:labels.csv`.

    The file is a CSV with a header, an npz, Parquet or HDF5 of arrays of one length. Its column
    `episode` has numbers of episodes in the dataset that the recipe starts from, counted from 0; `by`
    names another column, such as `id`, that the file and the episode table have. Without a column
    `step`, each line is of an episode, and all other columns (`success`, `task`) become columns of the
    episode table. With it, each line is of the row with that number in its episode, counted from 0,
    and they become features (`advantage`, `next.reward`). Columns and features of the same name are
    replaced.

    Every line must be of an episode or row of the dataset, each once, and every episode or row that the
    recipe has at this point must have a line. Numbers, bools and text keep their type, and a missing text
    stays missing; in a CSV, integers with leading zeros (`007`) are text. Rows are labelled before steps
    that change the number of rows.

    Raises:
        NotFoundError: There is no such file.
        FormatError: The file cannot be read.
        StepError: A line without an episode or row, several of one, or none, by name; a column that is
            missing, not storable or reserved (`return`, `length`, …).

    Example:
        >>> import tempfile
        >>> from offline_data.testing.chunks import toy_chunk
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "labels.csv"
        ...     _ = file.write_text("episode,success\n1,true\n0,false\n")
        ...     Label(str(file)).apply(toy_chunk([2, 3])).batch.episodes["success",].tolist()
        [False, True]
    """

    adds_columns: ClassVar[bool] = True

    file: str
    """Path of the file."""
    keys: tuple[str, ...] = field(default=(), metadata={"many": True})
    """Columns of the file to add; none: all."""
    by: str = _EPISODE
    """Column that names the episode."""
    sha256: str | None = field(default=None, metadata={"state": True})
    """Digest of the file, once it was bound to a dataset."""
    words: tuple[str, ...] | None = field(default=None, metadata={"state": True}, repr=False)
    """Vocabulary of the column `by` of the episode table, if it is text."""

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "file": Path(self.file).name, "sha256": self.sha256}

    def bind(self, reader: DatasetReader, before: Sequence[Step]) -> Self:
        path = user_path(self.file, "the file of labels")
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise NotFoundError(f"{path} cannot be read: {error.strerror or error}") from error
        words: Sequence[str] | None = None
        keys: list[Any] = list(range(reader.episode_count))
        if self.by != _EPISODE:
            known = {".".join(key): key for key in reader.episodes}
            if self.by not in known:
                raise unknown(UnknownLeafError, "Step 'label': episodes have no", self.by, known)
            words = episode_words(reader).get(known[self.by])
            keys = _values(reader.episodes[known[self.by]], words, self.by)
        step = replace(
            self, file=str(path), sha256=digest, words=None if words is None else tuple(words)
        )
        labels = step._labels
        if twice := [key for key, count in Counter(keys).items() if count > 1]:
            raise StepError(f"Step 'label': several episodes have {self.by} {_listed(twice)}")
        if labels.per_row and not all(step.keeps_rows for step in before):
            raise StepError(
                "Step 'label' gets numbers of rows, which an earlier step changes",
                hint="label rows first",
            )
        lengths = dict(zip(keys, reader.lengths.tolist(), strict=True))
        limits = np.array([lengths.get(key, 0) for key in labels.episodes], np.int64)
        surplus = labels.places % labels.width >= limits[labels.places // labels.width]
        if surplus.any():
            names = (labels.name(line) for line in np.flatnonzero(surplus).tolist())
            raise StepError(
                f"{path} has lines for what {reader.manifest.id} lacks: {_listed(names)}"
            )
        return step

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        labels, batch = self._labels, chunk.batch
        numbers: NDArray[Any] = chunk.episodes
        if self.by != _EPISODE:
            numbers = batch.episodes[split_key(self.by)]
        keys = _values(numbers, self.words, self.by)
        episode = np.array([labels.episodes.get(key, -1) for key in keys], np.int64)
        rows = np.zeros(len(episode), np.int64)
        if labels.per_row:
            episode, rows = episode[batch.episode_of], chunk.step_numbers
        wanted = episode * labels.width + rows
        at = np.searchsorted(labels.places, wanted)
        at[at == len(labels.places)] = 0
        missing = np.flatnonzero(
            (episode < 0) | (rows >= labels.width) | (labels.places[at] != wanted)
        )
        if len(missing):
            of = batch.episode_of[missing] if labels.per_row else missing
            lacking = dict.fromkeys(
                _name(self.by, keys[e], int(rows[line]) if labels.per_row else None)
                for e, line in zip(of.tolist(), missing.tolist(), strict=True)
            )
            raise StepError(f"{self.file} has no line for {_listed(lacking)}")
        columns = {key: column[at] for key, column in labels.columns.items()}
        if labels.per_row:
            return _label_rows(chunk, columns, labels.words)
        try:
            batch = replace(batch, episodes={**batch.episodes, **columns})
        except FormatError as error:
            hint = "rename the column in the file"
            raise StepError(f"Step 'label': {error.message}", hint=hint) from error
        return replace(chunk, batch=batch)

    def episode_words(self, words: Words) -> Words:
        labels = self._labels
        if labels.per_row:
            return words
        return {**{k: w for k, w in words.items() if k not in labels.columns}, **labels.words}

    @property
    def _labels(self) -> Labels:
        path = user_path(self.file, "the file of labels")
        try:
            state = path.stat()
        except OSError as error:
            raise NotFoundError(f"{path} cannot be read: {error.strerror or error}") from error
        return read_labels(
            path, self.keys, self.by, self.sha256, (state.st_mtime_ns, state.st_size)
        )


@pickled_by_name
@dataclass(frozen=True)
class Labels:
    """The content of a file of labels."""

    by: str
    per_row: bool
    """Whether each line is of a row, not of an episode."""
    episodes: Mapping[Any, int]
    """Number in the file of each episode, by its value in the column `by`."""
    width: int
    """One more than the largest number of a row in its episode."""
    places: NDArray[np.int64]
    """`[n]` ascending: number of the episode times `width`, plus number of the row."""
    columns: Mapping[Key, NDArray[Any]]
    """`[n, …]` columns, in the order of `places`; text as codes."""
    words: Mapping[Key, Sequence[str]]
    """Vocabularies of text columns."""

    def name(self, line: int) -> str:
        """Describe the episode or row of a line, for messages."""
        number, row = divmod(int(self.places[line]), self.width)
        return _name(self.by, list(self.episodes)[number], row if self.per_row else None)


@lru_cache(maxsize=2)
def read_labels(
    path: Path,
    keys: tuple[str, ...],
    by: str,
    sha256: str | None,
    state: tuple[int, int],  # noqa: ARG001 - a file that was changed is read again
) -> Labels:
    """Read a file of labels; raises what `Label` raises, `IntegrityError` if its digest is another one."""
    if sha256 is not None and hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        raise IntegrityError(f"{path} was changed during the run", hint="run it again")
    with open_arrays(path) as arrays:
        per_row = _STEP in arrays.columns
        own = [by, *([_STEP] if per_row else [])]
        names = keys or tuple(name for name in arrays.columns if name not in own)
        read = {name: _read(arrays, name) for name in (*own, *names)}
    count = len(read[by])
    for name, column in read.items():
        if len(column) != count:
            raise StepError(f"{path} has {count} of {by!r}, and {len(column)} of {name!r}")
    if not names or not count:
        raise StepError(f"{path} has no {'lines' if names else 'columns'} to add")
    counted = [*([by] if by == _EPISODE else []), *([_STEP] if per_row else [])]
    read |= {name: _without_zeros(read[name]) for name in counted}
    rows = read[_STEP] if per_row else np.zeros(count, np.int64)
    numbers = {by: read[by]} if by == _EPISODE else {}
    for name, column in {**numbers, _STEP: rows}.items():
        if column.dtype.kind not in "iu" or column.ndim != 1 or column.min() < 0:
            kind = "text" if column.dtype == object else column.dtype
            raise StepError(f"{path}: {name!r} must be whole numbers from 0, found {kind}")
    if read[by].dtype.kind == "f" and np.isnan(read[by]).any():
        raise StepError(f"{path}: a line has no number in {by!r}, which names its episode")
    episodes = {key: number for number, key in enumerate(dict.fromkeys(read[by].tolist()))}
    episode = np.array([episodes[key] for key in read[by].tolist()], np.int64)
    width = int(rows.max()) + 1
    places = episode * width + rows.astype(np.int64)
    order = np.argsort(places, kind="stable")
    places = places[order]
    columns: dict[Key, NDArray[Any]] = {}
    words: dict[Key, Sequence[str]] = {}
    for name in names:
        key, column = split_key(name), read[name][order]
        if column.dtype == object:
            texts = [text for text in column.flat if text is not None]
            codes = {text: code for code, text in enumerate(sorted(set(texts)))}
            words[key] = [*codes]
            coded = [codes.get(text, -1) for text in column.flat]
            column = np.array(coded, np.int32).reshape(column.shape)
        columns[key] = column
    labels = Labels(by, per_row, episodes, width, places, columns, words)
    repeated = np.flatnonzero(places[1:] == places[:-1])
    if len(repeated):
        twice = dict.fromkeys(labels.name(line) for line in repeated.tolist())
        raise StepError(f"{path} has several lines for {_listed(twice)}")
    return labels


def _read(arrays: Arrays, name: str) -> NDArray[Any]:
    if name not in arrays.columns:
        error = unknown(
            UnknownLeafError, f"{arrays.path} has no column", name, list(arrays.columns)
        )
        raise error
    if problem := arrays.columns[name].problem:
        raise FormatError(f"{arrays.path}: {name!r} cannot be read: it {problem}")
    return arrays.read(name)


def _without_zeros(column: NDArray[Any]) -> NDArray[Any]:
    """Return numbers of episodes or rows that are text for their leading zeros, `007`, as integers."""
    texts = column.tolist() if column.dtype == object else [None]
    fits = all(isinstance(text, str) and re.fullmatch("[0-9]{1,18}", text) for text in texts)
    return np.array(texts, np.str_).astype(np.int64) if fits else column


def _label_rows(
    chunk: EpisodeChunk, columns: Mapping[Key, NDArray[Any]], words: Words
) -> EpisodeChunk:
    added = dict(columns)
    for key in added.keys() & set(OUTCOMES):
        added[key] = added[key].reshape(-1, 1)
        if key in {TERMINATED, TRUNCATED} and np.isin(added[key], (0, 1)).all():
            added[key] = added[key].astype(bool)
    for key in added:
        if key in chunk.batch.observations:
            raise StepError(
                f"Step 'label' cannot replace {'/'.join(key)!r}: it is an observation, which has one row "
                "more in every episode"
            )
    replaced = dict.fromkeys(key for key in added if key in chunk.batch.steps)
    made = rebuilt(chunk, Label.name, replaced, added)
    return made.having(words={**made.words, **words})


def _values(column: NDArray[Any], words: Sequence[str] | None, by: str) -> list[Any]:
    flat = np.asarray(column).reshape(len(column), -1)
    if flat.shape[1] != 1:
        raise StepError(f"Step 'label': {by!r} has several numbers for each episode")
    values = flat[:, 0].tolist()
    return values if words is None else [words[code] if code >= 0 else None for code in values]


def _name(by: str, key: Any, row: int | None) -> str:
    name = f"{by} {key}" if by == _EPISODE else f"{by} {key!r}"
    return name if row is None else f"step {row} of {name}"


def _listed(names: Iterable[Any]) -> str:
    every = list(map(str, names))
    more = f" and {len(every) - _MOST_NAMED} more" if len(every) > _MOST_NAMED else ""
    return ", ".join(every[:_MOST_NAMED]) + more
