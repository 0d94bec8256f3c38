"""`action_chunk`: the actions of the next steps as one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from offline_data.buffers.arguments import positive
from offline_data.buffers.derived.base import widen
from offline_data.buffers.derived.checks import (
    Pad,
    as_keys,
    check_rows,
    check_stored,
    leaf_keys,
    names,
    one_of,
)
from offline_data.buffers.derived.memory import Memory
from offline_data.buffers.derived.spans import spans_of
from offline_data.buffers.keys import KeyLike, as_key, select_keys
from offline_data.episodes.fields import Key, join_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.storage import Storage


def action_chunk(
    k: int,
    keys: Iterable[KeyLike] = ("action",),
    *,
    pad: Pad = "repeat",
    mask_key: KeyLike = "chunk_mask",
) -> ActionChunk:
    """Replace actions of a batch by those of `k` steps, from its own on.

    ```
    row              t                          k = 3
    action           a_t  a_t+1  a_t+2          at the end of an episode   a_T-1  a_T-1  a_T-1
    chunk_mask       True True   True                                      True   False  False
    ```

    A leaf `[B, *shape]` becomes `[B, k, *shape]`; the mask, bool `[B, k]`, tells which steps are in
    the episode. Actions come from the storage, that of a last step whose next observation is not
    known among them: `B·k` are gathered for each leaf.

    Args:
        k: Steps, at least 1.
        keys: Leaves, a parent standing for all below it; a string is one key.
        pad: Padding after the end of an episode: its last action (`repeat`), or zeros
            (`zero`).
        mask_key: Key of the mask.

    Raises:
        UsageError: Invalid argument; and from the first batch, where a leaf is not
            there or was changed before, or rows are whole episodes.

    Example:
        >>> action_chunk(8, pad="zero")
        action_chunk(8, ['action'], pad='zero', mask_key='chunk_mask')
    """
    one_of(pad, "pad", ("repeat", "zero"))
    return ActionChunk(positive(k, "k"), as_keys(keys), pad, as_key(mask_key))


@dataclass(frozen=True, repr=False)
class ActionChunk:
    """Result of `action_chunk`."""

    k: int
    """Steps."""
    keys: tuple[Key, ...]
    """Leaves or their parents."""
    pad: Pad
    """Padding after the end of an episode."""
    mask_key: Key
    """Key of the mask."""
    _memory: Memory = field(default_factory=Memory, init=False, compare=False)

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        """Replace the actions of the batch; see `Derived`."""
        keys = self._memory.recall(storage, "leaves", lambda: self._check(batch, rows, storage))
        wanted = rows[:, None] + torch.arange(self.k)
        last = spans_of(storage, rows).last[:, None]
        stored = self._memory.only(storage, keys)
        ahead = stored.gather(torch.minimum(wanted, last).reshape(-1))
        inside = (wanted <= last).to(batch.get(keys[0]).device)
        for key in keys:
            chunk = ahead.get(key).unflatten(0, wanted.shape)
            if self.pad == "zero":
                chunk.masked_fill_(~widen(inside, chunk), 0)
            batch.set(key, chunk)
        batch.set(self.mask_key, inside)
        return batch

    def __repr__(self) -> str:
        mask = join_key(self.mask_key)
        return f"action_chunk({self.k}, {names(self.keys)}, pad={self.pad!r}, mask_key={mask!r})"

    def _check(self, batch: TensorDict, rows: Tensor, storage: Storage) -> tuple[Key, ...]:
        """Return the leaves."""
        check_rows("action_chunk", batch)
        keys = tuple(select_keys(leaf_keys(batch), self.keys))
        check_stored("action_chunk", batch, rows, storage, keys)
        return keys
