"""`split_trajs`: padded trajectories from a sequence of transitions."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.episode import Key
from offline_data.episode.fields import join_key
from offline_data.rows.keys import NestedKey, path_of
from offline_data.rows.trajectories import MASK, TRAJ_IDS, fill, pad_rows
from offline_data.torchrl.storages.leaves import leaves_of

if TYPE_CHECKING:
    from tensordict import TensorDictBase


def split_trajs(
    data: TensorDictBase,
    *,
    prefix: NestedKey | None = None,
    trajectory_key: NestedKey | None = None,
    done_key: NestedKey | None = None,
    as_nested: bool | torch.layout = False,
) -> TensorDictBase:
    """Split transitions into padded trajectories, as TorchRL's `split_trajectories` does.

    Unlike there, equal numbers separated by another trajectory are two trajectories, and nested
    results are nested in the requested layout whatever the lengths. With
    `Dataset(…, split_trajs=True)` the batches of a dataset are split already.

    Args:
        data: `[*B, T]`, trajectories contiguous along the last dimension; not modified.
        prefix: Prefix of the keys `traj_ids` and `mask`; None: `"collector"` if the data have it,
            else the root.
        trajectory_key: Feature of trajectory numbers, instead of `traj_ids`.
        done_key: Feature under `next` that is True where a trajectory ends; used if there are no
            numbers, which are then added, from 0. None: `"done"`.
        as_nested: Whether features are nested tensors; or their layout.

    Returns:
        `[R, L]`, `L` the length of the longest of `R` trajectories, zero-padded, with numbers and
        a `mask`, bool `[R, L]`. Nested: `[R]` (in TorchRL `[R, -1]`), without a mask.

    Raises:
        UsageError: Neither numbers nor ends, or a feature that is not a tensor.

    Example:
        >>> from tensordict import TensorDict
        >>> data = TensorDict(
        ...     {"action": torch.tensor([1, 2, 3]), "of": torch.tensor([7, 7, 8])}, [3]
        ... )
        >>> split_trajs(data, trajectory_key="of")["action"]
        tensor([[1, 2],
                [3, 0]])
    """
    leaves_of(data)  # raises for leaves that cannot be padded
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
        return _nest_leaves(flat, lengths, as_nested)
    rows, mask = pad_rows(starts.nonzero()[:, 0], lengths, int(lengths.max()))
    padded = flat[rows]
    for leaf in leaves_of(padded, index=True).values():
        fill(leaf, mask, 0)
    padded.set((*ids_key[:-1], MASK), mask)
    return padded


def _starts(data: TensorDictBase, ids_key: Key, done_key: Key) -> Tensor:
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
            f"Expected {join_key(ids_key)} or next/{join_key(done_key)} to separate trajectories; "
            "found neither",
            hint='trajectory_key="episode" sets the feature, or done_key=… one under next',
        )
    starts[1:] = done.reshape(count, *done.shape[data.ndim :], 1).flatten(1).any(1)[:-1]
    starts[:: data.shape[-1]] = True
    return starts


def _nest_leaves(flat: Any, lengths: Tensor, layout: bool | torch.layout) -> TensorDictBase:
    kind = torch.strided if isinstance(layout, bool) else layout
    sizes = lengths.tolist()

    def nest(leaf: Tensor) -> Tensor:
        return torch.nested.as_nested_tensor(list(torch.split(leaf, sizes)), layout=kind)

    with warnings.catch_warnings():  # torch warns about every nested tensor
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors", UserWarning)
        nested: TensorDictBase = flat.apply(nest, batch_size=[len(sizes)])
    return nested
