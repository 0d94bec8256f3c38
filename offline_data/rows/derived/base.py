"""Protocol of derived features, computed per batch from other rows, and shared helpers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import torch
from tensordict import NonTensorData, NonTensorStack
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode.fields import Key, join_key
from offline_data.rows.samplers.base import Sampleable
from offline_data.rows.storage import Storage

if TYPE_CHECKING:
    from tensordict import TensorDict


Pad: TypeAlias = Literal["repeat", "zero"]  # padding beyond an episode: its nearest row, or zeros

STEPS: Key = ("steps_to_next_obs",)
"""Feature added by `n_step`: the number of steps between the observation and the next one."""

T = TypeVar("T")

_locks: dict[int, threading.RLock] = {}


class Derived(Protocol):
    """Adds or replaces features of a batch, using other rows of its storage.

    An instance is frozen, hashable, picklable and thread-safe; instances made with the same
    arguments are equal. `storage.runs()` gives the runs of adjacent rows; `Memory` caches results.
    """

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        """Return the batch with the derived features.

        Args:
            batch: `[B]`, the gathered rows, with features derived before; may be changed in place.
            rows: Row numbers in the storage, int64 `[B]`; must not be changed.
            storage: Gives other rows: `storage.only(keys).gather(other_rows)`.

        Raises:
            UsageError: On the first batch, if it is not suitable.
        """


class Spans(NamedTuple):
    """For each row, the run that contains it; all `[B]`, on the CPU."""

    first: Tensor  # row, int64
    last: Tensor  # row, int64
    valid: Tensor  # whether the observation after the last row is known, or the row is terminated
    known: Tensor  # whether the observation after the last row is known


def episode_bounds(storage: Sampleable, rows: Tensor) -> Spans:
    """Return the runs that contain `rows`, int64 `[B]`."""
    runs = storage.runs()
    run = runs.of(rows)
    first = runs.starts[run]
    last = first + runs.lengths[run] - 1
    left_out = torch.as_tensor(storage.rows(valid_only=True).left_out)
    valid = torch.ones_like(last, dtype=torch.bool)
    if len(left_out):
        place = torch.searchsorted(left_out, last).clamp_max(len(left_out) - 1)
        valid = left_out[place] != last
    return Spans(first, last, valid, valid if runs.final is None else valid & runs.final[run])


@pickled_by_name
class Memory:
    """Cache of a derived feature, with one entry per storage.

    Entries live as long as their storage, and are not pickled or deep-copied.
    """

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Storage, dict[Hashable, Any]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        return Memory, ()

    def recall(
        self,
        storage: Storage,
        name: Hashable,
        make: Callable[[], T],
        stamp: Callable[[], object] | None = None,
    ) -> T:
        """Return the cached result of `make`; recomputed when `stamp()` returns another object."""
        known = self._known.setdefault(storage, {})
        found = known.get(name)
        if found is None or (stamp and found[0] is not stamp()):
            with process_lock():
                found, now = known.get(name), stamp and stamp()
                if found is None or found[0] is not now:
                    found = known[name] = (now, make())
        made: T = found[1]
        return made

    def only(self, storage: Storage, keys: tuple[Key, ...]) -> Storage:
        """Return the storage with only these features, cached so that files are mapped once."""
        return self.recall(storage, keys, lambda: storage.only(keys))


@pickled_by_name
@dataclass(frozen=True)
class CachedLeaf:
    """A derived feature that caches results."""

    _memory: Memory = field(default_factory=Memory, init=False, repr=False, compare=False)


def process_lock() -> threading.RLock:
    """Return a lock for this process: one held by a thread during a fork would stay locked."""
    return _locks.setdefault(os.getpid(), threading.RLock())


def widen(mask: Tensor, leaf: Tensor) -> Tensor:
    """Return a mask `[B]` or `[B, k]` that broadcasts to a feature `[B, k, …]`, on its device."""
    return mask.to(leaf.device).view(*mask.shape, *(1,) * (leaf.ndim - mask.ndim))


def keys_first(keys: Any, number: Any, default: Any) -> tuple[Any, Any]:
    """Return keys and number, given in either order, or with the keys omitted."""
    if isinstance(keys, int | float):
        keys, number = (default if number is None else number), keys
    return keys, number


def one_of(value: str, name: str, allowed: Iterable[str]) -> None:
    """Raise `UsageError` if `value` is not one of `allowed`."""
    if value not in set(allowed):
        raise UsageError(f"{name} is {value!r}; expected one of {', '.join(allowed)}")


def within(value: float, name: str, low: float, high: float) -> float:
    """Return `value`; raises `UsageError` unless `low <= value <= high`."""
    if not low <= value <= high:
        raise UsageError(f"{name} is {value}; expected a number from {low} to {high}")
    return float(value)


def leaf_keys(batch: TensorDict, *, text: bool = False) -> list[Key]:
    """Return the keys of all tensors of a batch; with `text`, of strings and the like, too."""
    options = {"is_leaf": is_leaf} if text else {}
    keys = batch.keys(include_nested=True, leaves_only=True, **options)
    return [key if isinstance(key, tuple) else (key,) for key in keys]


def has_leaf(storage: Storage, key: Key) -> bool:
    """Return True if a storage has a feature, also outside its batches; it must have rows."""
    try:
        return key in leaf_keys(storage.only((key,)).gather(torch.arange(1)))
    except UsageError:
        return False


def check_rows(name: str, batch: TensorDict) -> None:
    """Raise `UsageError` if rows of the batch are not transitions."""
    if batch.batch_dims != 1:
        raise UsageError(
            f"{name} needs batches [B] of transitions; these rows are whole episodes, "
            f"{list(batch.batch_size)}",
            hint="leave out split_trajs=True: a SliceSampler draws slices of episodes",
        )


def check_leaves(name: str, batch: TensorDict, keys: Iterable[Key]) -> None:
    """Raise `UsageError` if a feature is missing from a batch."""
    known = leaf_keys(batch)
    for key in keys:
        if key not in known:
            raise UsageError(
                f"{name} needs the feature {join_key(key)!r}; batches have "
                f"{', '.join(map(join_key, known))}",
                hint="add it to keys= of the buffer, if the dataset has it",
            )


def check_stored(
    name: str, batch: TensorDict, rows: Tensor, storage: Storage, keys: tuple[Key, ...]
) -> None:
    """Raise `UsageError` if features differ from the stored ones: gathering would undo changes."""
    own = leaf_keys(storage.gather(rows[:1].clone()))
    stored = storage.only([key for key in keys if key in own]).gather(rows.clone())
    for key in keys:
        if key not in own or not _same(batch.get(key), stored.get(key)):
            raise UsageError(
                f"{name} reads the feature {join_key(key)!r} from the storage, but an earlier "
                "function in derived= added or changed that feature",
                hint="an order that works: n_step or relabel, frame_stack, action_chunk, "
                "return_to_go, normalize",
            )


def _same(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors are bitwise equal, so that NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def is_leaf(kind: type) -> bool:
    """Return True for the type of a feature of a TensorDict, text included."""
    return issubclass(kind, (torch.Tensor, NonTensorData, NonTensorStack))
