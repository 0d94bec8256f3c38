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
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

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
from offline_data.errors import FormatError, StepError
from offline_data.store.layout import EPISODE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from offline_data.preprocess.piece import Piece

    Table = dict[Key, NDArray[Any]]
    """Columns `[n, …]` by key."""

On: TypeAlias = Literal["transitions", "observations"]
"""What a row is that a function gets."""

INDEX: Key = ("index",)

FLAGS: tuple[Key, ...] = (("done",), ("terminated",), ("truncated",))

GIVEN: tuple[Key, ...] = (INDEX, EPISODE, *FLAGS)
"""Leaves that every row has and that follow from its place: a function may not change them."""


class NeedsExplicitNext(Exception):  # noqa: N818 - a finding, not an error
    """Leaves whose value after an action is not the value before the next one."""

    def __init__(self, keys: Collection[Key]) -> None:
        super().__init__(", ".join(map(join_key, keys)))
        self.keys = tuple(keys)
        self.reason = (
            f"{self} after an action is not what stands before the next, so that both are stored"
        )


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
    explicit_next: Collection[Key],
    untouched: Collection[Key] = frozenset(),
) -> tuple[Piece, list[Key]]:
    """Return a piece whose columns are those of a table of TED rows, and what had to be kept.

    Args:
        piece: The same episodes before; an action, a reward and flags that `leaves` lacks stay
            as they are here.
        leaves: `[N, …]` columns.
        explicit_next: Root keys that are stored with their `next`, because it is something else;
            `NeedsExplicitNext` is raised where there are more of these.
        untouched: Keys of `leaves` whose values are those that `to_ted` gave for this piece.
    """
    kept = [key for key in (REWARD, TERMINATED, TRUNCATED) if key not in leaves]
    if not any(key[0] == "action" for key in leaves):
        kept += [key for key in piece.batch.steps if key[0] == "action"]
    found = {key: values for key, values in leaves.items() if key not in {*GIVEN, DONE}}
    found |= {key: piece.batch.steps[key] for key in kept}
    same = {key for key in untouched if key in found}
    once = [key for key in found if _is_pair(key, found) and key not in explicit_next]
    whole = {k for k in once if {k, next_of(k)} <= same and k in piece.batch.observations}
    different = []
    for key in once:
        if (
            key not in whole
        ):  # what follows an action is what stands before the next, within episodes
            same_after = equal_rows(found[next_of(key)][:-1], found[key][1:])
            same_after[piece.batch.last_rows[:-1]] = True
            if not same_after.all():
                different.append(key)
    if different:
        raise NeedsExplicitNext(different)
    both = {*once, *map(next_of, once)}
    steps = {
        key: piece.batch.steps[key] if key in same and key in piece.batch.steps else values
        for key, values in found.items()
        if key not in both
    }
    observations, last = {}, piece.batch.last_rows
    for key in once:
        if key in whole:
            observations[key] = piece.batch.observations[key]
            continue
        root, rows = found[key], piece.batch.transitions + len(piece.batch.lengths)
        observations[key] = column = np.empty((rows, *root.shape[1:]), root.dtype)
        column[piece.batch.root_rows] = root
        column[piece.batch.next_rows[last]] = found[next_of(key)][last]
    try:
        made = piece.having(steps=steps, observations=observations, words=words_of(piece))
    except FormatError as error:
        raise StepError(
            f"What the function returned is no transition: {error.message}",
            hint="return the TensorDict that it was given, with what is to be changed",
        ) from error
    return made, kept


