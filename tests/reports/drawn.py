"""Episodes for tests of pictures: nested observations and actions, a discrete one, a NaN reward."""

from __future__ import annotations

from typing import Any

import numpy as np

LENGTHS = (12, 30, 5, 44, 21, 5, 17, 26)


def drawn_episodes() -> list[dict[str, Any]]:
    """Return the same episodes each time; number 2 has a reward that is NaN."""
    rng = np.random.default_rng(8)
    episodes = []
    for number, length in enumerate(LENGTHS):
        rewards = rng.normal(size=length)
        if number == 2:
            rewards[1] = np.nan
        walk = np.cumsum(rng.normal(size=(length + 1, 3)) * [1, 3, 0.1], axis=0)
        walk[:, 2] += walk[:, 0]
        state = np.c_[walk, np.full(length + 1, 0.7)].astype(np.float32)
        episodes.append(
            {
                "observations": {"goal": rng.normal(size=(length + 1, 1)), "state": state},
                "actions": {
                    "arm": np.tanh(rng.normal(size=(length, 2))).astype(np.float32),
                    "grip": rng.integers(0, 3, length),
                },
                "rewards": rewards,
                "terminations": number % 2 == 0,
                "truncations": number % 2 == 1,
            }
        )
    return episodes
