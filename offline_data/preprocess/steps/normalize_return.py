"""`normalize_return`: rewards scaled so that the returns of a dataset span a given range."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from offline_data.episodes.fields import REWARD
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.arguments import check_finite, usage_error
from offline_data.preprocess.steps.base import MeasuredStep
from offline_data.preprocess.steps.leaves import replaced
from offline_data.preprocess.steps.overflow import held

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from typing_extensions import Self

    from offline_data.preprocess.piece import Piece


class Returns(NamedTuple):
    """What is known of the returns of some episodes; they are undiscounted, in float64."""

    low: float
    """Least finite return; infinite where there is none."""
    high: float
    """Greatest finite return; negative infinite where there is none."""
    finite: int
    """Episodes whose return is finite."""
    not_finite: int
    """Episodes whose return is NaN or infinite."""


@dataclass(frozen=True)
class NormalizeReturn(MeasuredStep):
    """Multiply every reward by `scale / (best return - worst return)`.

    What IQL does for the locomotion sets of D4RL, with `scale=1000` (`normalize` of its
    `train_offline.py`, https://github.com/ikostrikov/implicit_q_learning, Kostrikov et al. 2021);
    zero stays zero, and so does the order of returns. A return is the undiscounted sum of the
    rewards of an episode; those that are not finite do not count.

    Rewards keep a floating-point type, others become float32; the product is taken in float64.

    Raises:
        UsageError: `scale` is no number above 0.
        StepError: All finite returns are the same, or there is none.

    Example:
        >>> from offline_data.testing.pieces import toy_piece
        >>> piece = toy_piece([1, 1])
        >>> piece.batch.returns.tolist()
        [0.125, 125.125]
        >>> step = NormalizeReturn(scale=1000)
        >>> step.fitted([step.measure(piece)]).apply(piece).batch.returns.tolist()
        [1.0, 1001.0]
    """

    name: ClassVar[str] = "normalize_return"
    example: ClassVar[str] = "normalize_return:scale=1000"

    scale: float = 1000.0
    """Best return less worst return, afterwards."""
    learnt: Mapping[str, Any] | None = field(
        default=None, hash=False, repr=False, metadata={"state": True}
    )
    """`minimum` and `maximum` of the finite returns, and how many were `not_finite`."""

    def __post_init__(self) -> None:
        check_finite(type(self), "scale", self.scale)
        if self.scale <= 0:
            raise usage_error(type(self), f"has scale={self.scale}; expected a number above 0")

    def settled(self, probe: Piece) -> Self:  # noqa: ARG002 - every dataset has rewards
        """Return the step as it is."""
        return self

    def measure(self, piece: Piece) -> Returns:
        """Return the least and the greatest return of some episodes."""
        returns = piece.batch.returns
        finite = returns[np.isfinite(returns)]
        return Returns(
            float(finite.min(initial=inf)),
            float(finite.max(initial=-inf)),
            len(finite),
            len(returns) - len(finite),
        )

    def fitted(self, measures: Sequence[Returns]) -> Self:
        """Return the step with the least and the greatest return of all episodes."""
        low = min((one.low for one in measures), default=inf)
        high = max((one.high for one in measures), default=-inf)
        finite, missing = (sum(one[i] for one in measures) for i in (2, 3))
        if not 0 < high - low < inf:
            found = f"all {finite} finite returns are {low}" if finite else "no return is finite"
            raise StepError(
                f"Step 'normalize_return' divides by the best return less the worst, and {found}",
                hint="reward_scale multiplies rewards by a number of your choice",
            )
        return replace(self, learnt={"minimum": low, "maximum": high, "not_finite": missing})

    def apply(self, piece: Piece) -> Piece:
        """Return the episodes with their rewards scaled.

        Raises:
            StepError: Returns were not measured yet, or a reward becomes too large for its type.
        """
        if self.learnt is None:
            raise self._unmeasured()
        rewards = piece.batch.steps[REWARD]
        dtype = rewards.dtype if rewards.dtype.kind == "f" else np.float32
        factor = self.scale / (self.learnt["maximum"] - self.learnt["minimum"])

        def scaled(values: NDArray[Any]) -> NDArray[Any]:
            product: NDArray[Any] = np.multiply(values, factor, dtype=np.float64)
            return product.astype(dtype, copy=False)

        return replaced(piece, {REWARD: held(piece, REWARD, rewards, scaled, self.name)})

    def state(self) -> dict[str, Any]:
        """Return what was measured, as in `learnt`."""
        return dict(self.learnt or {})

    def with_state(self, state: Mapping[str, Any]) -> Self:
        """Return the step with what was measured."""
        return replace(self, learnt=dict(state) or None)

    def notes(self) -> tuple[str, ...]:
        """Say which episodes did not count."""
        missing = (self.learnt or {}).get("not_finite")
        if not missing:
            return ()
        told = f"normalize_return: {missing} episodes have a return that is NaN or infinite"
        return (f"{told}, and are not in the range of returns",)
