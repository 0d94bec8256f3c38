"""Pieces as tables of TED rows, or of observations, and back; what a function may not change.

The observation after an action is kept once if it can be:

```
episode with T = 3     root           next                observations of the result
row 0                  s0             s1        s1 = s1?  s0
row 1                  s1             s2        s2 = s2?  s1
row 2                  s2             s3                  s2
                                                          s3 ← next of the last row
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

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
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from offline_data.episodes import EpisodeBatch
    from offline_data.preprocess.piece import Piece

    Table = dict[Key, NDArray[Any]]
    """Columns `[n, …]` by key."""

On: TypeAlias = Literal["transitions", "observations"]

INDEX: Key = ("index",)

FLAGS: tuple[Key, ...] = (("done",), ("terminated",), ("truncated",))

GIVEN: tuple[Key, ...] = (INDEX, EPISODE, *FLAGS)
"""Leaves that every row has and that follow from its place: a function may not change them."""


class TwoCopies(Exception):  # noqa: N818 - a finding, not an error
    """Leaves whose value after an action is not the value before the next one."""

    def __init__(self, keys: Collection[Key]) -> None:
        super().__init__(", ".join(map(join_key, keys)))
        self.keys = tuple(keys)


@dataclass(frozen=True)
class Made:
    """What became of the rows of a table."""

    leaves: Table
    """`[n, …]` columns; may share memory with the table, with each other, and with the function."""
    untouched: frozenset[Key] = frozenset()
    """Leaves that are columns of the table, under the same name, into which nobody wrote."""


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
    """Return True if what follows an action is what stands before the next, within episodes."""
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


class View(Protocol):
    """Rows of a piece, as a function gets them, and the way back."""

    def table(self, piece: Piece) -> Table:
        """Return `[n, …]` columns, new and contiguous."""

    def numbers(self, piece: Piece) -> NDArray[np.int64]:
        """Return `[n]` numbers that tell the rows of a dataset apart, to seed them by."""

    def place(self, piece: Piece, row: int) -> str:
        """Say where a row comes from, for a message."""

    def rebuilt(
        self, piece: Piece, made: Made, two_copies: Collection[Key]
    ) -> tuple[Piece, list[Key]]:
        """Return the piece with what was made of its rows, and what had to be kept; see `from_ted`.

        Raises:
            TwoCopies: Leaves that are to be stored before and after every action.
            StepError: What no dataset can have.
        """


class Transitions:
    """Each row is one transition in TED."""

    def table(self, piece: Piece) -> Table:
        """Return all TED leaves; see `View`."""
        return to_ted(piece)

    def numbers(self, piece: Piece) -> NDArray[np.int64]:
        """Return rows of the parent; see `View`."""
        return piece.row_numbers

    def place(self, piece: Piece, row: int) -> str:
        """Say row, episode and step; see `View`."""
        return piece.place(row)

    def rebuilt(
        self, piece: Piece, made: Made, two_copies: Collection[Key]
    ) -> tuple[Piece, list[Key]]:
        """Return the piece with these TED leaves; see `View`."""
        changed = {key: values for key, values in made.leaves.items() if key not in made.untouched}
        wrong = check_given({**given(piece), **piece.batch.steps}, changed)
        if wrong is not None:
            row = piece.place(wrong[1])
            raise StepError(
                f"The function changed {join_key(wrong[0])!r} at {row}, which follows from the "
                "place of a row, or from next/terminated and next/truncated",
                hint="leave it as it is; by='episode' may cut episodes and drop them",
            )
        refuse_codes(self.place, piece, changed)
        return from_ted(piece, made.leaves, two_copies, made.untouched)


class Observations:
    """Each row is one observation: before an action, or after the last one of an episode."""

    def table(self, piece: Piece) -> Table:
        """Return the leaves that exist before and after actions, by root key; see `View`."""
        return {k: np.array(v, order="C") for k, v in piece.batch.observations.items()}

    def numbers(self, piece: Piece) -> NDArray[np.int64]:
        """Return row plus episode of the parent: the number of the observation; see `View`."""
        batch = piece.batch
        numbers = np.empty(batch.transitions + len(batch.lengths), np.int64)
        numbers[batch.root_rows] = piece.row_numbers + piece.episode_numbers
        numbers[batch.next_rows[batch.last_rows]] = (
            piece.row_numbers[batch.last_rows] + piece.episodes + 1
        )
        return numbers

    def place(self, piece: Piece, row: int) -> str:
        """Say which transition it is before, or after; see `View`."""
        batch = piece.batch
        before = np.flatnonzero(batch.root_rows == row)
        if len(before):
            return f"the observation before {piece.place(int(before[0]))}"
        last = int(np.flatnonzero(batch.next_rows == row)[0])
        return f"the observation after {piece.place(last)}"

    def rebuilt(
        self,
        piece: Piece,
        made: Made,
        two_copies: Collection[Key],  # noqa: ARG002 - there is one copy, from the beginning
    ) -> tuple[Piece, list[Key]]:
        """Return the piece with these observation columns; see `View`."""
        changed = {key: values for key, values in made.leaves.items() if key not in made.untouched}
        refuse_codes(self.place, piece, changed)
        check_tree(piece.batch.steps, made.leaves)
        before = piece.batch.observations
        observations = {key: changed.get(key, before.get(key)) for key in made.leaves}
        try:
            return piece.having(observations=observations), []  # type: ignore[arg-type]
        except FormatError as error:
            raise StepError(
                f"What the function returned is no observation: {error.message}",
                hint="rename the leaf in the function",
            ) from error


VIEWS: dict[On, View] = {"transitions": Transitions(), "observations": Observations()}
"""What `on=` may be."""


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
