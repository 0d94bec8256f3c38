"""The first transitions of a dataset or of one of its episodes, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import join_key
from offline_data.errors import NotFoundError
from offline_data.store.layout import EPISODE
from offline_data.store.reader import decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from offline_data.store.reader import DatasetReader


@dataclass(frozen=True)
class Transition:
    """One transition in TED."""

    index: int
    """Step row, in [0, N)."""
    episode: int
    """Number of its episode, in [0, E)."""
    step: int
    """Place in its episode, from 0."""
    values: Mapping[str, NDArray[Any]]
    """`[*shape]` values by key, parts joined by `/`, in order; text as `str` objects."""


def first_transitions(
    reader: DatasetReader, count: int, episode: int | None = None
) -> tuple[Transition, ...]:
    """Read the first `count` transitions, of one episode or of the whole dataset.

    Fewer come back where there are fewer. The observation after the last action of an episode
    without a final observation repeats the one before it.

    Raises:
        NotFoundError: No such episode.
    """
    begin, stop = _range(reader, episode)
    rows = np.arange(begin, min(stop, begin + count))
    columns = reader.transitions_at(rows)
    del columns[EPISODE]
    numbers = np.searchsorted(reader.starts, rows, side="right") - 1
    texts = {join_key(key): _text(reader, key, column) for key, column in columns.items()}
    return tuple(
        Transition(
            int(row),
            int(number),
            int(row - reader.starts[number]),
            {name: texts[name][i] for name in sorted(texts)},
        )
        for i, (row, number) in enumerate(zip(rows, numbers, strict=True))
    )


def _range(reader: DatasetReader, episode: int | None) -> tuple[int, int]:
    if episode is None:
        return 0, reader.transitions
    if not 0 <= episode < reader.episode_count:
        raise NotFoundError(
            f"{reader.manifest.id} has no episode {episode}: its {reader.episode_count} episodes "
            "are numbered from 0"
        )
    begin = int(reader.starts[episode])
    return begin, begin + int(reader.lengths[episode])


def _text(reader: DatasetReader, key: tuple[str, ...], column: NDArray[Any]) -> NDArray[Any]:
    words = reader.words(key)
    return column if words is None else decode(column, words)
