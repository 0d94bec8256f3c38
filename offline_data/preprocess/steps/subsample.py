"""`subsample`: some of the episodes, at random or every n-th."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import check_finite, check_whole, usage_error
from offline_data.preprocess.steps.base import Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from offline_data.episodes import Key

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Subsample(Selection):
    """Keep a fraction of the episodes, a number of them, or every n-th; at least one is kept.

    Which ones are kept at random follows from the seed and the number of episodes there are, and
    is the same on every machine. With one seed, fewer episodes are a part of more, and a fraction
    keeps what the first share of `split` of that size has. They stay in their order.

    Raises:
        UsageError: None of `fraction`, `every` and `episodes`, or several; a value out of range.
        StepError: More episodes than there are.

    Example:
        >>> table = {("length",): np.ones(7, np.int64)}
        >>> Subsample(every=3).choose(table, {}).nonzero()[0].tolist()
        [0, 3, 6]
        >>> Subsample(fraction=0.3).choose(table, {}).sum().item()
        2
    """

    name: ClassVar[str] = "subsample"
    example: ClassVar[str] = "subsample:fraction=0.1,seed=0"

    fraction: float | None = None
    """Part of the episodes, above 0, at most 1; rounded to whole episodes."""
    every: int | None = None
    """Episodes 0, `every`, 2 · `every`, … of those that there are at this point."""
    episodes: int | None = None
    """How many episodes."""
    seed: int = 0
    """Not negative; `every` does not need it."""

    def __post_init__(self) -> None:
        step, names = type(self), ("fraction", "every", "episodes")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            told = ", ".join(f"{name}={getattr(self, name)!r}" for name in given) or "none"
            raise usage_error(step, f"needs one of {', '.join(names)}; found {told}")
        if self.fraction is None:
            check_whole(step, given[0], getattr(self, given[0]), 1)
        else:
            check_finite(step, "fraction", self.fraction)
            if not 0 < self.fraction <= 1:
                raise usage_error(
                    step, f"has fraction={self.fraction}; expected a number above 0, at most 1"
                )
        check_whole(step, "seed", self.seed, 0)

    @property
    def by_values(self) -> bool:
        """It looks at the number of episodes alone."""
        return False

    def choose(
        self,
        table: Mapping[Key, NDArray[Any]],
        words: Mapping[Key, Sequence[str]],  # noqa: ARG002 - no column matters
    ) -> NDArray[np.bool_]:
        """Return `[E]` which episodes stay."""
        count = len(table[("length",)])
        chosen = np.zeros(count, bool)
        if self.every is not None:
            chosen[:: self.every] = True
            return chosen
        # Imported here: the samplers bring torch.
        from offline_data.buffers.samplers.permutation import EpochOrder

        chosen[EpochOrder(count, self.seed, 0).between(0, self._size(count))] = True
        return chosen

    def _size(self, count: int) -> int:
        """Return how many of `count` episodes stay."""
        if self.fraction is not None:
            return max(1, math.floor(self.fraction * count + 0.5 + _ROUNDING))
        wanted = self.episodes or 0
        if wanted > count:
            raise StepError(
                f"Step 'subsample' is to keep {wanted} episodes, and there are {count}",
                hint="subsample:fraction=1 keeps all",
            )
        return wanted
