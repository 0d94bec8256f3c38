"""TED with each observation stored once: conversion to the flat form and back."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.episode import Key
from offline_data.episode.fields import join_key, next_of
from offline_data.rows.keys import NestedKey, path_of
from offline_data.torchrl.storages.leaves import Leaves, leaves_of

_SHAPE = "_storage_shape"


class _FlatOrder:
    """Maps flat rows to rows of TED `[T, *B]`: column by column, each from its oldest row on.

    `shift` is the time index of the next write; later rows are unwritten unless the ring is full.

    ```
    full ring of 4, shift 2     0   1   2   3       in time: 2 3 0 1; ends: 3 by its flag,
    flat row                    2   3   0   1       and 1, the newest row
    ```

    `rows` are the rows of TED, its batch dimensions flattened, of flat rows, `back` the inverse,
    int64 `[N]`, and `written` which flat rows were written, bool `[N]`.
    """

    def __init__(self, shape: tuple[int, ...], shift: int, is_full: bool) -> None:
        length, columns = shape[0], torch.Size(shape[1:]).numel()
        if not 0 <= shift <= length:
            raise UsageError(f"shift is {shift}; expected 0 to {length}, the steps")
        time = torch.arange(length)
        self.written = (time < (length if is_full else shift or length)).repeat(columns)
        if is_full:
            time = (time + shift) % length
        self.rows = (time * columns + torch.arange(columns)[:, None]).reshape(-1)
        self.back = torch.argsort(self.rows)
        self._newest = (columns, length), -1 if is_full else shift - 1

    def ends(self, done: Tensor) -> Tensor:
        """Return the ends, bool `[N]`: rows with `done` `[N]`, and the newest row of each column."""
        shape, newest = self._newest
        ends = done.reshape(shape).clone()
        ends[:, newest] = True
        return ends.reshape(-1)


@pickled_by_name
class _FlatKeys:
    """Keys used in both directions; see `TED2Flat`."""

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
    def moved_keys(self) -> set[Key]:
        return self.done_keys | self.reward_keys


class TED2Flat(_FlatKeys):
    """Stores a trajectory's observations once: `T + 1` rows of them for `T` steps.

    Equivalent to TorchRL's `TED2Flat`, also as a hook (`rb.register_save_hook(TED2Flat())`).
    Flags and rewards move from `next` to the root. Every other feature under `next` is merged into
    its root feature: a row of the root is the `next` of the previous row, except after an end,
    where `next` has its own row. Unlike TorchRL's, data that cannot be converted losslessly are
    refused: root flags that are set, a `next` that differs from the next row although no trajectory
    ends, features under `next` that the root lacks. A ring buffer whose cursor is at 0 works.

    Args:
        done_key: Feature that is True where a trajectory ends, `[*batch, 1]`.
        shift_key: Key of `shift`.
        is_full_key: Key of `is_full`.
        done_keys: Features under `next` that are flags; at the root they are False.
        reward_keys: Features under `next` that have no counterpart at the root.
        check: Whether to check that nothing would be lost.

    Attributes:
        shift: Time index at which the next row would be written; None: after the last row.
        is_full: Whether the data are a full ring buffer, whose oldest row is `shift`; None: no.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> after = {"observation": torch.tensor([2, 3]), "done": torch.tensor([[False], [True]])}
        >>> data = TensorDict({"observation": torch.tensor([1, 2]), "next": after}, [2])
        >>> TED2Flat()(data)["observation"]
        tensor([1, 2, 3])
    """

    def __init__(
        self,
        done_key: NestedKey = ("next", "done"),
        shift_key: NestedKey = "shift",
        is_full_key: NestedKey = "is_full",
        done_keys: Iterable[NestedKey] = ("done", "truncated", "terminated"),
        reward_keys: Iterable[NestedKey] = ("reward",),
        *,
        check: bool = True,
    ) -> None:
        super().__init__(done_key, shift_key, is_full_key, done_keys, reward_keys)
        self.check = check
        self.shift: int | None = None
        self.is_full: bool | None = None

    def __call__(self, data: TensorDict, path: str | os.PathLike[str] | None = None) -> TensorDict:
        """Return the flat form of TED `[T, *B]`, with batch size `[]`.

        It has steps `[N, …]` and merged features `[N + ends, …]`, column by column of `B`, and
        `shift_key`, `is_full_key` and the shape of the data; in memory, or in memory-mapped files
        in the folder `path`, one per feature.

        Raises:
            UsageError: Data would be lost, or a feature is not a tensor.
        """
        count, given = data.numel(), leaves_of(data, index=True)
        leaves = {key: leaf.reshape(count, *leaf.shape[data.ndim :]) for key, leaf in given.items()}
        shape, is_full = tuple(data.shape), bool(self.is_full)
        shift = shape[0] if self.shift is None else self.shift
        order = _FlatOrder(shape, shift, is_full)
        moved = {key[1:]: leaf for key, leaf in leaves.items() if key[0] == "next"}
        folded = [key for key in moved if key not in self.moved_keys]
        for key in (key for key in folded if key not in leaves):
            raise UsageError(
                f"The feature next/{join_key(key)} has no counterpart {join_key(key)} to fold it into",
                hint=f"name it in reward_keys=({join_key(key)!r}, …), for both directions",
            )
        ends = order.ends(_flags(leaves, self.done_key)[order.rows])
        if self.check:
            self._refuse_loss(leaves, folded, order, ends)
        flat = TensorDict({}, batch_size=[])
        flat.set_non_tensor(self.is_full_key, is_full)
        flat.set_non_tensor(self.shift_key, shift)
        flat.set_non_tensor(_SHAPE, shape)
        if path is not None:
            flat = flat.memmap_(path)
        kept = {key: leaf for key, leaf in leaves.items() if key[0] != "next"}
        kept |= {key: leaf for key, leaf in moved.items() if key in self.moved_keys}
        before = _positions(ends)
        for key, leaf in kept.items():
            size = torch.Size((len(ends) + int(ends.sum()) * (key in folded), *leaf.shape[1:]))
            if path is None:
                flat.set(key, torch.empty(size, dtype=leaf.dtype))
            else:
                flat.make_memmap(key, shape=size, dtype=leaf.dtype)
            rows = flat.get(key)
            if key in folded:
                rows[before] = leaf[order.rows]
                rows[before[ends] + 1] = leaves[next_of(key)][order.rows[ends]]
            else:
                rows.copy_(leaf[order.rows])
        return flat

    def _refuse_loss(
        self, leaves: Leaves, folded: Sequence[Key], order: _FlatOrder, ends: Tensor
    ) -> None:
        for key in (key for key in leaves if key in self.moved_keys):
            if next_of(key) in leaves and bool(leaves[key].any()):
                raise UsageError(
                    f"The root feature {join_key(key)} is not all zero; in TED only the one under "
                    "next is, and the flat form has one of them"
                )
        inside = (order.written & ~ends)[:-1]
        for key in folded:
            after = leaves[next_of(key)][order.rows[:-1]]
            differs = _differ(after, leaves[key][order.rows[1:]]) & inside
            if bool(differs.any()):
                row = int(order.rows[int(differs.nonzero()[0])])
                raise UsageError(
                    f"Row {row} of next/{join_key(key)} is not the {join_key(key)} of the row "
                    f"after it, although {join_key(self.done_key)} is not set there",
                    hint="several steps in one row, or an end without a flag, have no flat form",
                )


class Flat2TED(_FlatKeys):
    """Inverts `TED2Flat` (and TorchRL's); also a hook (`rb.register_load_hook(Flat2TED())`).

    Root flags are added and False. Unlike TorchRL's, the last `next` of a ring that is not full is
    kept (there zero), rewards get no zeros at the root, and all batch dimensions are restored.

    Args:
        done_key: Feature of the flat form that is True where a trajectory ends.
        shift_key, is_full_key, done_keys, reward_keys: As for `TED2Flat`.
    """

    def __init__(self, done_key: NestedKey = "done", **keys: Any) -> None:
        super().__init__(done_key, **keys)

    def __call__(self, data: TensorDict, out: TensorDict | None = None) -> TensorDict:
        """Return the TED `[T, *B]` of a flat form, written to `out` in place if given.

        Raises `UsageError` for a feature with neither one row per step nor one per observation.
        """
        own = (_SHAPE, self.shift_key, self.is_full_key)
        leaves = leaves_of(data.exclude(*own), index=True)
        steps = len(leaves[self.done_key])
        stored = data.get_non_tensor(_SHAPE, default=(steps,))
        shape = (stored,) if isinstance(stored, int) else tuple(stored)
        shift = data.get_non_tensor(self.shift_key, default=None)
        is_full = bool(data.get_non_tensor(self.is_full_key, default=False))
        order = _FlatOrder(shape, shape[0] if shift is None else shift, is_full)
        ends = order.ends(_flags(leaves, self.done_key))
        before = _positions(ends)
        # After the cursor of a ring buffer that is not full, neither rows nor ends were written.
        known = order.written | ends
        ted = TensorDict({}, batch_size=shape) if out is None else out
        for key, leaf in leaves.items():
            if len(leaf) != steps:
                if len(leaf) != len(ends) + int(ends.sum()):
                    raise UsageError(
                        f"The feature {join_key(key)} has {plural(len(leaf), 'row')}; expected "
                        f"{len(ends)}, or "
                        f"{len(ends) + int(ends.sum())} where it has the end of every trajectory"
                    )
                after = leaf[torch.where(known, before + 1, before)]
                after[~known] = 0
                parts = {key: leaf[before[order.back]], next_of(key): after[order.back]}
            else:
                rows = leaf[order.back]
                parts = {next_of(key) if key in self.moved_keys else key: rows}
                if key in self.done_keys:
                    parts = {key: torch.zeros_like(rows), **parts}
            for name, value in parts.items():
                found, reshaped = ted.get(name, None), value.reshape(*shape, *leaf.shape[1:])
                if found is None:
                    ted.set(name, reshaped)
                else:
                    found.copy_(reshaped)
        return ted


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """Return which rows differ, bool `[N]`; NaN equals NaN."""
    differs = (one != other) & ~((one != one) & (other != other))  # noqa: PLR0124
    return differs.unsqueeze(-1).flatten(1).any(1)


def _positions(ends: Tensor) -> Tensor:
    """Return the row of the observation before each step: one row further after each end."""
    return torch.arange(len(ends)) + ends.cumsum(0) - ends.to(torch.int64)


def _flags(leaves: Leaves, key: Key) -> Tensor:
    """Return a flag of all rows, bool `[N]`; a flag of several elements is True if any is."""
    if key not in leaves:
        raise UsageError(f"There is no feature {join_key(key)} to mark the ends of trajectories")
    return leaves[key].unsqueeze(-1).flatten(1).any(1)
