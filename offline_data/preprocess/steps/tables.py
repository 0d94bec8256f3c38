"""Columns of the episode table, of pieces and of a whole dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import TERMINATED, TRUNCATED, Key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.preprocess.piece import Piece


def episode_columns(piece: Piece) -> dict[Key, NDArray[Any]]:
    """Return `[E, …]` columns of the episodes of a piece: the parent's own, and what steps give.

    `number` (in the parent), `length`, `return`, `terminated` and `truncated` (of the last
    transition), `final_observation`, and the source's (`id`, `seed`, …; text as codes).
    """
    batch = piece.batch
    last = batch.last_rows
    return {
        **batch.episodes,
        ("number",): piece.episodes,
        ("length",): batch.lengths,
        ("return",): batch.returns,
        ("terminated",): np.asarray(batch.steps[TERMINATED][last, 0], dtype=bool),
        ("truncated",): np.asarray(batch.steps[TRUNCATED][last, 0], dtype=bool),
        ("final_observation",): batch.final_observation,
    }
