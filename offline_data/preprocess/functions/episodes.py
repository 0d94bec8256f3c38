"""From what a function made of episodes to a piece: new lengths, ends and final observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from offline_data.episodes import EpisodeBatch
from offline_data.episodes.fields import DONE, REWARD, TERMINATED, TRUNCATED, Key
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.limits import refuse_codes
from offline_data.preprocess.functions.ted import INDEX, from_ted, words_of
from offline_data.preprocess.piece import Piece

if TYPE_CHECKING:
    from offline_data.preprocess.functions.calling import Place
    from offline_data.preprocess.functions.results import Schema
    from offline_data.preprocess.functions.ted import Table


@dataclass(frozen=True)
class Part:
    """What became of one episode."""

    place: int
    """Which episode of the piece it is."""
    table: Table
    """`[T', …]` columns, T' at least 1."""

    @property
    def rows(self) -> int:
        """Transitions that it has now."""
        return len(next(iter(self.table.values())))


def assembled(piece: Piece, parts: list[Part], schema: Schema, two_copies: set[Key]) -> Piece:
    """Lay episodes end to end, where the function ended one earlier marked as truncated.

    Args:
        piece: The episodes before.
        parts: Those that are left, in order; may be none.
        schema: Leaves of all parts.
        two_copies: Root keys that are stored with their `next`.

    Raises:
        TwoCopies: There are more of those.
        StepError: Leaves that no dataset can have.
    """
    tables = [_ended(piece, part) for part in parts]
    leaves = {
        key: np.concatenate([np.zeros((0, *shape), dtype), *(table[key] for table in tables)])
        for key, (dtype, shape) in schema.items()
    }
    frame = _frame(piece, parts, leaves)
    refuse_codes(Piece.place, frame, leaves)
    return from_ted(frame, leaves, two_copies)[0]


def check_done(table: Table, place: Place) -> None:
    """Raise `StepError` where a row says that it is done, and not why."""
    if DONE not in table:
        return
    flags = (table[TERMINATED], table[TRUNCATED], table[DONE])
    if any(flag.shape != flags[0].shape or flag.dtype != np.bool_ for flag in flags):
        return  # which is refused elsewhere
    wrong = np.flatnonzero((flags[2] & ~flags[0] & ~flags[1]).reshape(-1))
    if len(wrong):
        raise StepError(
            f"The function's result for {place()} is done at row {int(wrong[0])}, and neither "
            "terminated nor truncated",
            hint="set next/terminated or next/truncated; next/done follows from them",
        )


def _ended(piece: Piece, part: Part) -> Table:
    """Mark the last row as truncated where the episode is shorter and nothing ends it."""
    table = part.table
    shorter = part.rows < int(piece.batch.lengths[part.place])
    if not shorter or table[TERMINATED][-1].any() or table[TRUNCATED][-1].any():
        return table
    truncated = table[TRUNCATED].copy()
    truncated[-1] = True
    return {**table, TRUNCATED: truncated}


def _frame(piece: Piece, parts: list[Part], leaves: Table) -> Piece:
    """Return the episodes that are left, with what `from_ted` takes from where they were."""
    chosen = np.array([part.place for part in parts], np.int64)
    lengths = np.array([part.rows for part in parts], np.int64)
    required = (REWARD, TERMINATED, TRUNCATED)
    steps = {k: v for k, v in leaves.items() if k[0] == "action" or k in required}
    extras = {key: column[chosen] for key, column in piece.batch.episodes.items()}
    final = np.array([_final(piece, part) for part in parts], bool)
    return Piece(
        EpisodeBatch(lengths, steps, {}, final, extras),
        piece.episodes[chosen],
        piece.rows[chosen],
        piece.steps[chosen],
        words_of(piece),
    )


def _final(piece: Piece, part: Part) -> bool:
    """Tell whether the observation after the last row is the source's own.

    It is where the parent has it, and where that row was not the last: its `index` says so.
    """
    first = int(piece.rows[part.place])
    last = first + int(piece.batch.lengths[part.place]) - 1
    index = part.table.get(INDEX)
    if bool(piece.batch.final_observation[part.place]) or index is None or index.ndim != 1:
        return bool(piece.batch.final_observation[part.place])
    return part.rows <= last - first and first <= int(index[-1]) < last
