"""Trajectories side by side, padded: as the rows of a storage, or made of transitions in a row."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.keys import path_of
from offline_data.buffers.samplers.base import EpisodeIndex, ValidRows
from offline_data.buffers.storage.rows import leaves_of
from offline_data.episodes.fields import join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from tensordict import TensorDict, TensorDictBase
    from torch import Tensor

    from offline_data.buffers.keys import KeyLike, NestedKey
    from offline_data.buffers.storage import DatasetStorage
    from offline_data.episodes import Key

MASK = "mask"
TRAJ_IDS = "traj_ids"
DATASET_INDEX = "dataset_index"


class TrajectoryStorage:
    """The episodes of a dataset, each a row `[T]`, where `T` is the length of the longest.

    As TorchRL's `split_trajectories`: `mask` says which steps are there, `traj_ids` which episode
    they are of, and everything else is zero where the mask is False (leaves in `texts`: -1). The
    transition whose next observation is unknown is in. `index` is the number of the episode at
    every step, `dataset_index` that of the transition in `steps`.
    """

    def __init__(self, steps: DatasetStorage, texts: Collection[Key] = ()) -> None:
        own = [name for name in (MASK, TRAJ_IDS, DATASET_INDEX) if (name,) in steps.keys]
        if own:
            raise UsageError(f"split_trajs=True would overwrite the leaf {' and '.join(own)}")
        self.steps = steps
        self._texts = tuple(texts)
        self._starts = torch.from_numpy(steps.reader.starts)
        self._lengths = torch.from_numpy(steps.reader.lengths)

    def __len__(self) -> int:
        """Return `E`."""
        return len(self._lengths)

    def rows(self, *, valid_only: bool) -> ValidRows:  # noqa: ARG002 - whole episodes are whole
        """Return all episodes."""
        return ValidRows(len(self), np.zeros(0, np.int64))

    def only(self, keys: Iterable[KeyLike]) -> TrajectoryStorage:
        """Return the same episodes with some of the leaves; see `Storage`."""
        return TrajectoryStorage(self.steps.only(keys), self._texts)

    def runs(self) -> EpisodeIndex:
        """Return every row as a run of its own: nothing follows a whole episode."""
        count = torch.arange(len(self))
        return EpisodeIndex(count, torch.ones_like(count))

    def gather(self, rows: Tensor) -> TensorDict:
        """Return the episodes `rows`, `[B, T]`."""
        longest = int(self._lengths.max())
        steps, mask = _padded_rows(self._starts[rows], self._lengths[rows], longest)
        mask = mask.to(self.steps.device)
        batch = self.steps.gather(steps.reshape(-1)).reshape(mask.shape)
        for key in batch.keys(include_nested=True, leaves_only=True):
            _fill(batch.get(key), mask, -1 if key in self._texts else 0)
        batch.set(DATASET_INDEX, batch.get("index"))
        batch.set("index", rows.to(mask.device)[:, None].expand(mask.shape).contiguous())
        batch.set(MASK, mask)
        batch.set(TRAJ_IDS, torch.where(mask, rows.to(mask.device)[:, None], 0))
        return batch


def _padded_rows(starts: Tensor, lengths: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Lay runs out side by side, filled up by their last rows: rows and mask, `[R, width]`."""
    time = torch.arange(width, device=starts.device)
    rows = starts[:, None] + torch.minimum(time, lengths[:, None] - 1)
    return rows, time < lengths[:, None]


def _fill(leaf: Tensor, mask: Tensor, value: int) -> None:
    """Overwrite a leaf `[R, T, …]` where the mask `[R, T]` is False."""
    leaf.masked_fill_(~mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim)), value)


