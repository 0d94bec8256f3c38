"""`timestep`: the number of preceding steps in the episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from offline_data.episode.fields import Key
from offline_data.rows.derived.base import CachedLeaf, check_rows, episode_bounds
from offline_data.rows.keys import KeyLike, as_key
from offline_data.rows.storage import Storage

if TYPE_CHECKING:
    from tensordict import TensorDict
    from torch import Tensor


def timestep(key: KeyLike = "timestep") -> Timestep:
    """Add to a batch the number of each step in its episode, from 0: int64 `[B]`.

    In a view that cuts episodes, numbers start at the first row of the piece.

    Args:
        key: Key of the feature.

    Raises:
        UsageError: On the first batch, if rows are whole episodes.

    Example:
        >>> timestep()
        Timestep(key=('timestep',))
    """
    return Timestep(as_key(key))


@dataclass(frozen=True)
class Timestep(CachedLeaf):
    """Result of `timestep`, which documents the field."""

    key: Key

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        check_rows("timestep", batch)
        batch.set(self.key, (rows - episode_bounds(storage, rows).first).to(batch.device))
        return batch
