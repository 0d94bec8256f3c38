"""Whether the observations of a LIBERO file are those before the actions of their rows, or after.

```
row of the file           0     1     2     3
raw           obs         s1    s2    s3    s4      recorded after the step
              actions     a0    a1    a2    a3      a1 leads from s1 to s2
regenerated   obs         s0    s1    s2    s3      recorded before the step, by OpenVLA's script and others
```

Both have the same names and shapes. What tells them apart is that a movement depends on no later action.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from offline_data.formats.options import Alignment

_FEWEST = 60
"""Movements that a decision needs: with fewer, chance explains much."""
_CLEAR, _CHANCE = 0.15, 0.05
"""Share of the unexplained variance that an action explains if it moves the arm, and if it does not.
In a simulated arm under LIBERO's controller: 0.23 to 0.99, and 0.00 to 0.03."""


def find_alignment(
    demos: Iterable[tuple[NDArray[np.generic], NDArray[np.generic]]],
) -> Alignment | None:
    """Return the alignment of positions of the arm and actions; None: it cannot be determined.

    An arm follows slowly: a movement correlates as well with the previous action as with that which
    causes it. So each movement `positions[t+1] - positions[t]` is explained by the two movements and
    actions before, then by `actions[t]`, too, then by `actions[t+1]`, too; what the last one adds
    decides.

    Args:
        demos: Positions `[T, 3]` and actions `[T, 3 or more]` of some demonstrations, of which the
            first three elements move along the same axes.
    """
    rows = []
    for positions, actions in demos:
        moves = np.diff(positions.astype(np.float64), axis=0)
        acted = actions.astype(np.float64)[:, :3]
        if len(moves) > 3:
            columns = (moves[2:], moves[1:-1], moves[:-2], acted[:-3], acted[1:-2])
            rows.append(np.stack([*columns, acted[2:-1], acted[3:]], axis=-1).reshape(-1, 7))
    table = np.concatenate(rows) if rows else np.empty((0, 7))
    if len(table) < _FEWEST or not np.isfinite(table).all():
        return None
    moved = table[:, 0]
    rounding = 1e-9 * float(((moved - moved.mean()) ** 2).sum())

    def squared_error(count: int) -> float:
        causes = np.column_stack([table[:, 1:count], np.ones(len(table))])
        found = causes @ np.linalg.lstsq(causes, moved, rcond=None)[0]
        return float(((moved - found) ** 2).sum()) + rounding

    before, with_own, with_next = squared_error(5), squared_error(6), squared_error(7)
    if with_next < (1 - _CLEAR) * with_own:
        return "raw"
    if with_next > (1 - _CHANCE) * with_own and with_own < (1 - _CLEAR) * before:
        return "regenerated"
    return None
