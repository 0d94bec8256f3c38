"""`frame_stack` and `action_chunk`: the last `k` observations, or the next `k` actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key, join_key, next_of
from offline_data.rows.derived.base import (
    STEPS,
    CachedLeaf,
    Memory,
    Pad,
    check_rows,
    check_stored,
    episode_bounds,
    keys_first,
    leaf_keys,
    one_of,
    widen,
)
from offline_data.rows.indexing import positive
from offline_data.rows.keys import KeyLike, as_key, as_keys, select_keys
from offline_data.rows.storage import Storage

if TYPE_CHECKING:
    from tensordict import TensorDict


def gather_around(
    memory: Memory,
    storage: Storage,
    keys: tuple[Key, ...],
    rows: Tensor,
    offsets: Tensor,
    pad: Pad = "repeat",
) -> tuple[dict[Key, Tensor], Tensor]:
    """Return features `[B, k, *shape]` at `k` offsets, and whether each is in the episode."""
    bounds = episode_bounds(storage, rows)
    wanted = rows[:, None] + offsets
    nearest = wanted.clamp(bounds.first[:, None], bounds.last[:, None])
    gathered = memory.only(storage, keys).gather(nearest.reshape(-1))
    leaves = {key: gathered.get(key).unflatten(0, wanted.shape) for key in keys}
    inside = wanted == nearest
    if pad == "zero":
        for leaf in leaves.values():
            leaf.masked_fill_(~widen(inside, leaf), 0)
    return leaves, inside


def frame_stack(
    keys: Iterable[KeyLike] | int = "observation",
    k: int | Iterable[KeyLike] | None = None,
    *,
    cat_dim: int | None = None,
    pad: Pad = "repeat",
) -> FrameStack:
    """Replace observations of a batch by the last `k` observations, oldest first.

    ```
    row              t                          k = 3
    observation      s_t-2  s_t-1  s_t          at the beginning of an episode  s_0  s_0  s_0
    next             s_t-1  s_t    s_t+1                                        s_0  s_0  s_1
    ```

    A feature `[B, *shape]` becomes `[B, k, *shape]`, or `k` times as long in `cat_dim`. Under
    `next`, the last frame is the batch's next observation: after an earlier `n_step`, that of the
    last step used. Frames are gathered from the storage, `B·k` per feature.

    Args:
        keys: Root features, or parents of features, and the same under `next` if batches have them;
            a string is one key. May be omitted: `frame_stack(4)`.
        k: Number of frames, at least 1; may also come first.
        cat_dim: Dimension of a frame in which to concatenate (0 joins images `[C, H, W]` to
            `[k·C, H, W]`); None: a new dimension before those of the frame.
        pad: Padding before the first observation of an episode: that (`repeat`) or zeros (`zero`).

    Raises:
        UsageError: Invalid argument; or, on the first batch, a feature that is missing or was
            changed before, or rows that are whole episodes.

    Example:
        >>> frame_stack("pixels", 4, cat_dim=0)
        FrameStack(k=4, keys=(('pixels',),), pad='repeat', cat_dim=0)
    """
    one_of(pad, "pad", ("repeat", "zero"))
    leaves, frames = keys_first(keys, k, "observation")
    return FrameStack(positive(frames, "k"), as_keys(leaves), pad, cat_dim)


@dataclass(frozen=True)
class FrameStack(CachedLeaf):
    """Result of `frame_stack`, which documents the fields."""

    k: int
    keys: tuple[Key, ...]
    pad: Pad
    cat_dim: int | None

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        keys, after = self._memory.recall(
            storage, "leaves", lambda: self._check(batch, rows, storage)
        )
        past = torch.arange(1 - self.k, 1)
        frames, _ = gather_around(self._memory, storage, keys, rows, past, self.pad)
        ahead, before = _last_rows(batch, rows), frames
        if after and ahead is not rows:
            before, _ = gather_around(self._memory, storage, after, ahead, past, self.pad)
        for key in keys:
            if key in after:
                following = batch.get(next_of(key))[:, None]
                stack = torch.cat([before[key][:, 1:], following], 1)
                batch.set(next_of(key), self._join_frames(stack))
            batch.set(key, self._join_frames(frames[key]))
        return batch

    def _check(
        self, batch: TensorDict, rows: Tensor, storage: Storage
    ) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
        """Return the features, and those that are also under `next`."""
        check_rows("frame_stack", batch)
        known = leaf_keys(batch)
        keys = tuple(select_keys([key for key in known if key[0] != "next"], self.keys))
        after = tuple(key for key in keys if next_of(key) in known)
        check_stored("frame_stack", batch, rows, storage, keys)
        if after:
            ahead = tuple(map(next_of, after))
            check_stored("frame_stack", batch, _last_rows(batch, rows), storage, ahead)
        for key in keys:
            dims = batch.get(key).ndim - 1
            if self.cat_dim is not None and not -dims <= self.cat_dim < dims:
                raise UsageError(
                    f"cat_dim is {self.cat_dim}, and frames of {join_key(key)!r} have "
                    f"{plural(dims, 'dimension')}"
                )
        return keys, after

    def _join_frames(self, stack: Tensor) -> Tensor:
        if self.cat_dim is None:
            return stack
        dim = 1 + self.cat_dim % (stack.ndim - 2)
        return stack.movedim(1, dim).flatten(dim, dim + 1)


def _last_rows(batch: TensorDict, rows: Tensor) -> Tensor:
    """Return the rows of the batch's next observations: `rows`, or the last rows of `n_step`."""
    steps = batch.get(STEPS, None)
    return rows if steps is None else rows + steps.cpu() - 1