def equal_rows(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return for each row whether its bytes are the same, `[n]`; dtypes and shapes are."""
    if one.size == 0:
        return np.ones(len(one), bool)
    rows = [np.ascontiguousarray(values).reshape(len(values), -1) for values in (one, other)]
    left, right = (_as_words(values) for values in rows)
    return np.asarray((left == right).all(axis=1))


def _as_words(rows: NDArray[Any]) -> NDArray[Any]:
    """View rows as whole numbers, so that NaN equals NaN and -0.0 is not 0.0."""
    size = rows.dtype.itemsize
    return rows.view(f"u{size}" if size in (1, 2, 4, 8) else "u8")


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


class Transitions:
    """Each row that a function gets is one transition in TED."""

    def table(self, piece: Piece) -> Table:
        """Return `[n, …]` columns of the rows, new and contiguous: all TED leaves."""
        return to_ted(piece)

    def numbers(self, piece: Piece) -> NDArray[np.int64]:
        """Return `[n]` numbers that tell the rows of a dataset apart, to seed them by."""
        return piece.row_numbers

    def place(self, piece: Piece, row: int) -> str:
        """Say where a row comes from, for a message."""
        return piece.place(row)

    def rebuilt(
        self, piece: Piece, made: Made, explicit_next: Collection[Key]
    ) -> tuple[Piece, list[Key]]:
        """Return the piece with what was made of its rows, and what had to be kept; see `from_ted`.

        Raises:
            NeedsExplicitNext: Leaves that are to be stored before and after every action.
            StepError: What no dataset can have.
        """
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
        return from_ted(piece, made.leaves, explicit_next, made.untouched)


class Observations(Transitions):
    """Each row is one observation: before an action, or after the last one of an episode."""

    def table(self, piece: Piece) -> Table:
        """Return the leaves that exist before and after actions, by root key."""
        return {k: np.array(v, order="C") for k, v in piece.batch.observations.items()}

    def numbers(self, piece: Piece) -> NDArray[np.int64]:
        """Return row plus episode of the parent: the number of the observation."""
        batch = piece.batch
        numbers = np.empty(batch.transitions + len(batch.lengths), np.int64)
        numbers[batch.root_rows] = piece.row_numbers + piece.episode_numbers
        numbers[batch.next_rows[batch.last_rows]] = (
            piece.row_numbers[batch.last_rows] + piece.episodes + 1
        )
        return numbers

    def place(self, piece: Piece, row: int) -> str:
        """Say which transition it is before, or after."""
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
        explicit_next: Collection[Key],  # noqa: ARG002 - there is one copy, from the beginning
    ) -> tuple[Piece, list[Key]]:
        """Return the piece with these observation columns; nothing is kept."""
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


VIEWS: dict[On, Transitions] = {"transitions": Transitions(), "observations": Observations()}
"""What `on=` may be."""


def check_given(before: Mapping[Key, NDArray[Any]], after: Table) -> tuple[Key, int] | None:
    """Return the first leaf that a function may not change and the first row where it did.

    `next/done` may be what it was, or what follows from the flags there are now. `before` has the
    leaves that follow from a row's place, and the flags; `after` is what the function returned.
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
    """Raise `StepError` where a text leaf, `[n, …]` by TED key, has codes that stand for no text."""
    known = words_of(piece)
    for key, values in leaves.items():
        words = known.get(key)
        if words is None or values.dtype != np.int32:
            continue
        row = _first_row((values < -1) | (values >= len(words)))  # -1 stands for no text
        if row is not None:
            raise StepError(
                f"The function gave {join_key(key)!r} at {place(piece, row)} the code "
                f"{values[row].tolist()}, which stands for no text: this leaf is text, by codes",
                hint="store numbers under another name, or as another type than int32",
            )


def check_tree(steps: Collection[Key], observations: Collection[Key]) -> None:
    """Raise `StepError` where two leaves have one name, or one is below another."""
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


def _flag(before: Mapping[Key, NDArray[Any]], after: Table, key: Key) -> NDArray[Any]:
    flag = after.get(key, before[key])
    return np.asarray(flag if flag.shape == before[key].shape else before[key], dtype=bool)


def _first_difference(before: NDArray[Any], after: NDArray[Any]) -> int | None:
    return 0 if before.shape != after.shape else _first_row(before != after)


def _first_row(where: NDArray[np.bool_]) -> int | None:
    """Return the first row in which something is so."""
    at = np.flatnonzero(where.any(axis=tuple(range(1, where.ndim))))
    return int(at[0]) if len(at) else None
