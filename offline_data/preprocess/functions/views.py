"""What a function sees of a piece: its transitions, or its observations, each a row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np

from offline_data.episodes.fields import join_key
from offline_data.errors import FormatError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.limits import check_given, check_tree, refuse_codes
from offline_data.preprocess.functions.ted import from_ted, given, to_ted

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.preprocess.functions.ted import Table
    from offline_data.preprocess.functions.vectorized import Made
    from offline_data.preprocess.piece import Piece

On: TypeAlias = Literal["transitions", "observations"]


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
