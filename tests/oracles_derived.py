"""What derived leaves must be, row by row in plain numpy: nothing here is shared with the library.

Arrays have a row for each transition, `[N, …]`. `bounds` lists the runs of rows that follow each
other as `(start, stop)`, every row in one of them: episodes, or the pieces of them that are there.
`known` says of each run whether the observation after its last row is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    Bounds = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class NSteps:
    """What `n_step` must give for all rows."""

    reward: NDArray[np.float64]
    """Discounted sums `[N]`."""
    steps: NDArray[np.int64]
    """Steps taken `[N]`."""
    end: NDArray[np.int64]
    """The row `[N]` whose next observation and flags a transition gets."""
    gamma: NDArray[np.float64]
    """Discount of what comes after, `[N]`."""


def run_of(bounds: Bounds, row: int) -> tuple[int, int, int]:
    """Return number, start and stop of the run of a row."""
    return next((r, a, b) for r, (a, b) in enumerate(bounds) if a <= row < b)


def n_step(
    rewards: NDArray[Any],
    terminated: NDArray[Any],
    truncated: NDArray[Any],
    bounds: Bounds,
    known: Sequence[bool],
    *,
    n: int,
    gamma: float,
) -> NSteps:
    """Add up rewards to the run's end, to a row with a flag, or over `n` steps.

    A last row whose next observation is neither known nor needed is left out, unless the transition
    is that row itself.
    """
    count = len(rewards)
    sums, steps, end = np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.int64)
    for row in range(count):
        run, _, stop = run_of(bounds, row)
        last = stop - 1
        if not known[run] and not bool(np.any(terminated[last])):
            last = max(last - 1, row)
        at = row
        while True:
            sums[row] += gamma ** (at - row) * float(rewards[at].reshape(-1)[0])
            over = bool(np.any(terminated[at])) or bool(np.any(truncated[at]))
            if over or at >= last or at - row + 1 == n:
                break
            at += 1
        steps[row], end[row] = at - row + 1, at
    return NSteps(sums, steps, end, gamma ** steps.astype(np.float64))


def frame_stack(
    frames: NDArray[Any], bounds: Bounds, *, k: int, pad: str = "repeat"
) -> NDArray[Any]:
    """Stack each row's `k` last frames, the oldest first, `[N, k, …]`."""
    out = np.zeros((len(frames), k, *frames.shape[1:]), frames.dtype)
    for row in range(len(frames)):
        _, start, _ = run_of(bounds, row)
        for place in range(k):
            at = row - (k - 1 - place)
            if at >= start:
                out[row, place] = frames[at]
            elif pad == "repeat":
                out[row, place] = frames[start]
    return out


def next_frame_stack(
    frames: NDArray[Any], after: NDArray[Any], bounds: Bounds, *, k: int, pad: str = "repeat"
) -> NDArray[Any]:
    """Stack the frames before each row's next observation, and it, `[N, k, …]`."""
    before = frame_stack(frames, bounds, k=k, pad=pad)
    return np.concatenate([before[:, 1:], after[:, None]], axis=1)


def action_chunk(
    actions: NDArray[Any], bounds: Bounds, *, k: int, pad: str = "repeat"
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the actions of `k` steps from each row on, `[N, k, …]`, and which there are."""
    out = np.zeros((len(actions), k, *actions.shape[1:]), actions.dtype)
    mask = np.zeros((len(actions), k), bool)
    for row in range(len(actions)):
        _, _, stop = run_of(bounds, row)
        for ahead in range(k):
            if row + ahead < stop:
                out[row, ahead], mask[row, ahead] = actions[row + ahead], True
            elif pad == "repeat":
                out[row, ahead] = actions[stop - 1]
    return out, mask


def return_to_go(rewards: NDArray[Any], bounds: Bounds, *, gamma: float) -> NDArray[np.float64]:
    """Add up discounted rewards from each row to the end of its run, in the rewards' shape."""
    out = np.zeros(rewards.shape, np.float64)
    for start, stop in bounds:
        total = np.zeros(rewards.shape[1:], np.float64)
        for row in range(stop - 1, start - 1, -1):
            total = rewards[row].astype(np.float64) + gamma * total
            out[row] = total
    return out


def goal_rows(
    law: str,
    row: int,
    bounds: Bounds,
    known: Sequence[bool],
    valid: Sequence[int] | NDArray[np.int64] = (),
) -> set[int]:
    """Return the rows after which the state may be the goal of `row`; empty: it keeps its goal.

    Args:
        law: `final`, `future`, `geometric`, `episode` or `random`.
        row: A transition.
        bounds: See above.
        known: See above; a terminated last row without an observation after it is not known.
        valid: The rows that samplers may draw, for `random`.
    """
    run, start, stop = run_of(bounds, row)
    last = stop - 1 if known[run] else stop - 2
    if row > last:
        return set()
    if law == "final":
        return {last}
    if law in {"future", "geometric"}:
        return set(range(row, last + 1))
    if law == "episode":
        return set(range(start, last + 1))
    if law == "random":
        return {int(one) for one in valid}
    raise ValueError(law)
