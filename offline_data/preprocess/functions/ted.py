"""Pieces as tables of TED rows and back; the observation after an action is kept once if it can be.

```
episode with T = 3     root           next                observations of the result
row 0                  s0             s1        s1 = s1?  s0
row 1                  s1             s2        s2 = s2?  s1
row 2                  s2             s3                  s2
                                                          s3 ← next of the last row
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes.fields import (
    DONE,
    RESERVED_ROOTS,
    REWARD,
    TERMINATED,
    TRUNCATED,
    Key,
    join_key,
    next_of,
)
from offline_data.errors import FormatError
from offline_data.preprocess.errors import StepError
from offline_data.store.layout import EPISODE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from offline_data.episodes import EpisodeBatch
    from offline_data.preprocess.piece import Piece

    Table = dict[Key, NDArray[Any]]
    """Columns `[n, …]` by key."""

INDEX: Key = ("index",)
FLAGS: tuple[Key, ...] = (("done",), ("terminated",), ("truncated",))
GIVEN: tuple[Key, ...] = (INDEX, EPISODE, *FLAGS)
"""Leaves that every row has and that follow from its place: a function may not change them."""


class TwoCopies(Exception):  # noqa: N818 - a finding, not an error
    """Leaves whose value after an action is not the value before the next one."""

    def __init__(self, keys: Collection[Key]) -> None:
        super().__init__(", ".join(map(join_key, keys)))
        self.keys = tuple(keys)


def to_ted(piece: Piece) -> Table:
    """Return `[N, …]` columns of every TED leaf of a piece, `index` and `episode` among them.

    All are new and contiguous: whoever gets them may write into them.
    """
    batch = piece.batch
    observed = {key: np.ascontiguousarray(values) for key, values in batch.observations.items()}
    table: Table = {
        key: np.take(values, batch.root_rows, axis=0) for key, values in observed.items()
    }
    table |= {key: np.array(values, order="C") for key, values in batch.steps.items()}
    table |= {next_of(k): np.take(v, batch.next_rows, axis=0) for k, v in observed.items()}
    table[DONE] = table[TERMINATED] | table[TRUNCATED]
    return table | given(piece)


def given(piece: Piece) -> Table:
    """Return `[N, …]` columns of the leaves that follow from a row's place."""
    table: Table = {flag: np.zeros((piece.batch.transitions, 1), bool) for flag in FLAGS}
    table[INDEX] = np.array(piece.row_numbers)
    table[EPISODE] = np.array(piece.episode_numbers)
    return table


def from_ted(
    piece: Piece,
    leaves: Table,
    two_copies: Collection[Key],
    untouched: Collection[Key] = frozenset(),
) -> tuple[Piece, list[Key]]:
    """Return a piece whose columns are those of a table of TED rows, and what had to be kept.

    Args:
        piece: The same episodes before; an action, a reward and flags that `leaves` lacks stay
            as they are here.
        leaves: `[N, …]` columns.
        two_copies: Root keys that are stored with their `next`, because it is something else.
        untouched: Keys of `leaves` whose values are those that `to_ted` gave for this piece.

    Raises:
        TwoCopies: There are more of those.
        StepError: Leaves that no dataset can have.
    """
    kept = _required(piece, leaves)
    found = {key: values for key, values in leaves.items() if key not in {*GIVEN, DONE}}
    found |= {key: piece.batch.steps[key] for key in kept}
    same = {key for key in untouched if key in found}
    once = [key for key in found if _is_pair(key, found) and key not in two_copies]
    whole = {k for k in once if {k, next_of(k)} <= same and k in piece.batch.observations}
    different = [
        key
        for key in once
        if key not in whole and not _adjoining(piece.batch, found[key], found[next_of(key)])
    ]
    if different:
        raise TwoCopies(different)
    both = {*once, *map(next_of, once)}
    steps = {
        key: piece.batch.steps[key] if key in same and key in piece.batch.steps else values
        for key, values in found.items()
        if key not in both
    }
    observations = {
        key: piece.batch.observations[key]
        if key in whole
        else _one_copy(piece.batch, found[key], found[next_of(key)])
        for key in once
    }
    try:
        made = piece.having(steps=steps, observations=observations, words=words_of(piece))
    except FormatError as error:
        raise StepError(
            f"What the function returned is no transition: {error.message}",
            hint="return the TensorDict that it was given, with what is to be changed",
        ) from error
    return made, kept


def equal_rows(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Tell for each row whether its bytes are the same, `[n]`; dtypes and shapes are."""
    if one.size == 0:
        return np.ones(len(one), bool)
    rows = [np.ascontiguousarray(values).reshape(len(values), -1) for values in (one, other)]
    left, right = (_as_words(values) for values in rows)
    return np.asarray((left == right).all(axis=1))


def _as_words(rows: NDArray[Any]) -> NDArray[Any]:
    """View rows as whole numbers, so that NaN equals NaN and -0.0 is not 0.0."""
    size = rows.dtype.itemsize
    return rows.view(f"u{size}" if size in (1, 2, 4, 8) else "u8")


def _required(piece: Piece, leaves: Table) -> list[Key]:
    """Leaves of the piece that every transition has, where the table has none."""
    missing = [key for key in (REWARD, TERMINATED, TRUNCATED) if key not in leaves]
    if not any(key[0] == "action" for key in leaves):
        missing += [key for key in piece.batch.steps if key[0] == "action"]
    return missing


def words_of(piece: Piece) -> dict[Key, Sequence[str]]:
    """Return the words of text leaves by TED key."""
    seen = piece.batch.observations
    return {**{next_of(k): w for k, w in piece.words.items() if k in seen}, **piece.words}


def _is_pair(key: Key, leaves: Table) -> bool:
    after = leaves.get(next_of(key))
    return (
        after is not None
        and key[0] not in RESERVED_ROOTS
        and (after.dtype, after.shape) == (leaves[key].dtype, leaves[key].shape)
    )


def _adjoining(batch: EpisodeBatch, root: NDArray[Any], after: NDArray[Any]) -> bool:
    """Tell whether what follows an action is what stands before the next, within episodes."""
    same = equal_rows(after[:-1], root[1:])
    seams = batch.last_rows[:-1]
    same[seams] = True
    return bool(same.all())


def _one_copy(batch: EpisodeBatch, root: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
    out = np.empty((batch.transitions + len(batch.lengths), *root.shape[1:]), root.dtype)
    out[batch.root_rows] = root
    last = batch.last_rows
    out[batch.next_rows[last]] = after[last]
    return out
