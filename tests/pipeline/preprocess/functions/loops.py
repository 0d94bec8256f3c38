"""What a function of rows must give, worked out by a plain loop, and steps run as the engine does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict

from offline_data.episode import Key
from offline_data.pipeline.preprocess.functions.episodes import EpisodeStep
from offline_data.pipeline.preprocess.job import Recipe, RunOptions, recipe_of
from offline_data.pipeline.preprocess.steps.base import Revision
from offline_data.store.chunk import EpisodeChunk
from offline_data.testing.chunks import episodes_of, join_chunks, toy_chunk, transitions_of

Row = dict[Key, NDArray[Any]]
Fn = Callable[[Any], Any]

REWARD, DONE = ("next", "reward"), ("next", "done")
TERMINATED, TRUNCATED = ("next", "terminated"), ("next", "truncated")
ACTION, POSITION, VELOCITY = ("action",), ("observation", "position"), ("observation", "velocity")

RARE = 5013.0
"""First number of the action of one row of `big_chunk`."""


def after(key: Key) -> Key:
    """Return where the value after an action stands."""
    return ("next", *key)


def big_chunk() -> EpisodeChunk:
    """Make 112 transitions, one of which is `RARE`; the probe does not have that one."""
    return toy_chunk([16] * 7)


def ted_rows(chunk: EpisodeChunk) -> list[Row]:
    """Take a chunk apart into rows of TED, one leaf of one row at a time."""
    batch, rows = chunk.batch, []
    step, seen = 0, 0
    for e, length in enumerate(batch.lengths.tolist()):
        for t in range(length):
            row: Row = {key: column[seen + t] for key, column in batch.observations.items()}
            for key, column in batch.observations.items():
                row[after(key)] = column[seen + t + 1]
            row |= {key: column[step] for key, column in batch.steps.items()}
            row[DONE] = row[TERMINATED] | row[TRUNCATED]
            row |= {(name,): np.array([False]) for name in ("done", "terminated", "truncated")}
            row["index",] = np.int64(chunk.rows[e] + t)
            row["episode",] = np.int64(chunk.episodes[e])
            rows.append({key: np.array(value) for key, value in row.items()})
            step += 1
        seen += length + 1
    return rows


def as_td(row: Row) -> TensorDict:
    """Build what a function gets, with tensordict's own constructor."""
    nested: dict[str, Any] = {}
    for key, value in row.items():
        level = nested
        for part in key[:-1]:
            level = level.setdefault(part, {})
        level[key[-1]] = torch.from_numpy(value.copy())
    return TensorDict(nested, batch_size=[], device="cpu")


def as_row(result: Any) -> Row:
    """Read what a function returned."""
    td = result if isinstance(result, TensorDict) else TensorDict(result, batch_size=[])
    return {
        (key,) if isinstance(key, str) else key: value.detach().clone().numpy()
        for key, value in td.items(include_nested=True, leaves_only=True)
    }


def loop(fn: Fn, chunk: EpisodeChunk, size: int | None = None) -> list[Row]:
    """Call a function with every row in turn, or with blocks of `size` rows."""
    rows = [as_td(row) for row in ted_rows(chunk)]
    with torch.no_grad():
        if size is None:
            return [as_row(fn(row)) for row in rows]
        blocks = [fn(torch.stack(rows[at : at + size])) for at in range(0, len(rows), size)]
        return [as_row(row) for block in blocks for row in block.unbind(0)]


def probe_of(chunk: EpisodeChunk, count: int = 12) -> EpisodeChunk:
    """Return some transitions of a chunk, each alone, as the engine tries functions on."""
    alone = episodes_of(transitions_of(chunk))
    chosen = np.unique(np.linspace(0, len(alone) - 1, min(count, len(alone))).astype(int))
    return join_chunks([alone[i] for i in chosen])


def ready(fn: Fn, chunk: EpisodeChunk, **calling: Any) -> Any:
    """Return the step of a function after it met the probe."""
    (step,) = recipe_of([fn], RunOptions(**calling)).steps
    return step.settled(chunk if isinstance(step, EpisodeStep) else probe_of(chunk))


def run(fn: Fn, chunk: EpisodeChunk, **calling: Any) -> tuple[EpisodeChunk, Any]:
    """Run a function on a chunk, starting over where the step asks for it."""
    step = ready(fn, chunk, **calling)
    for _ in range(5):
        try:
            return Recipe((step,)).apply(chunk), step
        except Revision as found:
            (step,) = recipe_of([fn], RunOptions(**calling)).steps
            step = step.with_state(found.state)
    raise AssertionError("it starts over again and again")


def assert_rows(found: EpisodeChunk, expected: list[Row]) -> None:
    """Assert that a chunk holds these rows, to the bit; what is not among them is not looked at."""
    rows = ted_rows(found)
    assert len(rows) == len(expected)
    for number, (mine, theirs) in enumerate(zip(rows, expected, strict=True)):
        for key, value in theirs.items():
            assert mine[key].dtype == value.dtype, (number, key)
            assert mine[key].shape == value.shape, (number, key)
            assert mine[key].tobytes() == value.tobytes(), (number, key, mine[key], value)


def assert_same_as_loop(
    fn: Fn, chunk: EpisodeChunk, found: EpisodeChunk, size: int | None = None
) -> None:
    """Assert that a chunk is what a plain loop over rows makes of another one, to the bit."""
    expected = loop(fn, chunk, size)
    assert_rows(found, expected)
    kept = {REWARD, DONE, TERMINATED, TRUNCATED, ACTION}
    places = {(name,) for name in ("done", "terminated", "truncated", "index", "episode")}
    assert set(ted_rows(found)[0]) <= set(expected[0]) | kept | places
