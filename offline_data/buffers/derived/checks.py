"""Arguments and batches of derived leaves: invalid ones raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from offline_data.buffers.keys import KeyLike, as_key
from offline_data.episodes.fields import Key, join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.storage import Storage

Pad: TypeAlias = Literal["repeat", "zero"]
"""Padding beyond an episode: the nearest row that it has, or zeros."""


def as_keys(keys: Iterable[KeyLike]) -> tuple[Key, ...]:
    """Read several keys; a string is one, a tuple is several.

    Example:
        >>> as_keys("next.reward"), as_keys(["action", ("observation", "state")])
        ((('next', 'reward'),), (('action',), ('observation', 'state')))
    """
    return tuple(as_key(key) for key in ([keys] if isinstance(keys, str) else keys))


def names(keys: Iterable[Key]) -> str:
    """Write keys as an argument.

    Example:
        >>> names([("action",), ("observation", "state")])
        "['action', 'observation/state']"
    """
    return str([join_key(key) for key in keys])


def one_of(value: str, name: str, allowed: Iterable[str]) -> None:
    """Raise `UsageError` where `value` is none of `allowed`."""
    if value not in set(allowed):
        raise UsageError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")


def within(value: float, name: str, low: float, high: float) -> float:
    """Return `value` if `low <= value <= high`; NaN is not."""
    if not low <= value <= high:
        raise UsageError(f"{name} is {value}; expected a number from {low} to {high}")
    return float(value)


def leaf_keys(batch: TensorDict) -> list[Key]:
    """List the leaves of a batch."""
    keys = batch.keys(include_nested=True, leaves_only=True)
    return [key if isinstance(key, tuple) else (key,) for key in keys]


def has_leaf(storage: Storage, key: Key) -> bool:
    """Return True if a storage, which is not empty, has a leaf, in its batches or not."""
    try:
        return key in leaf_keys(storage.only((key,)).gather(torch.arange(1)))
    except UsageError:
        return False


def check_rows(name: str, batch: TensorDict) -> None:
    """Raise `UsageError` where the rows of a batch are not transitions."""
    if batch.batch_dims != 1:
        raise UsageError(
            f"{name} is for batches [B] of transitions; these rows are whole episodes, "
            f"{list(batch.batch_size)}",
            hint="leave out split_trajs=True: a SliceSampler draws pieces of episodes",
        )


def check_leaves(name: str, batch: TensorDict, keys: Iterable[Key]) -> None:
    """Raise `UsageError` where a batch lacks a leaf."""
    known = leaf_keys(batch)
    for key in keys:
        if key not in known:
            there = ", ".join(map(join_key, known))
            raise UsageError(
                f"{name} needs the leaf {join_key(key)!r}; batches have {there}",
                hint="take it into keys= of the buffer, if the dataset has it",
            )


def check_stored(
    name: str, batch: TensorDict, rows: Tensor, storage: Storage, keys: tuple[Key, ...]
) -> bool:
    """Raise `UsageError` where leaves are no longer those of `rows`; True where they are.

    A leaf that is gathered again from the storage would lose what something before it had
    changed it.
    """
    own = leaf_keys(storage.gather(rows[:1].clone()))
    stored = storage.only([key for key in keys if key in own]).gather(rows.clone())
    for key in keys:
        if key not in own or not _same(batch.get(key), stored.get(key)):
            raise UsageError(
                f"{name} takes the leaf {join_key(key)!r} from the storage, and something before "
                "it in derived= has made or changed that leaf",
                hint="an order that works: n_step or relabel, frame_stack, action_chunk, "
                "return_to_go, normalize",
            )
    return True


def _same(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors are the same bit for bit, as NaN is never equal to itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
