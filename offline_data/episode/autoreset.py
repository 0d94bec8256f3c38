"""Rows that vector environments with automatic resets leave in a recording.

After an episode has ended, Gymnasium's vector environments reset by themselves:

```
next_step   row            …  t        t + 1        t + 2          the action of row t + 1 is ignored
            observation       s_t      s_final      s0'
            next              s_final  s0'          s1'
            reward            r        0            r'
            end               X        .            .

same_step   row            …  t        t + 1                       s_final is not in the rows
            observation       s_t      s0'
            next              s0'      s1'
            end               X        .
```

Source: `AutoresetMode` of https://gymnasium.farama.org/api/vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episode.batch import EpisodeBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.episode.fields import Autoreset, Key

_LEAST_ENDS, _SHARE = 10, 0.9
_QUANTILE = 0.99
_SAMPLED = 100_000  # steps whose lengths are measured


def undo_autoreset(
    batches: Iterable[EpisodeBatch], mode: Autoreset, *, first: bool = True
) -> Iterator[EpisodeBatch]:
    """Yield batches of episodes without what automatic resets left in them.

    `next_step`: the first row of every episode is dropped, and with it episodes that have no other;
    `first`: the first batch begins with the first episode, which is kept. `same_step`: no final
    observation is known. `batches` are of one environment, in the order of the recording.
    """
    for batch in batches:
        yield _drop_first_rows(batch, first=first) if mode == "next_step" else _forget_final(batch)
        first = False


def _drop_first_rows(batch: EpisodeBatch, *, first: bool) -> EpisodeBatch:
    dropped = np.ones(len(batch.lengths), bool)
    dropped[:1] = not first
    left = batch.lengths - dropped
    steps = np.ones(batch.transitions, bool)
    steps[batch.starts[dropped]] = False
    states = np.ones(batch.transitions + len(batch.lengths), bool)
    begins = batch.starts + np.arange(len(batch.lengths))
    states[begins[dropped]] = False
    states[begins[left == 0] + 1] = False  # the episode was the reset alone
    kept = left > 0
    return replace(
        batch,
        lengths=left[kept],
        steps=_select(batch.steps, steps),
        observations=_select(batch.observations, states),
        final_observation=batch.final_observation[kept],
        episodes=_select(batch.episodes, kept),
    )


def _forget_final(batch: EpisodeBatch) -> EpisodeBatch:
    rows = np.arange(batch.transitions + len(batch.lengths))
    rows[np.cumsum(batch.lengths + 1) - 1] -= 1
    return replace(
        batch,
        observations=_select(batch.observations, rows),
        final_observation=np.zeros(len(batch.lengths), bool),
    )


def _select(columns: Mapping[Key, Any], rows: NDArray[Any]) -> dict[Key, Any]:
    return {key: column[rows] for key, column in columns.items()}


def find_autoreset(
    states: Callable[[NDArray[np.int64], bool], NDArray[Any]],
    lengths: NDArray[np.int64],
    known: NDArray[np.bool_],
    reward: NDArray[Any] | None = None,
) -> tuple[Autoreset, int] | None:
    """Return the mode that the rows of a dataset show, and at how many ends; None: neither.

    A trace is a final observation that equals the first one of the next episode, or where it is not
    known a last observation near that, next to a step longer than 99 % of the others: the last of
    the episode (`same_step`), or the first of the next one, with a reward of 0 (`next_step`). Where
    no step is long, a longer run was cut into pieces. At least 10 ends, and 9 of 10, must show it.

    `states` returns the observations `[n, …]` before, or if True after, the actions of steps `[n]`.
    `known` `[E]`: whether the observation after the last action is. `[E]` lengths, `[N, …]` reward.
    """
    if len(lengths) <= _LEAST_ENDS:
        return None
    starts, stops = np.cumsum(lengths) - lengths, np.cumsum(lengths)
    inner = np.ones(int(stops[-1]), bool)
    inner[starts], inner[stops - 1] = False, False
    steps = np.flatnonzero(inner)
    if not len(steps):
        return None
    steps = steps[:: -(-len(steps) // _SAMPLED)]

    def read(rows: NDArray[np.int64], *, after: bool) -> NDArray[np.float64]:
        return np.asarray(states(rows, after), np.float64).reshape(len(rows), -1)

    usual = read(steps, after=False)
    scale = usual.std(axis=0)
    scale[~(scale > 0)] = 1

    def distances(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.linalg.norm((other - one) / scale, axis=1))

    limit = np.quantile(distances(usual, read(steps, after=True)), _QUANTILE)
    lasts, firsts, sure = stops[:-1] - 1, starts[1:], known[:-1]
    last, final = read(lasts, after=False), read(lasts, after=True)
    first, second = read(firsts, after=False), read(firsts, after=True)
    continues = np.where(sure, (final == first).all(axis=1), distances(last, first) <= limit)
    same = continues & sure & (distances(last, final) > limit)
    following = continues & ~same & (distances(first, second) > limit)
    if reward is not None and np.asarray(reward[firsts[following]]).any():
        following[:] = False
    traces: tuple[tuple[Autoreset, NDArray[np.bool_], int], ...] = (
        ("same_step", same, int(sure.sum())),
        ("next_step", following, len(firsts)),
    )
    for mode, shown, ends in traces:
        if shown.sum() >= max(_LEAST_ENDS, _SHARE * ends):
            return mode, int(shown.sum())
    return None
