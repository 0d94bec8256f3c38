"""`split`: one part of the episodes, dealt out at random so that the parts have none in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.errors import UsageError
from offline_data.ids import nearest
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import (
    check_whole,
    read_pairs,
    scalar,
    usage_error,
)
from offline_data.preprocess.steps.base import Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from offline_data.episodes import Key

_ROUNDING = 1e-9


@dataclass(frozen=True)
class Split(Selection):
    """Keep one part of a split of the episodes: `split:train,train=0.9,val=0.1,seed=0`.

    The same seed and shares give the episodes of `ds.split(train=0.9, val=0.1, seed=0)["train"]`,
    on every machine, whatever part is asked for: parts have no episode in common, and shares that
    sum to 1 have all of them. The order of the shares matters. They stay in their order.

    Raises:
        UsageError: Shares that cannot be, a part that is none of them, a negative seed.
        StepError: A share that gets no episode.

    Example:
        >>> table = {("length",): np.ones(10, np.int64)}
        >>> shares = (("train", 0.8), ("val", 0.2))
        >>> train, val = (Split(part, shares).choose(table, {}) for part in ("train", "val"))
        >>> train.sum().item(), (train ^ val).all().item()
        (8, True)
    """

    name: ClassVar[str] = "split"
    example: ClassVar[str] = "split:train,train=0.9,val=0.1,seed=0"

    part: str
    """Name of the share that is kept."""
    shares: tuple[tuple[str, float], ...]
    """Name and size of each share, above 0; they sum to 1 or less."""
    seed: int = 0
    """Not negative."""

    def __post_init__(self) -> None:
        names, sizes = [name for name, _ in self.shares], [size for _, size in self.shares]
        if not sizes or not all(_is_number(size) and 0 < size <= 1 for size in sizes):
            raise self._refused("expected shares above 0, at most 1")
        if sum(sizes) > 1 + _ROUNDING or len(set(names)) < len(names):
            raise self._refused("expected shares of different names that sum to 1 or less")
        if self.part not in names:
            near = nearest(self.part, names, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise self._refused(f"{self.part!r} is none of the shares{meant}")
        check_whole(type(self), "seed", self.seed, 0)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `PART,NAME=SHARE,…[,seed=N]`."""
        words = [word.strip() for word in text.split(",") if word.strip()]
        parts = [word for word in words if "=" not in word]
        if len(parts) != 1:
            raise usage_error(cls, f"is given {len(parts)} parts to keep; expected one")
        pairs = read_pairs(cls, ",".join(word for word in words if "=" in word))
        values = [(name, scalar(value)) for name, value in pairs]
        seeds = [value for name, value in values if name == "seed"]
        if len(seeds) > 1:
            raise usage_error(cls, "is given seed twice")
        return cls(parts[0], tuple(one for one in values if one[0] != "seed"), *seeds)

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
        # Imported here: the buffers bring torch.
        from offline_data.buffers.views.choosing import split_episodes

        count = len(table[("length",)])
        try:
            parts = split_episodes(count, dict(self.shares), self.seed)
        except UsageError as error:
            raise StepError(f"Step 'split': {error.message}", hint=error.hint) from error
        chosen = np.zeros(count, bool)
        chosen[parts[self.part].numpy()] = True
        return chosen

    def _refused(self, what: str) -> UsageError:
        told = ", ".join(f"{name}={size!r}" for name, size in self.shares) or "no shares"
        return usage_error(type(self), f"has {told}; {what}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