def action_chunk(
    keys: Iterable[KeyLike] | int = "action",
    k: int | Iterable[KeyLike] | None = None,
    *,
    pad: Pad = "repeat",
    mask_key: KeyLike = "chunk_mask",
) -> ActionChunk:
    """Replace actions of a batch by the actions of `k` steps, starting with its own.

    ```
    row              t                          k = 3
    action           a_t  a_t+1  a_t+2          at the end of an episode   a_T-1  a_T-1  a_T-1
    chunk_mask       True True   True                                      True   False  False
    ```

    A feature `[B, *shape]` becomes `[B, k, *shape]`; the mask, bool `[B, k]`, is True for steps in
    the episode. Actions are gathered from the storage, `B·k` per feature, including that of a last
    step whose next observation is unknown.

    Args:
        keys: Features, or parents of features; a string is one key. May be omitted.
        k: Number of steps, at least 1; may also come first.
        pad: Padding after the end of an episode: its last action (`repeat`), or zeros (`zero`).
        mask_key: Key of the mask.

    Raises:
        UsageError: Invalid argument; or, on the first batch, a feature that is missing or was
            changed before, or rows that are whole episodes.

    Example:
        >>> action_chunk(8, pad="zero")
        ActionChunk(k=8, keys=(('action',),), pad='zero', mask_key=('chunk_mask',))
    """
    one_of(pad, "pad", ("repeat", "zero"))
    leaves, steps = keys_first(keys, k, "action")
    return ActionChunk(positive(steps, "k"), as_keys(leaves), pad, as_key(mask_key))


@dataclass(frozen=True)
class ActionChunk(CachedLeaf):
    """Result of `action_chunk`, which documents the fields."""

    k: int
    keys: tuple[Key, ...]
    pad: Pad
    mask_key: Key

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        keys = self._memory.recall(storage, "leaves", lambda: self._check(batch, rows, storage))
        steps = torch.arange(self.k)
        chunks, inside = gather_around(self._memory, storage, keys, rows, steps, self.pad)
        for key in keys:
            batch.set(key, chunks[key])
        batch.set(self.mask_key, inside.to(chunks[keys[0]].device))
        return batch

    def _check(self, batch: TensorDict, rows: Tensor, storage: Storage) -> tuple[Key, ...]:
        check_rows("action_chunk", batch)
        keys = tuple(select_keys(leaf_keys(batch), self.keys))
        check_stored("action_chunk", batch, rows, storage, keys)
        return keys
