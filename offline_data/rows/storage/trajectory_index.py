"""Runs of rows in a growing storage, tracked as rows are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import DONE, TERMINATED, TRUNCATED, Key, join_key
from offline_data.rows.fields import StateFields
from offline_data.rows.samplers.base import Boundaries, EpisodeIndex, RingOrder

TRAJECTORIES: tuple[Key, ...] = (("collector", "traj_ids"), ("traj_ids",), ("episode",))
"""Leaves that number trajectories, in order of precedence: TorchRL's, and a dataset's."""

MARKS: tuple[Key, ...] = (DONE, TERMINATED, TRUNCATED, *TRAJECTORIES)
"""Leaves that delimit trajectories."""


class _StepOrder(NamedTuple):
    """Any order of rows; see `RowOrder`."""

    numbers: Tensor
    places: Tensor

    def rows(self, positions: Tensor) -> Tensor:
        return self.numbers[positions]

    def positions(self, rows: Tensor) -> Tensor:
        return self.places[rows]

    def by_row(self, values: Tensor) -> Tensor:
        return values[self.places]


class Marks(NamedTuple):
    """Trajectory information of rows.

    Whether a trajectory ends with the row, bool `[B]`; its number, int64 `[B]`; and, if the rows are
    a batch, the row and buffer that each was sampled from, int64 `[B, 2]`.
    """

    ends: Tensor
    trajectory: Tensor | None
    origin: Tensor | None


def marks_of(leaves: Any, count: int, data: Any) -> Marks:
    """Return the marks of `count` rows, at least one.

    A trajectory ends where `("next", "done")`, or if that leaf is missing, `("next", "terminated")`
    or `("next", "truncated")`, is True; a flag of several elements is True if any is. Rows with
    neither flags nor a trajectory number are separate trajectories. Randomly drawn rows are linked
    only if they were adjacent in their source: batches of this package and of TorchRL have
    `dataset_index` or `index`, and batches of mixtures `source`.

    `leaves` are tensors `[count, …]`, empty for rows that are trajectories; `data` the rows as
    written.
    """
    done = leaves.get(DONE, None)
    flags = [leaves.get(key, None) for key in (TERMINATED, TRUNCATED)] if done is None else [done]
    known = [_of_rows(flag, count) for flag in flags if flag is not None]
    numbers = next(
        (ids for key in TRAJECTORIES if (ids := leaves.get(key, None)) is not None), None
    )
    ends = torch.stack(known).any(0) if known else torch.full((count,), numbers is None)
    if numbers is not None:
        numbers = _elements(numbers, count)[:, 0].to("cpu", torch.int64)
    return Marks(ends, numbers, _origin(data, count))


def _origin(data: Any, count: int) -> Tensor | None:
    """Return source row and buffer of each row, int64 `[count, 2]`; None: unknown."""
    found: dict[str, Tensor] = {}
    for name in ("dataset_index", "index", "source"):
        leaf = data.get(name, None) if hasattr(data, "get") else None
        if (
            isinstance(leaf, torch.Tensor)
            and leaf.numel() == count
            and leaf.dtype in (torch.int64, torch.int32)
        ):
            found[name] = leaf.detach().reshape(count).to("cpu", torch.int64)
    index = found.get("dataset_index", found.get("index"))
    if index is None:
        return None
    return torch.stack([index, found.get("source", torch.zeros_like(index))], 1)


def _of_rows(flag: Tensor, count: int) -> Tensor:
    """Return a flag reduced to one bool per row, `[count]` on the CPU."""
    return _elements(flag, count).any(1).to("cpu", torch.bool)


def _elements(leaf: Tensor, count: int) -> Tensor:
    return leaf.detach().reshape(count, leaf.numel() // max(count, 1))


@pickled_by_name
class TrajectoryIndex:
    """Stores, for every row, whether it continues the previous row.

    ```
    rows of a ring of 6     0   1   2 | 3   4   5       | cursor: 3 is the oldest row
    written as number       7   8   9   4   5   6
    continues               ✓   ✓   ✓   ✗   ✓   ✓       row 0 continues row 5
    ```

    It does if it was written directly after it, no trajectory ended there, the trajectory's number
    is the same, and the rows were adjacent in their source (`index` increases by one). A write
    costs `O(rows written)`; computing runs after it costs `O(rows)` once.
    """

    width = 1
    """Number of rows per step, one per environment; each column has separate trajectories."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        """Capacity in steps: step 0 may continue the last one."""
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self._origin: Tensor | None = None
        self._after = torch.zeros(0, dtype=torch.bool)
        self._ends = torch.zeros(0, dtype=torch.bool)
        self._trajectory = torch.zeros(0, dtype=torch.int64)
        self._numbered = False
        self._last = -1
        self._runs: dict[Boundaries | None, EpisodeIndex] = {}

    def wrote(self, rows: slice | Tensor, marks: Marks, *, linked: bool) -> None:
        """Record written steps: a slice of at least one, or int64 `[B]` without repeats.

        `linked`: whether they are consecutive and continue the last write; `marks`: those of all
        their rows, `[B * width]`.
        """
        written = rows_of_steps(rows, self.width)
        if isinstance(rows, slice):
            self._reserve(rows.stop + 1)
            known = self._last >= 0 and not rows.start <= self._last < rows.stop  # not overwritten
            self._after[rows] = linked
            self._after[rows.start] = linked and known and rows.start == self._next(self._last)
            self._after[self._next(rows.stop - 1)] = False
            self._last = rows.stop - 1 if linked else -1
        else:
            self._reserve(int(rows.max()) + 2)
            known = self._last >= 0 and not bool((rows == self._last).any())
            follows = rows == self._next(torch.cat([torch.tensor([self._last]), rows[:-1]]))
            follows[0] &= known
            self._after[self._next(rows)] = False
            self._after[rows] = follows & linked
            self._last = int(rows[-1]) if linked else -1
        before, origin = self._origin, marks.origin if self.width == 1 else None
        self._origin = None if origin is None else origin[-1]
        if origin is not None:
            first = torch.full((1, 2), -1) if before is None else before[None]
            steps = origin - torch.cat([first, origin[:-1]])
            self._after[rows] &= (steps == torch.tensor([1, 0])).all(1)
        elif before is not None:
            self._after[rows] &= torch.arange(len(marks.ends)) > 0
        self.record_changes(written, marks)

    def record_changes(self, rows: slice | Tensor, marks: Marks) -> None:
        """Record new values of rows whose order in time is unchanged."""
        self._ends[rows] = marks.ends
        if marks.trajectory is not None:
            self._numbered = True
            self._trajectory[rows] = marks.trajectory
        elif self._numbered:
            self._trajectory[rows] = -1
        self._runs = {}

    def runs(
        self,
        count: int,
        leaf: Callable[[Key], Tensor | None],
        boundaries: Boundaries | None = None,
    ) -> EpisodeIndex:
        """Return the runs of rows `[0, count)`; the same object until the next write.

        `boundaries` may name leaves that end runs instead of the marks; `leaf` returns such a leaf
        of all rows, `[count, …]`, or None. Raises `UsageError` if the rows lack them.
        """
        if boundaries in self._runs:
            return self._runs[boundaries]
        if boundaries is not None and boundaries.step is not None:
            self._runs[boundaries] = _by_step(count, leaf, boundaries)
            return self._runs[boundaries]
        width, steps = self.width, count // self.width
        first = ~self._after[:steps].repeat_interleave(width)
        if boundaries is None:
            first |= self._ends[:count].roll(width)
            if self._numbered:
                first |= self._trajectory[:count] != self._trajectory[:count].roll(width)
        else:
            flags = [flag for key in boundaries.ends if (flag := leaf(key)) is not None]
            number = None if boundaries.trajectory is None else leaf(boundaries.trajectory)
            if number is None and not flags:
                raise _missing(boundaries)
            for flag in flags:
                first |= _of_rows(flag, count).roll(width)
            if number is not None:
                number = _elements(number, count)
                first |= (number != number.roll(width, 0)).any(1).cpu()
        begin = 0
        if steps == self.steps and not first[:width].all():  # runs continue over the end
            begin = int(self._after[:steps].int().argmin())
        order = RingOrder(steps, begin, width) if begin or width > 1 else None
        if order is not None:  # in each column, rows are consecutive in time
            first = first.reshape(steps, width).roll(-begin, 0).T.reshape(-1)
        first[:: max(steps, 1)] = True
        starts = first.nonzero()[:, 0]
        lengths = torch.diff(starts, append=torch.tensor([count]))
        self._runs[boundaries] = EpisodeIndex(starts, lengths, order=order)
        return self._runs[boundaries]

    def state_dict(self, count: int) -> dict[str, Any]:
        """Return the state of rows `[0, count)`."""
        return {
            "after": self._after[: count // self.width].clone(),
            "ends": self._ends[:count].clone(),
            "trajectory": self._trajectory[:count].clone() if self._numbered else None,
            "last": self._last,
            "place": self._origin,
            "steps": self.steps,
        }

    def check_state(self, state: Any, count: int, width: int) -> None:
        """Raise `IntegrityError` unless a state is of `count` rows, `width` a step."""
        fields = StateFields(state, "links")
        steps = count // width
        fields.tensor("after", torch.bool, (steps,))
        fields.tensor("ends", torch.bool, (count,))
        if fields.get("trajectory") is not None:
            fields.tensor("trajectory", torch.int64, (count,))
        fields.integer("last", steps - 1, low=-1)
        if state.get("place") is not None:
            fields.tensor("place", torch.int64, (2,))
        if "steps" in state:
            fields.integer("steps")

    def load_state_dict(self, state: dict[str, Any], count: int) -> None:
        """Restore a state of `state_dict` that `check_state` has passed."""
        steps = count // self.width
        self.clear()
        self._reserve(steps)
        self._after[:steps], self._ends[:count] = state["after"], state["ends"]
        self._after[:1] &= state.get("steps") == self.steps  # in older states it means nothing
        self._last, origin = state["last"], state.get("place")
        self._origin = None if origin is None else origin.clone()
        if state["trajectory"] is not None:
            self._numbered = True
            self._trajectory[:count] = state["trajectory"]

    @property
    def next_step(self) -> int:
        """The step after the last write; 0 if single rows were written last."""
        step: int = self._next(self._last)
        return step

    def _next(self, step: Any) -> Any:
        """Return the step after `step`, an int or int64 of any shape."""
        return (step + 1) % self.steps

    def _reserve(self, count: int) -> None:
        missing = count - len(self._after)
        if missing > 0:
            more = max(missing, len(self._after), 1024)  # doubling: amortized O(1) per row
            rows = more * self.width
            self._after = torch.cat([self._after, torch.zeros(more, dtype=torch.bool)])
            self._ends = torch.cat([self._ends, torch.zeros(rows, dtype=torch.bool)])
            self._trajectory = torch.cat([self._trajectory, torch.full((rows,), -1)])


def rows_of_steps(steps: slice | Tensor, width: int) -> slice | Tensor:
    """Return the rows of steps with `width` rows each, as a slice or a tensor like `steps`."""
    if width == 1:
        return steps
    if isinstance(steps, slice):
        return slice(steps.start * width, steps.stop * width)
    return (steps[:, None] * width + torch.arange(width)).reshape(-1)


def _by_step(
    count: int, leaf: Callable[[Key], Tensor | None], boundaries: Boundaries
) -> EpisodeIndex:
    """Return the runs of rows stored in any order; a repeated step starts a new run."""
    keys = [key for key in (boundaries.trajectory, boundaries.step) if key is not None]
    found = [numbers for key in keys if (numbers := leaf(key)) is not None]
    if len(found) < 2:
        raise _missing(boundaries)
    number, step = (_elements(numbers, count)[:, 0].cpu().long() for numbers in found)
    order = torch.from_numpy(np.lexsort((step.numpy(), number.numpy())))
    first = torch.ones(count, dtype=torch.bool)
    first[1:] = (number[order].diff() != 0) | (step[order].diff() != 1)
    starts = first.nonzero()[:, 0]
    lengths = torch.diff(starts, append=torch.tensor([count]))
    return EpisodeIndex(starts, lengths, order=_StepOrder(order, torch.argsort(order)))


def _missing(boundaries: Boundaries) -> UsageError:
    keys = [boundaries.trajectory, *boundaries.ends, boundaries.step]
    return UsageError(
        f"The sampler needs trajectories in "
        f"{' or '.join(join_key(key) for key in keys if key is not None)}, which the rows "
        "do not have",
        hint="traj_key, end_key and end_keys of the sampler set the leaves",
    )
