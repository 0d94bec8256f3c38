"""A few transitions, or episodes, on which recipes learn what they give, and how long it takes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from offline_data.preprocess.reading import Chosen, read_piece, read_transitions

if TYPE_CHECKING:
    from offline_data.preprocess.piece import Piece
    from offline_data.preprocess.recipe import Recipe
    from offline_data.store.reader import DatasetReader

_ENDS = 8
"""Episodes of which the last transition is looked at."""

_DRAWN = 16
"""Transitions drawn at random."""

_EPISODES = 3
"""Whole episodes: the first, the last, one between."""


def probe(reader: DatasetReader, chosen: Chosen, recipe: Recipe) -> Piece:
    """Read what `recipe` learns from: whole episodes where it may change lengths, else transitions.

    Transitions are the first, the last, ends of episodes, and others drawn with a fixed seed.
    """
    if not recipe.keeps_rows:
        count = len(chosen.episodes)
        return read_piece(reader, chosen[np.isin(np.arange(count), _spread(count, _EPISODES))])
    starts = chosen.rows(reader)
    ends = starts + chosen.lengths - 1
    random = np.random.default_rng(0)
    drawn = random.integers(0, chosen.transitions, _DRAWN)
    before = np.cumsum(chosen.lengths)
    episode = np.searchsorted(before, drawn, side="right")
    within = drawn - (before - chosen.lengths)[episode]
    rows = [starts[:1], ends[-1:], ends[_spread(len(ends), _ENDS)], starts[episode] + within]
    return read_transitions(reader, np.unique(np.concatenate(rows)))


def seconds_each(recipe: Recipe, piece: Piece) -> float:
    """Measure the seconds that a recipe takes for a transition of a piece; raises what it raises."""
    begin = time.perf_counter()
    recipe.apply(piece)
    return (time.perf_counter() - begin) / max(1, piece.batch.transitions)


def _spread(count: int, wanted: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.unique(np.linspace(0, count - 1, min(wanted, count)).astype(np.int64))
