"""Sub-batches of members as one batch: a tensor a leaf, or a lazy stack where they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from tensordict import LazyStackedTensorDict, TensorDict, TensorDictBase
from torch.utils import _pytree as pytree

from offline_data.buffers.assemble import level
from offline_data.buffers.views.storage import DATASET_EPISODE, DATASET_INDEX
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

INDEX, MEMBER = "index", "buffer_ids"


def stacked(parts: Sequence[Any], members: Tensor) -> Any:
    """Put sub-batches one below the other.

    The leaf `index` of a batch `[n]` becomes two: `("index", "index")` as it was, and
    `("index", "buffer_ids")`, the members that rows are from; both int64 `[K, n]`.

    Args:
        parts: `K` sub-batches.
        members: The member that each is from, int64 `[K]`.

    Returns:
        A TensorDict `[K, n]` with one tensor a leaf, in memory of its own, where all sub-batches
        have the same leaves of the same shapes and types. Otherwise a `LazyStackedTensorDict`
        `[K, n]` of the sub-batches: it shows the leaves that all of them have, and makes a leaf
        when it is asked for, where it can; `stack[k]` is sub-batch `k` with all its leaves. Of
        what is no TensorDict, a stack of its tensors.

    Raises:
        UsageError: Sub-batches that cannot be stacked.

    Example:
        >>> few = TensorDict({"action": torch.tensor([7.0]), "index": torch.tensor([3])}, [1])
        >>> many = TensorDict({"action": torch.tensor([8.0]), "index": torch.tensor([9])}, [1])
        >>> batch = stacked([few, many], torch.tensor([1, 0]))
        >>> batch["action"].tolist(), batch["index", "buffer_ids"].tolist()
        ([[7.0], [8.0]], [[1], [0]])
    """
    if not all(isinstance(part, TensorDictBase) for part in parts):
        return _of_others(parts)
    for key in (DATASET_INDEX, DATASET_EPISODE):  # which members that are views have, others not
        having = [part for part in parts if key[0] in part.keys()]  # noqa: SIM118
        if len(having) < len(parts):
            for part in having:
                part.pop(key[0])
    batch = _dense(parts, members)
    if batch is not None:
        return batch
    parts = [labelled(part, member) for part, member in zip(parts, members.tolist(), strict=True)]
    try:
        return LazyStackedTensorDict.lazy_stack(parts, 0)
    except (RuntimeError, TypeError, ValueError) as error:
        raise _not_stacked(parts, error) from error


def labelled(part: Any, member: int) -> Any:
    """Say in the leaf `index` of a sub-batch which member it is from; in place, see `stacked`."""
    index = part.get(INDEX, None) if isinstance(part, TensorDictBase) else None
    if isinstance(index, torch.Tensor):
        own = {INDEX: index.clone(), MEMBER: torch.full_like(index, member)}
        part.set(INDEX, TensorDict(own, batch_size=index.shape, device=part.device))
    return part


def named(members: Tensor, index: Tensor, device: torch.device | None) -> TensorDict:
    """Return the leaf `index` of a batch: rows `[K, …]`, with the member `[K]` of each."""
    of_part = members.to(index.device).reshape(-1, *[1] * (index.ndim - 1))
    own = {MEMBER: of_part.expand(index.shape).contiguous(), INDEX: index}
    return level(own, index.shape, device)


def _dense(parts: Sequence[Any], members: Tensor | None = None) -> Any:
    """Stack plain TensorDicts leaf by leaf; None where they differ."""
    first = parts[0]
    for part in parts:
        if type(part) is not TensorDict or part.batch_size != first.batch_size:
            return None
        if part.device != first.device:
            return None
    contents = [dict(part.items()) for part in parts]
    names = contents[0].keys()
    if any(content.keys() != names for content in contents):
        return None
    stacks: dict[str, Any] = {}
    for name in names:
        stack = _one([content[name] for content in contents])
        if stack is None:
            return None
        stacks[name] = stack
    if members is not None and isinstance(stacks.get(INDEX), torch.Tensor):
        stacks[INDEX] = named(members, stacks[INDEX], first.device)
    return level(stacks, torch.Size((len(parts), *first.batch_size)), first.device)


def _one(values: list[Any]) -> Any:
    """Stack one leaf, or one level, of all; None where they differ."""
    first = values[0]
    if not isinstance(first, torch.Tensor):
        return _dense(values)
    dtype, shape = first.dtype, first.shape
    for value in values:
        if not isinstance(value, torch.Tensor) or value.dtype is not dtype or value.shape != shape:
            return None
    return torch.stack(values)


def _of_others(parts: Sequence[Any]) -> Any:
    if any(type(part) is not type(parts[0]) for part in parts):
        raise _not_stacked(parts, "they have different types")
    try:
        return pytree.tree_map(lambda *leaves: torch.stack(leaves), *parts)
    except (RuntimeError, TypeError, ValueError) as error:
        raise _not_stacked(parts, error) from error


def _not_stacked(parts: Sequence[Any], error: Exception | str) -> UsageError:
    kinds = ", ".join(f"{type(part).__name__} {_size(part)}" for part in parts)
    return UsageError(
        f"The sub-batches of the members cannot be stacked ({error}): {kinds}",
        hint="collate_fn=… of the ensemble gets the list of them and makes a batch of it",
    )


def _size(part: Any) -> list[int] | str:
    size = getattr(part, "batch_size", getattr(part, "shape", None))
    return "" if size is None else list(size)
