"""`Scaler`: numbers normalized by mean and standard deviation, or by two quantiles, and back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.store.quantiles import LEVELS, QuantileSketch
from offline_data.store.statistics import Moments, item_moments

FIGURES = {"std": ("mean", "std"), "quantile": ("q01", "q99")}
"""Names of the two statistics of each kind."""

EPS = {"std": 1e-3, "quantile": 1e-6}
"""Usual `eps` of each kind: of CORL and d3rlpy, where a constant becomes 0; of openpi, where it becomes -1."""

Measure: TypeAlias = "Moments | QuantileSketch"


class Affine(NamedTuple):
    """`(x - center) / spread - shift` of arrays or tensors."""

    center: Any
    spread: Any
    shift: float

    def apply(self, values: Any) -> Any:
        """Return normalized values, new, of the type that the operations give."""
        scaled = values - self.center
        if scaled.dtype == self.spread.dtype:  # in place: chunks are large
            scaled /= self.spread
        else:
            scaled = scaled / self.spread
        if self.shift:
            scaled -= self.shift
        return scaled

    def invert(self, values: Any) -> Any:
        """Return the values that these are when normalized."""
        return (values + self.shift if self.shift else values) * self.spread + self.center


@dataclass(frozen=True, eq=False)
class Scaler:
    """Two statistics of a leaf in float64, elementwise, and what they normalize it by.

    `std`: `(x - mean) / (std + eps)`; `quantile`: `2 (x - q01) / (q99 - q01 + eps) - 1`.

    Example:
        >>> scale = Scaler(np.array([1.0, 2.0]), np.array([2.0, 4.0])).affine(eps=0)
        >>> scale.apply(np.array([3.0, 2.0])).tolist(), scale.invert(np.array([1.0, 0.0])).tolist()
        ([1.0, 0.0], [3.0, 2.0])
        >>> Scaler(np.array([1.0]), np.array([5.0]), "quantile").affine(eps=0).apply(np.arange(6.0))
        array([-1.5, -1. , -0.5,  0. ,  0.5,  1. ])
    """

    first: NDArray[np.float64]
    second: NDArray[np.float64]
    kind: str = "std"
    count: Any = None
    """Number of finite values of each element; None: not known."""

    @classmethod
    def of(cls, seen: Measure, shape: tuple[int, ...]) -> Scaler:
        """Return that of the rows seen, of a shape; NaN are quantiles of no finite value."""
        if isinstance(seen, Moments):
            return cls(seen.mean, seen.std, "std", seen.count)
        levels = [LEVELS[name] for name in FIGURES["quantile"]]
        low, high = seen.quantiles(levels).T.reshape(2, *shape)
        return cls(low, high, "quantile", seen.count.reshape(shape))

    @property
    def spread(self) -> NDArray[np.float64]:
        """The standard deviation, or the distance of the quantiles; not finite if that overflows."""
        if self.kind == "std":
            return self.second
        with np.errstate(over="ignore", invalid="ignore"):
            return self.second - self.first

    def affine(self, eps: float, dtype: Any = np.float64) -> Affine:
        """Return the operation in a type; the statistics are rounded to it before `eps` is added."""
        spread, shift = self.spread, 0.0
        if self.kind == "quantile":
            spread, eps, shift = spread / 2, eps / 2, 1.0
        with np.errstate(over="ignore"):
            divisor = spread.astype(dtype) + np.dtype(dtype).type(eps)
            return Affine(self.first.astype(dtype), divisor, shift)


def measure(
    kind: str,
    values: NDArray[Any],
    counted: NDArray[np.bool_] | None = None,
    *,
    seen: Any = None,
    size: int | None = None,
) -> Measure:
    """Return the statistics of rows `[n, *shape]`, after those `seen` before, which may change.

    `counted`: mask of the rows to include; `size`: see `QuantileSketch`.
    """
    if kind == "std":
        found = item_moments(values, counted)
        return found if seen is None else seen.merge(found)
    rows = values if counted is None else values[counted]
    sketch = QuantileSketch(prod(rows.shape[1:]), size) if seen is None else seen
    if len(rows):
        sketch.add(rows.reshape(len(rows), -1).T)
    return sketch
