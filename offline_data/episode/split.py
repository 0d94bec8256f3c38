"""Random splits of episodes into named shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural
from offline_data.episode.permutation import EpochOrder, Numbers

ROUNDING = 1e-9  # error of sums of fractions such as 0.1 that is not counted


def in_pairs(table: Any) -> bool:
    """Return True if the episodes of a table are pairs of documents, the chosen one first."""
    if ("chosen",) not in table or ("row",) not in table or len(table["row",]) % 2:
        return False
    chosen, rows = np.asarray(table["chosen",]), np.asarray(table["row",]).reshape(-1, 2)
    alternate = chosen.dtype == bool and chosen[::2].all() and not chosen[1::2].any()
    return bool(alternate and (rows[:, 0] == rows[:, 1]).all())


def split_episodes(
    count: int, shares: Mapping[str, float], seed: int, *, pairs: bool = False
) -> dict[str, Numbers]:
    """Divide `count` episodes at random by shares; machine-independent for equal arguments.

    With `pairs`, episodes `2 n` and `2 n + 1` stay together. Returns the numbers of each share, ascending,
    int64, disjoint; shares that sum to 1 cover all. Raises `UsageError`.

    Example:
        >>> {name: len(part) for name, part in split_episodes(7, {"a": 0.5, "b": 0.5}, 0).items()}
        {'a': 4, 'b': 3}
    """
    if seed < 0:
        raise UsageError(f"seed is {seed}; expected at least 0")
    numbers: list[Any] = [
        one for one in shares.values() if isinstance(one, (int, float, np.number))
    ]
    valid = len(numbers) == len(shares) > 0 and all(0 < one <= 1 for one in numbers)
    if not valid or sum(numbers) > 1 + ROUNDING:
        given = ", ".join(f"{name}={share}" for name, share in shares.items())
        raise UsageError(
            f"Shares of a split must be above 0 and sum to at most 1; found {given or 'none'}",
            hint="ds.split(train=0.9, val=0.1, seed=0)",
        )
    if pairs:
        halves = split_episodes(count // 2, shares, seed)
        return {name: np.stack([2 * n, 2 * n + 1], 1).reshape(-1) for name, n in halves.items()}
    order = EpochOrder(count, seed, 0).between(0, count)
    parts, total, begin = {}, 0.0, 0
    for name, share in shares.items():
        total += share
        end = min(math.floor(total * count + 0.5 + ROUNDING), count)
        if end == begin:
            raise UsageError(
                f"{name}={share} of {plural(count, 'episode')} is less than one episode"
            )
        parts[name], begin = np.sort(order[begin:end]), end
    return parts
