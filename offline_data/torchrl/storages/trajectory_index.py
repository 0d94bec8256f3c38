"""Runs of rows in a growing storage: one bit a row, kept as rows are written, and the features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import DONE, TERMINATED, TRUNCATED, Key, join_key
from offline_data.rows import fields
from offline_data.rows.samplers.base import Boundaries, EpisodeIndex, RingOrder

TRAJECTORIES: tuple[Key, ...] = (("collector", "traj_ids"), ("traj_ids",), ("episode",))
"""Features that number trajectories, in order of precedence: TorchRL's, and a dataset's."""

Leaf = Callable[[Key], "Tensor | None"]
"""Returns a feature of all rows, `[count, …]`, or None if there is none."""


def boundaries_in(leaf: Leaf) -> Boundaries:
    """Return the features by which trajectories are separated, of those that rows have.

    A trajectory ends where `("next", "done")`, or if that feature is missing, `("next",
    "terminated")` or `("next", "truncated")`, is True, and where its number changes.
    """
    flags = (DONE,) if leaf(DONE) is not None else (TERMINATED, TRUNCATED)
    number = next((key for key in TRAJECTORIES if leaf(key) is not None), None)
    return Boundaries(number, tuple(key for key in flags if leaf(key) is not None))


def origin_of(data: Any, count: int) -> Tensor | None:
    """Return the row and the buffer that each of `count` rows was sampled from, int64 `[count, 2]`.

    Batches of this package and of TorchRL have `dataset_index` or `index`, and batches of mixtures
    `source`. None: the rows are not a batch.
    """
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


@pickled_by_name
class TrajectoryIndex:
    """Stores, for every step, whether it was written directly after the previous one.

    ```
    rows of a ring of 6     0   1   2 | 3   4   5       | cursor: 3 is the oldest row
    written as number       7   8   9   4   5   6
    after                   ✓   ✓   ✓   ✗   ✓   ✓       row 0 was written after row 5
    ```

    Randomly drawn rows are linked only if they were adjacent in their source (`index` increases by
    one). The ends of trajectories are read from the features. A write costs `O(rows written)`;
    computing runs after it costs `O(rows)` once.
    """

    width = 1  # number of rows per step, one per environment; each column has separate trajectories

    def __init__(self, steps: int) -> None:
        self.steps = steps  # capacity in steps: step 0 may continue the last one
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self._origin: Tensor | None = None  # of the row that was written last
        self._after = torch.zeros(0, dtype=torch.bool)
        self._last = -1
        self._runs: dict[Boundaries | None, EpisodeIndex] = {}

    def wrote(self, rows: slice | Tensor, origin: Tensor | None, *, linked: bool) -> None:
        """Record written steps: a slice of at least one, or int64 `[B]` without repeats.

        `linked`: whether they are consecutive and continue the last write; `origin`: see `origin_of`.
        """
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
        before, origin = self._origin, origin if self.width == 1 else None
        self._origin = None if origin is None else origin[-1]
        if origin is not None:
            first = torch.full((1, 2), -1) if before is None else before[None]
            steps = origin - torch.cat([first, origin[:-1]])
            self._after[rows] &= (steps == torch.tensor([1, 0])).all(1)
        elif before is not None:  # rows without a source do not follow a batch
            self._after[rows.start if isinstance(rows, slice) else rows[0]] = False
        self.changed()

    def changed(self) -> None:
        """Note that the features of rows have changed."""
        self._runs = {}

    def runs(self, count: int, leaf: Leaf, boundaries: Boundaries | None = None) -> EpisodeIndex:
        """Return the runs of rows `[0, count)`; the same object until the next write.

        `boundaries` names the features that end runs; None: see `boundaries_in`. Raises
        `UsageError` if the rows lack them.
        """
        if boundaries in self._runs:
            return self._runs[boundaries]
        width, steps = self.width, count // self.width
        first = ~self._after[:steps].repeat_interleave(width)
        flags, number = cuts(count, leaf, boundaries or boundaries_in(leaf))
        if number is None and not flags:
            if boundaries is not None:
                raise _missing(boundaries)
            first[:] = True  # nothing says which rows belong together
        for flag in flags:
            first |= flag.roll(width)
        if number is not None:
            first |= _any(number != number.roll(width, 0)).cpu()
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
        after = self._after[: count // self.width].clone()
        return {"after": after, "last": self._last, "place": self._origin, "steps": self.steps}

    def check_state(self, state: Any, steps: int) -> None:
        """Raise `IntegrityError` unless a state is of a number of steps."""
        expected = {
            "after": fields.tensor(torch.bool, steps),
            "last": fields.integer(-1, steps - 1),
            "place": fields.optional(fields.or_none(fields.tensor(torch.int64, 2))),
            "steps": fields.optional(fields.COUNT),
        }
        fields.check(state, "links", expected)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of `state_dict` that `check_state` has passed."""
        steps = len(state["after"])
        self.clear()
        self._reserve(steps)
        self._after[:steps] = state["after"]
        self._after[:1] &= state.get("steps") == self.steps  # in older states it means nothing
        self._last, origin = state["last"], state.get("place")
        self._origin = None if origin is None else origin.clone()

    @property
    def next_step(self) -> int:
        """The step after the last write; 0 if single rows were written last."""
        step: int = self._next(self._last)
        return step

    def _next(self, step: Any) -> Any:
        return (step + 1) % self.steps

    def _reserve(self, count: int) -> None:
        missing = count - len(self._after)
        if missing > 0:
            more = max(missing, len(self._after), 1024)  # doubling: amortized O(1) per row
            self._after = torch.cat([self._after, torch.zeros(more, dtype=torch.bool)])


def rows_of_steps(steps: slice | Tensor, width: int) -> slice | Tensor:
    """Return the rows of steps with `width` rows each, as a slice or a tensor like `steps`."""
    if width == 1:
        return steps
    if isinstance(steps, slice):
        return slice(steps.start * width, steps.stop * width)
    return (steps[:, None] * width + torch.arange(width)).reshape(-1)


def cuts(count: int, leaf: Leaf, by: Boundaries) -> tuple[list[Tensor], Tensor | None]:
    """Return the flags of ends of all rows, bool `[count]` on the CPU, and the numbers `[count, n]`."""
    flags = [flag for key in by.ends if (flag := leaf(key)) is not None]
    number = None if by.trajectory is None else leaf(by.trajectory)
    ends = [_any(_elements(flag, count)).to("cpu", torch.bool) for flag in flags]
    return ends, None if number is None else _elements(number, count)


def _elements(leaf: Tensor, count: int) -> Tensor:
    return leaf.detach().reshape(count, leaf.numel() // max(count, 1))


def _any(elements: Tensor) -> Tensor:
    return elements[:, 0] if elements.shape[1] == 1 else elements.any(1)


def _missing(boundaries: Boundaries) -> UsageError:
    keys = [boundaries.trajectory, *boundaries.ends]
    return UsageError(
        f"The sampler needs trajectories in "
        f"{' or '.join(join_key(key) for key in keys if key is not None)}, which the rows "
        "do not have",
        hint="traj_key, end_key and end_keys of the sampler set the features",
    )
