"""Transitions of a dataset as plain values, for people to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import NotFoundError
from offline_data.base.plurals import plural
from offline_data.document.blocks import Field, Fields
from offline_data.document.html import Document
from offline_data.document.values import format_nested
from offline_data.episode.fields import join_key
from offline_data.store.layout import EPISODE
from offline_data.store.reader import DatasetReader

_MOST_ITEMS = 6
"""Items of an array that are shown."""


class Transitions(Document, list[dict[str, Any]]):
    """Transitions as plain values; printed, a line for each feature of each.

    Each has the step row `index`, its `episode` and the `step` in it, counted from 0, and `values`
    in TED by key, `[*shape]`, with text as `str`.
    """

    def blocks(self) -> list[Fields]:
        """Return the values of each transition."""
        return transition_blocks(self)


def first_transitions(reader: DatasetReader, count: int, episode: int | None = None) -> Transitions:
    """Return the first `count` transitions, or fewer, of one episode or of the whole dataset.

    The observation after the last action of an episode without a final observation repeats the one
    before it. Raises `NotFoundError`.
    """
    begin, stop = episode_span(reader, episode)
    return transitions_of(reader, np.arange(begin, min(stop, begin + count)))


def last_transitions(reader: DatasetReader, count: int, episode: int | None = None) -> Transitions:
    """Return the last `count` transitions in order; see `first_transitions`."""
    begin, stop = episode_span(reader, episode)
    return transitions_of(reader, np.arange(max(begin, stop - count), stop))


def episode_span(reader: DatasetReader, episode: int | None) -> tuple[int, int]:
    """Return the rows `[first, stop)` of an episode or of all; raises `NotFoundError`."""
    if episode is None:
        return 0, reader.transitions
    if not 0 <= episode < reader.episode_count:
        raise NotFoundError(
            f"{reader.manifest.id} has no episode {episode}: it has "
            f"{plural(reader.episode_count, 'episode')}, numbered from 0"
        )
    begin = int(reader.starts[episode])
    return begin, begin + int(reader.lengths[episode])


def transitions_of(reader: DatasetReader, rows: NDArray[np.int64]) -> Transitions:
    """Return whole transitions by their step rows; see `first_transitions`."""
    columns = reader.transitions_at(rows)
    del columns[EPISODE]
    episodes = reader.episode_of(rows)
    steps = rows - reader.starts[episodes]
    texts = {join_key(key): reader.as_text(key, values) for key, values in columns.items()}
    return Transitions(
        {
            "index": int(rows[i]),
            "episode": int(episodes[i]),
            "step": int(steps[i]),
            "values": {key: texts[key][i] for key in sorted(texts)},
        }
        for i in range(len(rows))
    )


def transition_blocks(
    transitions: Iterable[dict[str, Any]],
    words_of: Callable[[str, Any], str | None] = lambda _, __: None,
) -> list[Fields]:
    """Return the values of transitions; `words_of` returns the text of a token feature, by its key."""
    return [
        Fields(
            *(
                Field(key, words_of(key, value) or brief(value))
                for key, value in transition["values"].items()
            ),
            title="episode {episode}, step {step}, index {index}".format(**transition),
        )
        for transition in transitions
    ]


def brief(value: Any) -> str:
    """Format the value of a feature on one line: its first items, then its shape."""
    array = np.asarray(value)
    items = " ".join(
        f"{item:.6g}" if isinstance(item, float) else format_nested(item)
        for item in array.ravel()[:_MOST_ITEMS].tolist()
    )
    return items if array.size <= _MOST_ITEMS else f"{items} … {array.dtype} {list(array.shape)}"
