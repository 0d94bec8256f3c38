"""`split_trajs`: transitions in a row as trajectories side by side, padded or nested."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.flat_order import path_of
from offline_data.buffers.storages.columns import leaves_of
from offline_data.buffers.trajectories import MASK, TRAJ_IDS, fill, padded_rows
from offline_data.episodes.fields import join_key
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from torch import Tensor

    from offline_data.buffers.flat_order import NestedKey
    from offline_data.episodes import Key


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
    nested results are nested whatever the lengths, and have the layout that was asked for; the
    time it takes does not depend on the number of trajectories. `BaseDatasetExperienceReplay(…,
    split_trajs=True)` does this for batches, without reading the whole set.

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
    ids_key, mask_key = _keys(data, prefix, trajectory_key)
    flat = data.reshape(-1).copy()
    starts = _starts(data, ids_key, path_of("done" if done_key is None else done_key))
    numbers = torch.cumsum(starts, 0) - 1
    lengths = torch.bincount(numbers)
    if data.get(ids_key, None) is None:
        flat.set(ids_key, numbers)
    if as_nested:
        return _nested(flat, lengths, as_nested)
    rows, mask = padded_rows(starts.nonzero()[:, 0], lengths, int(lengths.max()))
    padded = flat[rows]
    for leaf in leaves_of(padded, index=True).values():
        fill(leaf, mask, 0)
    padded.set(mask_key, mask)
    return padded


def _keys(
    data: TensorDictBase, prefix: NestedKey | None, trajectory_key: NestedKey | None
) -> tuple[Key, Key]:
    """Return where the numbers of trajectories are, or are put, and the mask beside them."""
    if trajectory_key is not None:
        path = path_of(trajectory_key)
        return path, (*path[:-1], MASK)
    if prefix is None:
        prefix = "collector" if "collector" in data.keys() else ()  # noqa: SIM118
    return (*path_of(prefix), TRAJ_IDS), (*path_of(prefix), MASK)


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
