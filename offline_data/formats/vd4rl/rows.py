"""Conversion of rows of V-D4RL and DreamerV2 files, whose action precedes the image, to episodes.

```
row of a file                 0      1       2       3         an episode of T = 3
image, states                 s0     s1      s2      s3
action, reward, discount      (0)    a0,r1   a1,r2   a2,r3     they led to the image in their row
is_first                      X      .       .       .

row of steps                  0      1       2                 row t of the file is step t - 1
action                        a0     a1      a2
next reward, discount         r1     r2      r3
row of observations           s0     s1      s2      s3
```

Source: https://github.com/conglu1997/v-d4rl, `drqbc/numpy_replay_buffer.py` and `offlinedv2/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode import EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.fields import REWARD, Key, check_key
from offline_data.episode.notes import count_episodes

IMAGE, ACTION, REWARDS, DISCOUNT = "image", "action", "reward", "discount"
REQUIRED = (IMAGE, ACTION, REWARDS)
FIRST, LAST, TERMINAL = "is_first", "is_last", "is_terminal"
FLAGS = (FIRST, LAST, TERMINAL)
"""Columns that become episodes and flags instead of leaves."""

NOTES = (
    (
        "An action, its reward and its discount stand in the row of the image that they led to: they "
        "were put before it."
    ),
    "The first row of an episode has the image after the reset; its action and reward are left out.",
    (
        "Episodes end by the limit of steps and are truncated, unless is_terminal, or without it a "
        "discount of 0, says otherwise."
    ),
)
ODD_FIRST_ROW = (
    "the first row has an action or reward that is not 0; if each action was taken in its row's image "
    "instead, the episode is one step off."
)


def leaf_of(name: str) -> Key:
    """Return the leaf of a kept column, with TorchRL's names.

    Raises `FormatError` if the name is not a valid file name.

    Example:
        >>> leaf_of("image"), leaf_of("height"), leaf_of("discount")
        (('pixels',), ('state', 'height'), ('next', 'discount'))
    """
    known = {IMAGE: ("pixels",), ACTION: ("action",), REWARDS: REWARD}
    known[DISCOUNT] = ("next", "discount")
    return known.get(name) or check_key(("state", *name.split("/")))


def episode_of(rows: Mapping[str, NDArray[Any]], file: str) -> EpisodeBatch:
    """Return the episode of some rows.

    Args:
        rows: Columns `[T + 1, …]` by name: those of `REQUIRED`, and optionally `discount`, the flags,
            and any others, which are states.
        file: Name of the file in which it begins, for the episode table.

    Raises:
        FormatError: No step, or flags of several episodes.
    """
    count = len(rows[IMAGE])
    for name in (REWARDS, DISCOUNT, *FLAGS):
        if name in rows and rows[name].shape[1:] not in {(), (1,)}:
            raise FormatError(f"{name!r} has shape {list(rows[name].shape)}, expected [{count}]")
    if count < 2:
        raise FormatError(f"it has {plural(count, 'row')}, too few for a step; expected at least 2")
    flags = {name: rows[name].reshape(-1) != 0 for name in FLAGS if name in rows}
    if FIRST in flags and flags[FIRST][1:].any():
        raise FormatError(f"{FIRST!r} is set in row {1 + int(flags[FIRST][1:].argmax())}, too")
    if LAST in flags and flags[LAST][:-1].any():
        raise FormatError(f"{LAST!r} is set in row {int(flags[LAST].argmax())} of {count}")
    terminated = flags.get(TERMINAL)
    if terminated is None and DISCOUNT in rows:
        terminated = rows[DISCOUNT] == 0
    odd = any(np.any(rows[name][0] != 0) for name in (ACTION, REWARDS))
    steps = {leaf_of(ACTION): rows[ACTION][1:], REWARD: rows[REWARDS][1:].reshape(-1, 1)}
    if DISCOUNT in rows:
        steps[leaf_of(DISCOUNT)] = rows[DISCOUNT][1:].reshape(-1, 1)
    seen = {k: v for k, v in rows.items() if k not in {ACTION, REWARDS, DISCOUNT, *FLAGS}}
    return assemble(
        np.array([count - 1]),
        steps,
        {leaf_of(name): column for name, column in seen.items()},
        terminated=None if terminated is None else terminated[1:],
        episodes={("file",): np.array([file], object)},
        notes=(count_episodes(1, ODD_FIRST_ROW),) if odd else (),
    )
