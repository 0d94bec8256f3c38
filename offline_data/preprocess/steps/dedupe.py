"""`dedupe`: of episodes with the same content, the first."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.preprocess.steps.base import Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.preprocess.piece import Piece

DIGEST: Key = ("digest",)
"""Column of the table that `choose` is given."""


@dataclass(frozen=True)
class Dedupe(Selection):
    """Drop every episode that has the content of an earlier one.

    Content is all step and observation leaves at this point of the recipe, to the byte, and
    whether the final observation is known; columns of the episode table (`id`, `seed`, …) do not
    count. So 0.0 and -0.0 differ, and NaN is the same as NaN of the same bits. To look past a
    leaf, exclude it before; to look past rounding, cast.

    Episodes are told apart by 128 bits of BLAKE2b: two that differ are taken for the same with a
    probability of about `E² / 2^129`.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> step, piece = Dedupe(), toy_piece([2, 3])
        >>> column = np.concatenate([step.measure(piece)[DIGEST] for _ in range(2)])
        >>> step.choose({DIGEST: column}, {}).tolist()
        [True, True, False, False]
    """

    name: ClassVar[str] = "dedupe"
    example: ClassVar[str] = "dedupe"
    needs_data: ClassVar[bool] = True

    def measure(self, piece: Piece) -> dict[Key, NDArray[Any]]:
        """Return `("number",)` int64 `[E]`, and `("digest",)` uint64 `[E, 2]` of each episode."""
        batch = piece.batch
        rows = batch.transitions
        steps = _packed(batch.steps, rows)
        observations = _packed(batch.observations, rows + len(batch.lengths))
        start = hashlib.blake2b(_schema(piece).encode(), digest_size=16)
        stops = np.cumsum(batch.lengths)
        places = zip(
            (stops - batch.lengths).tolist(),
            stops.tolist(),
            batch.final_observation.tolist(),
            strict=True,
        )
        digests = bytearray()
        for episode, (begin, stop, final) in enumerate(places):
            one = start.copy()
            one.update(steps[begin:stop].data)
            one.update(observations[begin + episode : stop + episode + 1].data)
            one.update(b"\1" if final else b"\0")
            digests += one.digest()
        pairs = np.frombuffer(bytes(digests), "<u8").astype(np.uint64).reshape(-1, 2)
        return {("number",): piece.episodes, DIGEST: pairs}

    def choose(
        self,
        table: Mapping[Key, NDArray[Any]],
        words: Mapping[Key, Sequence[str]],  # noqa: ARG002 - digests are numbers
    ) -> NDArray[np.bool_]:
        """Return `[E]` which episodes are the first of their content."""
        digests = table[DIGEST]
        order = np.lexsort(digests.T)  # stable: of equal ones the first stays first
        ordered = digests[order]
        chosen = np.ones(len(digests), bool)
        chosen[order[1:]] = (ordered[1:] != ordered[:-1]).any(axis=1)
        return chosen


def _packed(columns: Mapping[Key, NDArray[Any]], rows: int) -> NDArray[np.uint8]:
    """Lay the bytes of all columns side by side, `[rows, width]`: an episode is then one buffer."""
    parts = [_as_bytes(columns[key]) for key in sorted(columns)]
    return np.concatenate([np.zeros((rows, 0), np.uint8), *parts], axis=1)


def _as_bytes(column: NDArray[Any]) -> NDArray[np.uint8]:
    width = prod(column.shape[1:])
    flat = np.ascontiguousarray(column).reshape(len(column), width)
    return flat.view(np.uint8) if width else np.zeros((len(column), 0), np.uint8)


def _schema(piece: Piece) -> str:
    """Write down what the bytes mean: keys, types and shapes of a row."""
    tables = (piece.batch.steps, piece.batch.observations)
    return repr(
        [
            [(key, table[key].dtype.str, table[key].shape[1:]) for key in sorted(table)]
            for table in tables
        ]
    )
