"""Which rows of a storage that grows follow each other, from what was written where."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from offline_data.buffers.samplers.base import Runs
from offline_data.episodes.fields import DONE, TERMINATED, TRUNCATED, Key, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from offline_data.buffers.samplers.base import Boundaries

TRAJECTORIES: tuple[Key, ...] = (("collector", "traj_ids"), ("traj_ids",), ("episode",))
"""Leaves that number trajectories, the first that is there counts: TorchRL's, and a dataset's."""


class Marks(NamedTuple):
    """Marks of rows for the trajectories that they are in."""

    ends: Tensor
    """Whether a trajectory ends with the row, bool `[B]`."""
    trajectory: Tensor | None
    """Number of the trajectory, int64 `[B]`, where the rows have one."""
    place: Tensor | None = None
    """Origin of the rows, see `place_of`, int64 `[B, 2]`, if known."""


def place_of(data: Any, count: int) -> Tensor | None:
    """Return the row that each of `count` rows was, and in which buffer, where batches say so.

    That is `dataset_index` or `index`, which every batch of this package and of TorchRL has, and
    `source`, which batches of mixtures have. Rows that were drawn at random follow each other here
    no more than they did there.

    Returns:
        int64 `[count, 2]`; None where the rows are no batch.
    """
    get = getattr(data, "get", None)
    if get is None:
        return None
    index = _whole_numbers(get("dataset_index", None), count)
    index = _whole_numbers(get("index", None), count) if index is None else index
    if index is None:
        return None
    source = _whole_numbers(get("source", None), count)
    return torch.stack([index, torch.zeros_like(index) if source is None else source], 1)


def _whole_numbers(leaf: Any, count: int) -> Tensor | None:
    if not isinstance(leaf, torch.Tensor) or leaf.numel() != count or leaf.dtype not in _INTEGERS:
        return None
    return leaf.detach().reshape(count).to("cpu", torch.int64)


_INTEGERS = (torch.int64, torch.int32)


def marks_of(leaves: Any, count: int) -> Marks:
    """Read the marks of `count` rows.

    A trajectory ends where `("next", "done")` is set, or where that leaf is missing,
    `("next", "terminated")` or `("next", "truncated")`; a flag of several parts is set where one
    part is. Rows that have neither flags nor a number of their trajectory are each one of their
    own.

    Args:
        leaves: Tensors `[count, …]`, by `get(key, None)`: a dict or a TensorDict.
        count: Number of rows, at least one.
    """
    done = leaves.get(DONE, None)
    flags = (
        [done] if done is not None else [leaves.get(key, None) for key in (TERMINATED, TRUNCATED)]
    )
    there = [_of_rows(flag, count) for flag in flags if flag is not None]
    numbers = next(
        (ids for key in TRAJECTORIES if (ids := leaves.get(key, None)) is not None), None
    )
    if not there:
        ends = torch.full((count,), numbers is None)
    else:
        ends = there[0] if len(there) == 1 else there[0] | there[1]
    if numbers is not None:
        numbers = numbers.detach().reshape(count, -1)[:, 0].to("cpu", torch.int64)
    return Marks(ends, numbers)


def _runs_from(first: Tensor) -> Runs:
    """Cut rows into runs where `first`, bool `[rows]`, is set, and at row 0."""
    first[:1] = True
    starts = first.nonzero()[:, 0]
    return Runs(starts, torch.diff(starts, append=torch.tensor([len(first)])))


def _no_leaf(what: str, *keys: Key) -> UsageError:
    return UsageError(
        f"The sampler looks for {what} in {' or '.join(map(join_key, keys))}, which the rows "
        "do not have",
        hint="traj_key, end_key and end_keys of the sampler name leaves of the storage",
    )


def alone(count: int) -> Marks:
    """Return the marks of rows that are each a trajectory of their own."""
    return Marks(torch.ones(count, dtype=torch.bool), None)


def _of_rows(flag: Tensor, count: int) -> Tensor:
    """Reduce a flag to one bool a row, `[count]` on the CPU."""
    parts = flag.detach().reshape(count, max(flag[:1].numel(), 1))
    return (parts[:, 0] if parts.shape[1] == 1 else parts.any(1)).to("cpu", torch.bool)


class Links:
    """For every row, whether it continues the row before it.

    ```
    rows of a ring of 6     0   1   2 | 3   4   5       | cursor: 3 is the oldest row
    written as number       7   8   9   4   5   6
    continues               –   ✓   ✓   ✗   ✓   ✓       row 0 continues row 5, and begins a run
    ```

    A row continues the one before it if it was written right after it, no trajectory ended there,
    the trajectory's number is the same, and it did so where it was taken from: `index` goes up by
    one. Every write costs `O(rows written)`; the runs are
    `O(rows)` once after a write.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self._place: Tensor | None = None
        self._after = torch.zeros(0, dtype=torch.bool)
        self._ends = torch.zeros(0, dtype=torch.bool)
        self._trajectory = torch.zeros(0, dtype=torch.int64)
        self._numbered = False
        self._last = -1
        self._runs: dict[Boundaries | None, Runs] = {}

    def wrote(self, rows: slice | Tensor, marks: Marks, *, linked: bool) -> None:
        """Take note of rows that were written, in the order in which they were.

        Args:
            rows: Their numbers: a slice of at least one, or int64 `[B]`, no two alike.
            marks: Their marks.
            linked: Whether they follow each other, and the first what was written before.
        """
        if isinstance(rows, slice):
            self._wrote_run(rows.start, rows.stop, linked=linked)
        else:
            self._wrote_rows(rows, linked=linked)
        if marks.place is not None or self._place is not None:
            self._after[rows] &= self._follow(marks.place, len(marks.ends))
        self.changed(rows, marks)

    def _follow(self, place: Tensor | None, count: int) -> Tensor:
        """Tell of rows that are written whether they followed each other where they were taken from."""
        before, self._place = self._place, None if place is None else place[-1]
        if place is None:  # behind rows that said where they are from
            return torch.arange(count) > 0
        first = torch.full((1, 2), -1) if before is None else before[None]
        return (place - torch.cat([first, place[:-1]]) == torch.tensor([1, 0])).all(1)

    def changed(self, rows: slice | Tensor, marks: Marks) -> None:
        """Take note of new values in rows that stay where they were in time."""
        self._ends[rows] = marks.ends
        if marks.trajectory is not None:
            self._numbered = True
            self._trajectory[rows] = marks.trajectory
        elif self._numbered:
            self._trajectory[rows] = -1
        self._runs = {}

    def _wrote_run(self, start: int, stop: int, *, linked: bool) -> None:
        self._reserve(stop + 1)
        self._after[start:stop] = linked
        self._after[start] = linked and start == self._last + 1
        self._after[stop] = False
        self._last = stop - 1 if linked else -1

    def _wrote_rows(self, rows: Tensor, *, linked: bool) -> None:
        self._reserve(int(rows.max()) + 2)
        last = -1 if bool((rows == self._last).any()) else self._last  # written over: gone
        before = torch.cat([torch.tensor([last]), rows[:-1]])
        self._after[rows + 1] = False
        self._after[rows] = (rows == before + 1) & linked
        self._last = int(rows[-1]) if linked else -1

    def runs(self, count: int) -> Runs:
        """Return the runs of rows `[0, count)`; the same object until the next write."""
        if None not in self._runs:
            first = ~self._after[:count]
            first[1:] |= self._ends[: count - 1]
            if self._numbered:
                first[1:] |= self._trajectory[1:count] != self._trajectory[: count - 1]
            self._runs[None] = _runs_from(first)
        return self._runs[None]

    def runs_by(
        self, boundaries: Boundaries, count: int, leaf: Callable[[Key], Tensor | None]
    ) -> Runs:
        """Return the runs of rows `[0, count)` whose ends other leaves tell; see `runs`.

        Args:
            boundaries: Which leaves.
            count: Rows.
            leaf: Gives a leaf of all rows, `[count, …]`, or None where they do not have it.

        Raises:
            UsageError: There is no such leaf.
        """
        if boundaries not in self._runs:
            first = ~self._after[:count]
            flags = [flag for key in boundaries.ends if (flag := leaf(key)) is not None]
            if boundaries.ends and not flags:
                raise _no_leaf("ends of trajectories", *boundaries.ends)
            for flag in flags:
                first[1:] |= _of_rows(flag, count)[:-1]
            if boundaries.trajectory is not None:
                number = leaf(boundaries.trajectory)
                if number is None:
                    raise _no_leaf("numbers of trajectories", boundaries.trajectory)
                number = number.detach().reshape(count, max(number[:1].numel(), 1))
                first[1:] |= (number[1:] != number[:-1]).any(1).cpu()
            self._runs[boundaries] = _runs_from(first)
        return self._runs[boundaries]

    def state_dict(self, count: int) -> dict[str, Any]:
        """Return what is known of rows `[0, count)`."""
        return {
            "after": self._after[:count].clone(),
            "ends": self._ends[:count].clone(),
            "trajectory": self._trajectory[:count].clone() if self._numbered else None,
            "last": self._last,
            "place": self._place,
        }

    def load_state_dict(self, state: dict[str, Any], count: int) -> None:
        """Take over what `state_dict` returned; raises `UsageError` where it is of other rows."""
        if len(state["after"]) != count or len(state["ends"]) != count:
            raise UsageError(f"The state tells of {len(state['after'])} rows; expected {count}")
        self.clear()
        self._reserve(count)
        self._after[:count], self._ends[:count] = state["after"], state["ends"]
        self._last, self._place = state["last"], state.get("place")
        if state["trajectory"] is not None:
            self._numbered = True
            self._trajectory[:count] = state["trajectory"]

    def _reserve(self, count: int) -> None:
        missing = count - len(self._after)
        if missing > 0:
            room = max(missing, len(self._after), 1024)  # doubling: O(1) a row in the long run
            self._after = torch.cat([self._after, torch.zeros(room, dtype=torch.bool)])
            self._ends = torch.cat([self._ends, torch.zeros(room, dtype=torch.bool)])
            self._trajectory = torch.cat([self._trajectory, torch.full((room,), -1)])
