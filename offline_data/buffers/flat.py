"""TED with every observation once: `next` folded into the row after, and unfolded again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict

from offline_data.buffers.flat_order import Keys, Order, flags, positions
from offline_data.buffers.storages.columns import leaves_of
from offline_data.episodes.fields import join_key, next_of
from offline_data.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from torch import Tensor

    from offline_data.buffers.flat_order import NestedKey
    from offline_data.buffers.storages.columns import Leaves
    from offline_data.episodes import Key

_SHAPE = "_storage_shape"


class TED2Flat(Keys):
    """Stores a trajectory's observations once: `T + 1` rows of them for `T` transitions.

    TorchRL's `TED2Flat`, in what it gives and as a hook (`rb.register_save_hook(TED2Flat())`).
    Flags and rewards move from `next` to the root. Every other leaf under `next` is folded into
    its root leaf: a row of the root is the `next` of the row before, but after an end, where
    `next` has a row of its own. Unlike TorchRL's, data that do not fit this are refused, not
    changed: root flags that are set, a `next` that differs from the row after it where no
    trajectory ends, leaves under `next` that the root lacks. A ring whose cursor is at 0 works.

    Args:
        done_key: Leaf that is set where a trajectory ends, `[*batch, 1]`.
        shift_key: Key of `shift`.
        is_full_key: Key of `is_full`.
        done_keys: Leaves under `next` that are flags; at the root they are False.
        reward_keys: Leaves under `next` that have no counterpart at the root.
        check: Whether to look for what would be lost.

    Attributes:
        shift: Index along time at which the next row would be written; None: behind the last row.
        is_full: Whether the data are a full ring, whose oldest row is `shift`; None: no.

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
        """Return the flat form.

        Args:
            data: TED, `[T, *B]`, time first.
            path: Folder of memory-mapped files, one a leaf; None: the result is in memory.

        Returns:
            Batch size `[]`: steps `[N, …]` and folded leaves `[N + ends, …]`, column by column of
            `B`, with `shift_key`, `is_full_key` and the shape of the data beside them.

        Raises:
            UsageError: Something would be lost, or a leaf is no tensor.
        """
        leaves = _rows_of(data)
        shift = data.shape[0] if self.shift is None else self.shift
        order = Order(tuple(data.shape), shift, bool(self.is_full))
        folded = self._folded(leaves)
        ends = order.ends(flags(leaves, self.done_key)[order.rows])
        if self.check:
            self._refuse_loss(leaves, folded, order, ends)
        flat = self._output(order, path)
        before = positions(ends)
        for key, leaf in self._kept(leaves).items():
            count = len(ends) + int(ends.sum()) * (key in folded)
            rows = _room(flat, key, (count, *leaf.shape[1:]), leaf.dtype, path is not None)
            if key in folded:
                rows[before] = leaf[order.rows]
                rows[before[ends] + 1] = leaves[next_of(key)][order.rows[ends]]
            else:
                rows.copy_(leaf[order.rows])
        return flat

    def _folded(self, leaves: Leaves) -> set[Key]:
        """Return the root keys that `next` is folded into."""
        folded = {key[1:] for key in leaves if key[0] == "next"} - self.moved
        for key in folded - leaves.keys():
            raise UsageError(
                f"The leaf next/{join_key(key)} has no counterpart {join_key(key)} to fold it into",
                hint=f"name it in reward_keys=({join_key(key)!r}, …), for both directions",
            )
        return folded

    def _kept(self, leaves: Leaves) -> Leaves:
        """Return the leaves of the flat form: those of the root, flags and rewards from `next`."""
        root = {key: leaf for key, leaf in leaves.items() if key[0] != "next"}
        moved = {key[1:]: leaf for key, leaf in leaves.items() if key[0] == "next"}
        return {**root, **{key: leaf for key, leaf in moved.items() if key in self.moved}}

    def _output(self, order: Order, path: str | os.PathLike[str] | None) -> TensorDict:
        flat = TensorDict({}, batch_size=[])
        flat.set_non_tensor(self.is_full_key, order.is_full)
        flat.set_non_tensor(self.shift_key, order.shift)
        flat.set_non_tensor(_SHAPE, order.shape)
        return flat if path is None else flat.memmap_(path)

    def _refuse_loss(self, leaves: Leaves, folded: set[Key], order: Order, ends: Tensor) -> None:
        for key in self.moved & leaves.keys():
            if next_of(key) in leaves and bool(leaves[key].any()):
                raise UsageError(
                    f"The root leaf {join_key(key)} is not all zero; in TED only the one under "
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


class Flat2TED(Keys):
    """Undoes `TED2Flat`, TorchRL's too; a hook as well (`rb.register_load_hook(Flat2TED())`).

    Root flags are made, and False. Unlike TorchRL's, the last `next` of data that are not a full
    ring is as it was stored (there it is zero), rewards get no zeros at the root, and any number of
    batch dimensions comes back.

    Args:
        done_key: Leaf of the flat form that is set where a trajectory ends.
        shift_key, is_full_key, done_keys, reward_keys: As they were for `TED2Flat`.
    """

    def __init__(self, done_key: NestedKey = "done", **keys: Any) -> None:
        super().__init__(done_key, **keys)

    def __call__(self, data: TensorDict, out: TensorDict | None = None) -> TensorDict:
        """Return TED, `[T, *B]`.

        Args:
            data: The flat form; memory-mapped or not.
            out: TensorDict that it is written to in place, leaf by leaf; None: a new TensorDict.

        Raises:
            UsageError: A leaf that has neither a row a step nor one for each observation.
        """
        own = (_SHAPE, self.shift_key, self.is_full_key)
        leaves = leaves_of(data.exclude(*own), index=True)
        steps = len(leaves[self.done_key])
        shape = _shape(data.get_non_tensor(_SHAPE, default=None), steps)
        shift = data.get_non_tensor(self.shift_key, default=None)
        is_full = bool(data.get_non_tensor(self.is_full_key, default=False))
        order = Order(shape, shape[0] if shift is None else shift, is_full)
        ends = order.ends(flags(leaves, self.done_key))
        before = positions(ends)
        ted = TensorDict({}, batch_size=shape) if out is None else out
        for key, leaf in leaves.items():
            if len(leaf) == steps:
                parts = self._moved_back(key, leaf[order.back])
            else:
                parts = _unfold(key, leaf, order, ends, before)
            for name, value in parts.items():
                _put(ted, name, value.reshape(*shape, *leaf.shape[1:]))
        return ted

    def _moved_back(self, key: Key, rows: Tensor) -> Leaves:
        """Return the leaves of TED that a leaf with a row a step gives."""
        if key in self.done_keys:
            return {key: torch.zeros_like(rows), next_of(key): rows}
        return {next_of(key) if key in self.reward_keys else key: rows}


def _unfold(key: Key, leaf: Tensor, order: Order, ends: Tensor, before: Tensor) -> Leaves:
    """Return the leaf of TED, and the one under `next`, that a folded leaf gives."""
    count = len(ends) + int(ends.sum())
    if len(leaf) != count:
        raise UsageError(
            f"The leaf {join_key(key)} has {len(leaf)} rows; expected {len(ends)}, or {count} "
            "where it has the end of every trajectory"
        )
    # Behind the cursor of a ring that is not full nothing was written, nor an end stored.
    known = order.written | ends
    after = leaf[torch.where(known, before + 1, before)]
    after[~known] = 0
    return {key: leaf[before[order.back]], next_of(key): after[order.back]}


def _rows_of(data: TensorDict) -> Leaves:
    """Return the leaves with their batch dimensions flattened, `[N, …]`."""
    count, leaves = data.numel(), leaves_of(data, index=True)
    return {key: leaf.reshape(count, *leaf.shape[data.ndim :]) for key, leaf in leaves.items()}


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """Tell rows that differ, bool `[N]`; two NaNs do not."""
    differs = (one != other) & ~((one != one) & (other != other))  # noqa: PLR0124
    return differs.unsqueeze(-1).flatten(1).any(1)


def _room(
    flat: TensorDict, key: Key, shape: Sequence[int], dtype: torch.dtype, mapped: bool
) -> Tensor:
    if mapped:
        flat.make_memmap(key, shape=torch.Size(shape), dtype=dtype)
    else:
        flat.set(key, torch.empty(shape, dtype=dtype))
    rows: Tensor = flat.get(key)
    return rows


def _put(ted: TensorDict, key: Key, value: Tensor) -> None:
    found = ted.get(key, None)
    if found is None:
        ted.set(key, value)
    else:
        found.copy_(value)


def _shape(stored: Any, steps: int) -> tuple[int, ...]:
    if stored is None:
        return (steps,)
    return (stored,) if isinstance(stored, int) else tuple(stored)
