"""The contract of a derived leaf, computed for the rows of a batch from their storage, and its masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.storage import Storage


class Derived(Protocol):
    """Adds leaves to a batch, or replaces some, by looking at other rows of its storage.

    An instance is frozen, hashable and picklable; instances made by the same arguments are equal.
    It gathers other rows from the storage; `storage.runs()` says which rows follow each
    other. Results for a storage may be cached (see `Memory`). Several threads may call
    it at once, so that what it does for a batch follows from the batch alone.
    """

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        """Return the batch with what is derived.

        Args:
            batch: `[B]`, the gathered rows, with what was derived before; may be changed in place.
            rows: Their rows of the storage, int64 `[B]`; not to be changed.
            storage: Storage they are from; `storage.only(keys).gather(other_rows)` gives others,
                and those that are written later too.

        Raises:
            UsageError: From the first batch, where this cannot be done with it.
        """


def widen(mask: Tensor, leaf: Tensor) -> Tensor:
    """Shape a mask `[B]` or `[B, k]` so that it goes with a leaf `[B, k, …]`, and lies beside it.

    Example:
        >>> import torch
        >>> widen(torch.tensor([True, False]), torch.zeros(2, 3, 4)).shape
        torch.Size([2, 1, 1])
    """
    return mask.to(leaf.device).view(*mask.shape, *(1,) * (leaf.ndim - mask.ndim))
