"""Joining episodes that are read one by one into batches, optionally skipping bad ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from offline_data.base.errors import FormatError
from offline_data.base.files import LFS_PULL
from offline_data.episode.batch import EpisodeBatch
from offline_data.episode.fields import Key, Skipped, join_key
from offline_data.episode.notes import join_notes

BATCH_BYTES = 32 << 20  # bytes of a batch; an adapter holds a few at a time

SKIP_HINT = "--skip-bad-episodes leaves it out"
_ALONE_HINT = "--skip-bad-episodes leaves it out, if other files have episodes that can be read"
_WHOLE_HINT = (
    "the episodes next to it fail as well: all are damaged, or of another format or version"
)
_TRIED = 8  # episodes after a bad one that are read: is a part bad, or the whole?


def join_episodes(
    readings: Iterable[tuple[str, Callable[[], EpisodeBatch]]],
    *,
    skip_bad: bool,
    budget: int = BATCH_BYTES,
) -> Iterator[EpisodeBatch]:
    """Call each reading, and yield the results joined to batches of about `budget` bytes.

    A reading is the place of an episode, for messages, and a callable that reads it, or several.
    Features, dtypes and row shapes must equal those of the first episode: nothing is cast. With
    `skip_bad`, an episode that raises `FormatError` or differs is skipped, and a `FormatError` from
    the iterator itself skips the rest; the last batch may then have no episodes. Else raises
    `FormatError`, which names the place.

    Example:
        >>> from functools import partial
        >>> def one(length):
        ...     return EpisodeBatch(
        ...         np.array([length]),
        ...         {
        ...             ("action",): np.zeros((length, 2)),
        ...             ("next", "reward"): np.zeros((length, 1)),
        ...             ("next", "terminated"): np.zeros((length, 1), bool),
        ...             ("next", "truncated"): np.zeros((length, 1), bool),
        ...         },
        ...         {("observation",): np.zeros((length + 1, 3))},
        ...         np.array([True]),
        ...     )
        >>> readings = [(f"record {n}", partial(one, n)) for n in (2, 0, 3)]
        >>> [joined] = join_episodes(readings, skip_bad=True)
        >>> joined.lengths.tolist(), joined.skipped[0].where
        ([2, 3], 'record 0')
    """
    waiting: list[EpisodeBatch] = []
    skipped: list[Skipped] = []
    size, good, schema = 0, 0, None
    numbered = iter(readings)
    while True:
        where = None
        try:
            where, reading = next(numbered, (None, None))
            if reading is None:
                break
            episode, found = _read(reading, schema)
        except FormatError as error:
            if not skip_bad:
                if where is None:
                    raise
                others = (partial(_read, other, schema) for _, other in numbered)
                raise with_place(error, where, skip_hint(good, others)) from error.__cause__
            skipped.append(Skipped(where or "the rest of the file", error.message))
            if where is None:
                break
            continue
        schema, good = found, good + 1
        if waiting and size + episode.nbytes > budget:
            yield concatenate(waiting, skipped)
            waiting, skipped, size = [], [], 0
        waiting.append(episode)
        size += episode.nbytes
    if waiting:
        yield concatenate(waiting, skipped)
    elif skipped:
        yield EpisodeBatch.without_episodes(*skipped)


def skip_hint(good: int, others: Iterable[Callable[[], object]]) -> str:
    """Return the hint for a bad episode: to skip it, unless the episodes next to it are bad as well.

    `good` episodes were read before it; `others` read those after it, and some are called.

    Example:
        >>> skip_hint(0, [lambda: None])
        '--skip-bad-episodes leaves it out'
        >>> skip_hint(0, [])
        '--skip-bad-episodes leaves it out, if other files have episodes that can be read'
    """
    bad = 1
    with suppress(FormatError):  # of the iterator
        for read in islice(others, _TRIED):
            try:
                read()
            except FormatError:
                bad += 1
            else:
                return SKIP_HINT
    if good >= bad:
        return SKIP_HINT
    return _WHOLE_HINT if good + bad > 1 else _ALONE_HINT


def with_place(error: FormatError, where: str, advice: str = SKIP_HINT) -> FormatError:
    """Return the error of an episode with its place, and how to skip it if it was downloaded."""
    hints = [error.shell_hint] if error.shell_hint == LFS_PULL else [error.shell_hint, advice]
    hint = "; ".join(filter(None, hints))
    return FormatError(f"{where}: {error.message}", hint=hint)


def concatenate(batches: Sequence[EpisodeBatch], skipped: Iterable[Skipped] = ()) -> EpisodeBatch:
    """Join batches with equal features, dtypes and shapes; `skipped` is added to theirs."""
    first = batches[0]
    if len(batches) == 1:
        return replace(first, skipped=(*first.skipped, *skipped))

    def join_columns(of: Callable[[EpisodeBatch], Mapping[Key, Any]]) -> dict[Key, Any]:
        return {
            key: concatenate_columns([of(batch)[key] for batch in batches]) for key in of(first)
        }

    return EpisodeBatch(
        np.concatenate([batch.lengths for batch in batches]),
        join_columns(lambda batch: batch.steps),
        join_columns(lambda batch: batch.observations),
        np.concatenate([batch.final_observation for batch in batches]),
        join_columns(lambda batch: batch.episodes),
        tuple(dict.fromkeys(leaf for batch in batches for leaf in batch.dropped)),
        join_notes(note for batch in batches for note in batch.notes),
        (*(entry for batch in batches for entry in batch.skipped), *skipped),
        join_notes(said for batch in batches for said in batch.warnings),
    )


def concatenate_columns(columns: list[Any]) -> Any:
    """Return the rows of columns of one kind, arrays or encoded images, one after the other."""
    if len(columns) == 1:
        return columns[0]
    join = getattr(columns[0], "joined_with", None)  # an `EncodedColumn`
    return np.concatenate(columns) if join is None else join(columns[1:])


Schema = dict[str, tuple[str, tuple[int, ...]]]


def _read(
    reading: Callable[[], EpisodeBatch], expected: Schema | None
) -> tuple[EpisodeBatch, Schema]:
    episode = reading()
    return episode, _schema(episode, expected)


def _schema(batch: EpisodeBatch, expected: Schema | None) -> Schema:
    """Return dtype and row shape of each feature; raises `FormatError` if not as expected."""
    tables = {"": {**batch.steps, **batch.observations}, "episode ": batch.episodes}
    found: Schema = {
        table + join_key(key): (
            f"{getattr(column, 'encoding', '')} {column.dtype}".strip(),
            tuple(column.shape[1:]),
        )
        for table, columns in tables.items()
        for key, column in columns.items()
    }
    if expected is None:
        return found
    for leaf in sorted({*expected, *found}):
        if expected.get(leaf) != found.get(leaf):
            before, now = (
                f"{one[leaf][0]} {list(one[leaf][1])}" if leaf in one else "absent"
                for one in (expected, found)
            )
            raise FormatError(f"feature {leaf!r} is {now}, and {before} in the episodes before")
    return found
