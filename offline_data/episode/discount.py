"""Discounted sums of rewards from each row to the end of its episode."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEAST = 5e-324


def discount_rewards(
    rewards: NDArray[Any], lengths: NDArray[np.int64], gamma: float
) -> NDArray[Any]:
    """Compute, in place, the discounted sum from each row of float64 `[N, …]` to its episode's end.

    Uses doubling: from sums over `s` rows, `S[t] += γ^s · S[t + s]` gives sums over `2s`. The number
    of passes over all rows is the number of binary digits of the longest episode's length. The sum
    of a row, and its order of summation, depend only on its own episode.

    Example:
        >>> discount_rewards(np.array([1.0, 2, 4, 8]), np.array([3, 1]), 0.5).tolist()
        [3.0, 4.0, 4.0, 8.0]
    """
    end = np.repeat(np.cumsum(lengths), lengths)
    left = (end - np.arange(len(rewards))).reshape(-1, *(1,) * (rewards.ndim - 1))
    shift, longest = 1, int(lengths.max(initial=1)) if gamma else 1
    with np.errstate(invalid="ignore", over="ignore"):
        while shift < longest:
            # A power rounded to 0 would turn a distant infinite reward into NaN.
            later = max(gamma**shift, _LEAST) * rewards[shift:]
            sums = rewards[:-shift]
            np.add(sums, later, out=sums, where=left[:-shift] > shift)
            shift *= 2
    return rewards
