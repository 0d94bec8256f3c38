"""What a function must leave as it is, and what it cannot return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import DONE, TERMINATED, TRUNCATED, join_key, next_of
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.ted import GIVEN, words_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.ted import Table
    from offline_data.preprocess.piece import Piece


def check_given(before: Mapping[Key, NDArray[Any]], after: Table) -> tuple[Key, int] | None:
    """Return the first leaf that a function may not change and the first row where it did.

    `next/done` may be what it was, or what follows from the flags there are now.

    Args:
        before: Columns of the leaves that follow from a row's place, and the flags.
        after: What the function returned.
    """
    for key in GIVEN:
        if key in after and (at := _first_difference(before[key], after[key])) is not None:
            return key, at
    if DONE in after:
        was = before[TERMINATED] | before[TRUNCATED]
        ended = _flag(before, after, TERMINATED) | _flag(before, after, TRUNCATED)
        if _first_difference(was, after[DONE]) is not None:
            at = _first_difference(ended, after[DONE])
            return None if at is None else (DONE, at)
    return None


def refuse_codes(place: Callable[[Piece, int], str], piece: Piece, leaves: Table) -> None:
    """Raise `StepError` where a text leaf has codes now that stand for no text.

    Args:
        place: Says where a row of the piece comes from.
        piece: Knows the words.
        leaves: `[n, …]` columns by TED key.
    """
    wrong = _wrong_code(piece, leaves)
    if wrong is not None:
        key, row = wrong
        raise StepError(
            f"The function gave {join_key(key)!r} at {place(piece, row)} the code "
            f"{leaves[key][row].tolist()}, which stands for no text: this leaf is text, by codes",
            hint="store numbers under another name, or as another type than int32",
        )


def check_tree(steps: Collection[Key], observations: Collection[Key]) -> None:
    """Raise `StepError` where two leaves have one name, or one is below another.

    Example:
        >>> check_tree([("action",)], [("observation", "x")])
    """
    keys = [*steps, *observations, *map(next_of, observations)]
    known = set(keys)
    if len(known) < len(keys):
        clash = next(key for key in observations if key in steps or next_of(key) in steps)
    else:
        above = (key[:n] for key in keys for n in range(1, len(key)))
        clash = next((key for key in above if key in known), ())
    if clash:
        raise StepError(
            f"The function returned {join_key(clash)!r}, and there is another leaf of that name",
            hint="rename the leaf in the function",
        )


def _wrong_code(piece: Piece, leaves: Table) -> tuple[Key, int] | None:
    """Return the first text leaf whose codes have no words any more, and the first such row."""
    known = words_of(piece)
    for key, values in leaves.items():
        words = known.get(key)
        if words is None or values.dtype != np.int32:
            continue
        wrong = (values < -1) | (values >= len(words))  # -1 stands for no text
        if (at := _first_row(wrong)) is not None:
            return key, at
    return None


def _flag(before: Mapping[Key, NDArray[Any]], after: Table, key: Key) -> NDArray[Any]:
    flag = after.get(key, before[key])
    return np.asarray(flag if flag.shape == before[key].shape else before[key], dtype=bool)


def _first_difference(before: NDArray[Any], after: NDArray[Any]) -> int | None:
    return 0 if before.shape != after.shape else _first_row(before != after)


def _first_row(where: NDArray[np.bool_]) -> int | None:
    """Return the first row in which something is so."""
    at = np.flatnonzero(where.any(axis=tuple(range(1, where.ndim))))
    return int(at[0]) if len(at) else None
