"""`Piece`: whole episodes on their way through a recipe, and where in the parent they come from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from offline_data.episodes import EpisodeBatch
    from offline_data.episodes.fields import Key


class ByRows(NamedTuple):
    """A block of rows that could not be vectorised, although the function can be."""

    rows: int
    why: str
    step: int = 0
    """Number of the step in the recipe."""


@dataclass(frozen=True)
class Piece:
    """Some episodes of a dataset, as one step of a recipe hands them to the next.

    Arrays of the batch may be read-only views of a file: a step never writes into them, it puts
    new arrays in their place. Text leaves are int32 codes.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> piece = toy_piece([2, 1])
        >>> piece.batch.transitions, piece.step_numbers.tolist()
        (3, [0, 1, 0])
    """

    batch: EpisodeBatch
    """The episodes. A piece that only serves to learn a schema may have parts of episodes."""
    episodes: NDArray[np.int64]
    """`[E]` number of each episode in the parent."""
    rows: NDArray[np.int64]
    """`[E]` row in the parent of each episode's first transition here."""
    steps: NDArray[np.int64]
    """`[E]` number in its episode of each first transition; 0 where episodes are whole."""
    words: Mapping[Key, Sequence[str]] = field(default_factory=dict)
    """Vocabularies of text leaves, by the key in the batch's steps or observations."""
    by_rows: tuple[ByRows, ...] = ()
    """What could not be vectorised on the way here."""

    @cached_property
    def row_numbers(self) -> NDArray[np.int64]:
        """`[N]` row in the parent of every transition.

        After a function that changed the length of an episode: the row its place would have.
        """
        return self._counted(self.rows)

    @cached_property
    def step_numbers(self) -> NDArray[np.int64]:
        """`[N]` number of every transition in its episode."""
        return self._counted(self.steps)

    @cached_property
    def episode_numbers(self) -> NDArray[np.int64]:
        """`[N]` number in the parent of the episode of every transition."""
        return self.episodes[self.batch.episode_of]

    def place(self, transition: int) -> str:
        """Say where a transition of the batch comes from, for a message."""
        row, step = int(self.row_numbers[transition]), int(self.step_numbers[transition])
        return f"row {row} (episode {int(self.episode_numbers[transition])}, step {step})"

    def having(
        self,
        *,
        steps: Mapping[Key, NDArray[Any]] | None = None,
        observations: Mapping[Key, NDArray[Any]] | None = None,
        words: Mapping[Key, Sequence[str]] | None = None,
    ) -> Piece:
        """Return the same episodes with these columns in place of all step or observation columns.

        Words of leaves that are no more, or no longer int32, go.

        Raises:
            FormatError: What `EpisodeBatch` refuses.
        """
        batch = replace(
            self.batch,
            steps=self.batch.steps if steps is None else steps,
            observations=self.batch.observations if observations is None else observations,
        )
        kept = self.words if words is None else words
        leaves = {**batch.steps, **batch.observations}
        codes = {
            key: text
            for key, text in kept.items()
            if key in leaves and leaves[key].dtype == np.int32
        }
        return replace(self, batch=batch, words=codes)

    def _counted(self, first: NDArray[np.int64]) -> NDArray[np.int64]:
        within = np.arange(self.batch.transitions) - self.batch.starts[self.batch.episode_of]
        return np.asarray(first[self.batch.episode_of] + within)