def split_trajs(
    data: TensorDictBase,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey | None = None,
    as_nested: bool | torch.layout = False,
) -> TensorDictBase:
    """Split a row of transitions into its trajectories, as TorchRL's `split_trajectories` does.

    Unlike there, two trajectories with the same number are two if another one lies between them,
    and nested results are nested whatever the lengths, in the layout that was asked for.
    `BaseDatasetExperienceReplay(…, split_trajs=True)` does this for batches of a dataset.

    Args:
        data: `[*B, T]`, trajectories adjacent along the last dimension; it is not changed.
        prefix: Prefix of the keys `traj_ids` and `mask`; None: `"collector"` where the
            data have it, else the root.
        trajectory_key: Leaf with a number for each trajectory, instead of `traj_ids`.
        done_key: Leaf under `next` that is set where a trajectory ends; used where there are no
            numbers, which are then put there, from 0 on. None: `"done"`.
        as_nested: Whether leaves are nested tensors; or the layout of those.

    Returns:
        `[R, L]`, `L` the longest of `R` trajectories, zero behind the end of each, with a `mask`,
        bool `[R, L]`, beside the numbers. Nested: `[R]` (there `[R, -1]`), without a mask.

    Raises:
        UsageError: Neither numbers nor ends are there, or a leaf is no tensor.

    Example:
        >>> from tensordict import TensorDict
        >>> data = TensorDict(
        ...     {"action": torch.tensor([1, 2, 3]), "of": torch.tensor([7, 7, 8])}, [3]
        ... )
        >>> split_trajs(data, trajectory_key="of")["action"]
        tensor([[1, 2],
                [3, 0]])
    """
    leaves_of(data)  # refuses what cannot be padded
    if trajectory_key is not None:
        ids_key = path_of(trajectory_key)
    elif prefix is not None:
        ids_key = (*path_of(prefix), TRAJ_IDS)
    else:
        known = "collector" in data.keys()  # noqa: SIM118
        ids_key = ("collector", TRAJ_IDS) if known else (TRAJ_IDS,)
    flat = data.reshape(-1).copy()
    starts = _starts(data, ids_key, path_of("done" if done_key is None else done_key))
    numbers = torch.cumsum(starts, 0) - 1
    lengths = torch.bincount(numbers)
    if data.get(ids_key, None) is None:
        flat.set(ids_key, numbers)
    if as_nested:
        return _nested(flat, lengths, as_nested)
    rows, mask = _padded_rows(starts.nonzero()[:, 0], lengths, int(lengths.max()))
    padded = flat[rows]
    for leaf in leaves_of(padded, index=True).values():
        _fill(leaf, mask, 0)
    padded.set((*ids_key[:-1], MASK), mask)
    return padded


def _starts(data: TensorDictBase, ids_key: Key, done_key: Key) -> Tensor:
    """Mark the first row of each trajectory, bool `[N]`."""
    count = data.numel()
    starts = torch.zeros(count, dtype=torch.bool, device=data.device)
    starts[:1] = True
    ids = data.get(ids_key, None)
    if ids is not None:
        ids = ids.reshape(count, *ids.shape[data.ndim :], 1).flatten(1)
        starts[1:] = (ids[1:] != ids[:-1]).any(1)
        return starts
    done = data.get(("next", *done_key), None)
    if done is None:
        raise UsageError(
            f"There is neither {join_key(ids_key)} nor next/{join_key(done_key)}, one of which "
            "tells trajectories apart",
            hint='name the leaf: trajectory_key="episode", or done_key=… for one under next',
        )
    starts[1:] = done.reshape(count, *done.shape[data.ndim :], 1).flatten(1).any(1)[:-1]
    starts[:: data.shape[-1]] = True
    return starts


def _nested(flat: Any, lengths: Tensor, layout: bool | torch.layout) -> TensorDictBase:
    kind = torch.strided if isinstance(layout, bool) else layout
    sizes = lengths.tolist()

    def nest(leaf: Tensor) -> Tensor:
        return torch.nested.as_nested_tensor(list(torch.split(leaf, sizes)), layout=kind)

    with warnings.catch_warnings():  # torch says of every nested tensor that they may change
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors", UserWarning)
        nested: TensorDictBase = flat.apply(nest, batch_size=[len(sizes)])
    return nested
