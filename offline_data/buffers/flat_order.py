"""Order of the rows of TED in its flat form, and the names that both directions need."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from offline_data.episodes.fields import join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeAlias

    from torch import Tensor

    from offline_data.buffers.storages.columns import Leaves
    from offline_data.episodes import Key

    NestedKey: TypeAlias = str | tuple[str, ...]


@dataclass(frozen=True)
class Order:
    """Which row of TED `[T, *B]` each flat row is: column by column, each from its oldest row on.

    ```
    full ring of 4, shift 2     0   1   2   3       rows in time: 2 3 0 1; an end at 3 by its flag,
    flat row                    2   3   0   1       and at 1, the newest
    ```
    """

    shape: tuple[int, ...]
    """`[T, *B]`."""
    shift: int
    """Index along time at which the next row would be written."""
    is_full: bool
    """Whether the oldest row is `shift`; else it is 0, and nothing is behind `shift`."""

    def __post_init__(self) -> None:
        if not 0 <= self.shift <= self.shape[0]:
            raise UsageError(f"shift is {self.shift}; expected 0 to {self.shape[0]}, the steps")

    @property
    def columns(self) -> int:
        """Number of columns, the product of `B`."""
        return torch.Size(self.shape[1:]).numel()

    @cached_property
    def rows(self) -> Tensor:
        """Row of TED, its batch dimensions flattened, of each flat row, int64 `[N]`."""
        time = torch.arange(self.shape[0])
        if self.is_full:
            time = (time + self.shift) % self.shape[0]
        return (time * self.columns + torch.arange(self.columns)[:, None]).reshape(-1)

    @cached_property
    def back(self) -> Tensor:
        """Flat row of each row of TED, int64 `[N]`."""
        return torch.argsort(self.rows)

    @cached_property
    def written(self) -> Tensor:
        """Tell flat rows from those behind the cursor of a ring that is not full, bool `[N]`."""
        count = self.shape[0] if self.is_full else (self.shift or self.shape[0])
        return (torch.arange(self.shape[0]) < count).repeat(self.columns)

    def ends(self, done: Tensor) -> Tensor:
        """Mark ends, bool `[N]`: where `done` `[N]` is, and at the newest row of each column."""
        ends = done.reshape(self.columns, self.shape[0]).clone()
        ends[:, -1 if self.is_full else self.shift - 1] = True
        return ends.reshape(-1)


def positions(ends: Tensor) -> Tensor:
    """Return where the observation before each step stands: one row further after each end.

    Example:
        >>> positions(torch.tensor([False, True, False])).tolist()
        [0, 1, 3]
    """
    return torch.arange(len(ends)) + ends.cumsum(0) - ends.to(torch.int64)


def flags(leaves: Leaves, key: Key) -> Tensor:
    """Return a flag of all rows, bool `[N]`; one of several parts is set where one part is."""
    if key not in leaves:
        raise UsageError(f"There is no leaf {join_key(key)}, which says where trajectories end")
    return leaves[key].unsqueeze(-1).flatten(1).any(1)


def path_of(key: NestedKey) -> Key:
    """Return a key of tensordict as a tuple, its parts as they are."""
    return (key,) if isinstance(key, str) else tuple(key)


class Keys:
    """The names that both directions are told; see `TED2Flat`."""

    def __init__(
        self,
        done_key: NestedKey,
        shift_key: NestedKey = "shift",
        is_full_key: NestedKey = "is_full",
        done_keys: Iterable[NestedKey] = ("done", "truncated", "terminated"),
        reward_keys: Iterable[NestedKey] = ("reward",),
    ) -> None:
        self.done_key = path_of(done_key)
        self.shift_key = shift_key
        self.is_full_key = is_full_key
        self.done_keys = {path_of(key) for key in done_keys}
        self.reward_keys = {path_of(key) for key in reward_keys}

    @property
    def moved(self) -> set[Key]:
        """Leaves that stand under `next` in TED, and at the root of the flat form."""
        return self.done_keys | self.reward_keys
