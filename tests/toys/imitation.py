"""Trajectories of imitation, written as `save` of its version 0.3 (`imitation/data/types.py`) does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

LENGTHS = (4, 1, 6, 3)
TERMINAL = (True, False, False, True)


def toy_arrays(*, rewards: bool = True, lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any]:
    """Return the arrays of a file; observation `t` of trajectory `e` is `100·(e + 1) + t`."""
    obs = [100.0 * (e + 1) + np.arange(n + 1) for e, n in enumerate(lengths)]
    acts = [-one[:-1, None].astype(np.float32) for one in obs]
    arrays = {
        "obs": np.concatenate([np.repeat(one[:, None], 3, axis=1) for one in obs]),
        "acts": np.concatenate(acts),
        "infos": np.array([{"t": n} for n in range(sum(lengths))], object),
        "terminal": np.array(TERMINAL[: len(lengths)]),
        "indices": np.cumsum(lengths[:-1]),
    }
    if rewards:
        arrays["rews"] = np.concatenate([one[:-1] / 10 for one in obs])
    return arrays


def write_imitation(path: Path, **changed: Any) -> Path:
    """Write the toy with other arrays in place of some, or without those that are None."""
    arrays = {name: one for name, one in {**toy_arrays(), **changed}.items() if one is not None}
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path
