"""`Scaler`: numbers normalized by mean and standard deviation, or by two quantiles, and back."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.store.quantiles import LEVELS, QuantileSketch
from offline_data.store.statistics import Moments, item_moments

FIGURES = {"std": ("mean", "std"), "quantile": ("q01", "q99")}
"""Names of the two statistics of each kind."""

EPS = {"std": 1e-3, "quantile": 1e-6}  # usual `eps` of each kind, as `normalize` says

Measure: TypeAlias = "Moments | QuantileSketch"


def normalized(values: Any, center: Any, divisor: Any, shift: float) -> Any:
    """Return `(values - center) / divisor - shift` of arrays or tensors; see `Scaler.affine`."""
    scaled = values - center
    if scaled.dtype == divisor.dtype:  # in place: chunks are large
        scaled /= divisor
    else:
        scaled = scaled / divisor
    if shift:
        scaled -= shift
    return scaled


def denormalized(values: Any, center: Any, divisor: Any, shift: float) -> Any:
    """Return the inverse of `normalized`."""
    return (values + shift if shift else values) * divisor + center


@dataclass(frozen=True, eq=False)
class Scaler:
    """Two statistics of a feature in float64, elementwise, and what they normalize it by.

    `std`: `(x - mean) / (std + eps)`; `quantile`: `2 (x - q01) / (q99 - q01 + eps) - 1`.

    Example:
        >>> by = Scaler(np.array([1.0]), np.array([5.0]), "quantile").affine(eps=0)
        >>> (
        ...     normalized(np.arange(6.0), *by).tolist(),
        ...     denormalized(np.array([-1.0, 0, 1]), *by).tolist(),
        ... )
        ([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0], [1.0, 3.0, 5.0])
    """

    first: NDArray[np.float64]
    second: NDArray[np.float64]
    kind: str = "std"
    count: Any = None  # number of finite values of each element; None: not known

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

    def affine(self, eps: float, dtype: Any = np.float64) -> tuple[Any, Any, float]:
        """Return center, divisor and shift in a type; `eps` is added after rounding to it."""
        spread, shift = self.spread, 0.0
        if self.kind == "quantile":
            spread, eps, shift = spread / 2, eps / 2, 1.0
        with np.errstate(over="ignore"):
            divisor = spread.astype(dtype) + np.dtype(dtype).type(eps)
            return self.first.astype(dtype), divisor, shift


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
