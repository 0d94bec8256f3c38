"""Toy chunks with self-identifying values for tests of steps, and helpers to split and compare chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.episode import EpisodeBatch, Key
from offline_data.episode.joining import concatenate
from offline_data.store.chunk import EpisodeChunk
from offline_data.testing.toy import assert_same_batch


def toy_chunk(
    lengths: Sequence[int], first_episode: int = 0, *, unknown_final: Sequence[int] = ()
) -> EpisodeChunk:
    """Return episodes whose values are all different and non-zero.

    With `v = 1000 · episode + t + 1`, of the step row or of the observation row `t`:
    `observation/position` float64 `[2]` is `v, -v`; `observation/velocity` float32 `[]` is
    `v + 0.5`; `info/code` int64 `[1]` is `7 v`; `action` float32 `[3]` is `v, v / 2, v / 4`;
    `next/reward` float32 `[1]` is `v / 8`; the last step of even episodes is terminated, of odd
    ones truncated. `mission` is a text feature of the steps (`code = v mod 3`). The parent's
    earlier episodes have the length of the first one here. For the episodes `unknown_final` the
    source lacks the final observation: the last row repeats the previous one.

    Example:
        >>> toy_chunk([2], first_episode=1).batch.observations["info", "code"][:, 0].tolist()
        [7007, 7014, 7021]
    """
    sizes = np.asarray(lengths, np.int64)
    numbers = np.arange(len(sizes)) + first_episode
    final = ~np.isin(numbers, np.asarray(unknown_final, np.int64))
    w = np.concatenate(
        [1000.0 * e + np.arange(t + 1) + 1 for e, t in zip(numbers, sizes, strict=True)]
    )
    final_rows = np.cumsum(sizes + 1) - 1
    v = np.delete(w, final_rows)
    w[final_rows[~final]] -= 1
    last = np.zeros(int(sizes.sum()), bool)
    last[np.cumsum(sizes) - 1] = True
    even = np.repeat(numbers % 2 == 0, sizes)
    batch = EpisodeBatch(
        sizes,
        {
            ("action",): np.stack([v, v / 2, v / 4], axis=1).astype(np.float32),
            ("mission",): (v % 3).astype(np.int32),
            ("next", "reward"): (v / 8).astype(np.float32)[:, None],
            ("next", "terminated"): (last & even)[:, None],
            ("next", "truncated"): (last & ~even)[:, None],
        },
        {
            ("observation", "position"): np.stack([w, -w], axis=1),
            ("observation", "velocity"): (w + 0.5).astype(np.float32),
            ("info", "code"): (7 * w).astype(np.int64)[:, None],
        },
        final,
        {("seed",): numbers + 100},
    )
    starts = np.cumsum(sizes) - sizes + first_episode * int(sizes[0])
    words: dict[Key, list[str]] = {("mission",): ["go", "stop", "turn"]}
    return EpisodeChunk(batch, numbers, starts, np.zeros(len(sizes), np.int64), words)


def with_leaves(
    chunk: EpisodeChunk,
    *,
    steps: Mapping[str, NDArray[Any]] | None = None,
    observations: Mapping[str, NDArray[Any]] | None = None,
    words: Mapping[str, Sequence[str]] | None = None,
) -> EpisodeChunk:
    """Add or replace columns of steps `[N, …]` and observations `[N + E, …]`, and vocabularies.

    Example:
        >>> chunk = with_leaves(toy_chunk([2]), steps={"a.b": np.array([5, 6])})
        >>> chunk.batch.steps["a", "b"].tolist()
        [5, 6]
    """

    def split_keys(columns: Mapping[str, Any] | None) -> dict[Key, Any]:
        return {tuple(name.split(".")): column for name, column in (columns or {}).items()}

    return chunk.having(
        steps={**chunk.batch.steps, **split_keys(steps)},
        observations={**chunk.batch.observations, **split_keys(observations)},
        words={**chunk.words, **split_keys(words)},
    )


def as_stored(chunk: EpisodeChunk) -> EpisodeChunk:
    """Return the same episodes as read from a dataset's files: read-only, strided views."""
    return chunk.having(
        steps={key: _pack_in_record(column) for key, column in chunk.batch.steps.items()},
        observations={
            key: _pack_in_record(column) for key, column in chunk.batch.observations.items()
        },
    )


def episodes_of(chunk: EpisodeChunk) -> list[EpisodeChunk]:
    """Return a separate chunk for each episode."""
    return [_take_episode(chunk, e) for e in range(len(chunk.episodes))]


def transitions_of(chunk: EpisodeChunk) -> EpisodeChunk:
    """Return every transition as a separate episode, as for inferring a schema."""
    batch, e = chunk.batch, chunk.batch.episode_of
    pairs = np.stack([batch.root_rows, batch.next_rows], axis=1).reshape(-1)
    last = np.isin(np.arange(batch.transitions), batch.last_rows)
    apart = replace(
        batch,
        lengths=np.ones(batch.transitions, np.int64),
        observations={key: column[pairs] for key, column in batch.observations.items()},
        final_observation=batch.final_observation[e] | ~last,
        episodes={key: column[e] for key, column in batch.episodes.items()},
    )
    return EpisodeChunk(
        apart, chunk.episodes[e], chunk.row_numbers, chunk.step_numbers, chunk.words
    )


def join_chunks(chunks: Sequence[EpisodeChunk]) -> EpisodeChunk:
    """Concatenate chunks with the same features, types and vocabularies."""
    words = {key: list(text) for key, text in chunks[0].words.items()}
    for one in chunks:
        assert {key: list(text) for key, text in one.words.items()} == words
        assert _types(one) == _types(chunks[0])
    return EpisodeChunk(
        concatenate([one.batch for one in chunks]),
        np.concatenate([one.episodes for one in chunks]),
        np.concatenate([one.rows for one in chunks]),
        np.concatenate([one.steps for one in chunks]),
        words,
    )


def assert_same_chunk(found: EpisodeChunk, expected: EpisodeChunk) -> None:
    """Assert equal episodes, places in the parent and vocabularies; NaN equals NaN."""
    assert_same_batch(found.batch, expected.batch)
    for what in ("episodes", "rows", "steps"):
        mine, theirs = getattr(found, what), getattr(expected, what)
        np.testing.assert_array_equal(mine, theirs, err_msg=what)
    mine, theirs = ({k: list(w) for k, w in one.words.items()} for one in (found, expected))
    assert mine == theirs, f"words: {mine} but expected {theirs}"


def _pack_in_record(column: NDArray[Any]) -> NDArray[Any]:
    """Copy a column into one field of records, followed by eight bytes of another field."""
    fields = [("leaf", column.dtype, column.shape[1:]), ("other", np.uint8, 8)]
    rows = np.full(len(column), 0, np.dtype(fields))
    rows["leaf"], rows["other"] = column, 255
    rows.flags.writeable = False
    return np.asarray(rows["leaf"])


def _types(chunk: EpisodeChunk) -> list[dict[Key, np.dtype[Any]]]:
    tables = (chunk.batch.steps, chunk.batch.observations, chunk.batch.episodes)
    return [{key: column.dtype for key, column in table.items()} for table in tables]


def _take_episode(chunk: EpisodeChunk, e: int) -> EpisodeChunk:
    alone, own = chunk.batch.part(e, e + 1), slice(e, e + 1)
    return EpisodeChunk(alone, chunk.episodes[own], chunk.rows[own], chunk.steps[own], chunk.words)
