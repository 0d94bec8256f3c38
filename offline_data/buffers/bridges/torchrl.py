"""The bridge to TorchRL: its own `TensorDictReplayBuffer` over a dataset's files."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDictBase
from torch import Tensor

from offline_data.base.errors import ImmutableError, UsageError
from offline_data.base.json import read_json
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.episode.fields import DONE, Key, join_key
from offline_data.rows import fields
from offline_data.rows.indexing import rows_of
from offline_data.rows.keys import NestedKey, path_of
from offline_data.rows.samplers import EpisodeIndex, Sampler
from offline_data.rows.samplers.base import Boundaries
from offline_data.rows.samplers.slices import runs_of
from offline_data.rows.transforms import through
from offline_data.store.spaces import LeafSpace, spaces_below

with warnings.catch_warnings():  # importing it warns about its own deprecated classes
    warnings.simplefilter("ignore")
    import torchrl.data as theirs
    from torchrl.envs import transforms

Transform: Any = transforms.Transform  # base of the transforms that TorchRL's buffers accept

Trajectory: Any = theirs.Trajectory
TrajectoryPredicate: Any = theirs.TrajectoryPredicate
filter_trajectories: Any = theirs.filter_trajectories
find_start_stop_traj: Any = theirs.find_start_stop_traj
iter_trajectories: Any = theirs.iter_trajectories
traj: Any = theirs.traj
"""TorchRL's queries of trajectories, for `ReplayBuffer.query` and for TensorDicts."""

if TYPE_CHECKING:
    from offline_data.buffers.buffer import Buffer


@pickled_by_name
class LazyColumns:
    """All rows of a storage as a mapping of features, each copied on first use.

    `episode` numbers runs of consecutive rows, and `("next", "done")` is True at the last row of
    each, also if a view has pieces of episodes. Features are not pickled.
    """

    def __init__(self, rows: RowsStorage) -> None:
        self._rows = rows
        self._known: dict[Key, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_known": {}}

    def __getitem__(self, key: NestedKey) -> Tensor:
        path = path_of(key)
        if path not in self._known:
            self._known[path] = self._read(path)
        return self._known[path]

    def get(self, key: NestedKey, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def _read(self, key: Key) -> Tensor:
        rows, storage = self._rows.rows(torch.arange(len(self._rows))), self._rows.buffer.storage
        run = storage.runs().of(rows)
        if key == ("episode",):
            return run
        try:
            leaf: Tensor = storage.only([key]).gather(rows).get(key)
        except UsageError as error:
            raise KeyError(join_key(key)) from error
        if key == DONE:
            leaf[:-1] |= (run[1:] != run[:-1])[:, None]
            leaf[-1:] = True
        return leaf

    def whole(self) -> Any:
        return self._rows.get(torch.arange(len(self._rows)))


@pickled_by_name
class RowsStorage(theirs.Storage):  # type: ignore[misc]
    """A read-only TorchRL storage whose rows are gathered from a dataset or a view.

    Batches are the buffer's before its transforms; with `valid_only` the other rows have no number.
    `storage[:]`, where TorchRL's samplers look for trajectories, is `LazyColumns`.
    """

    def __init__(self, buffer: Buffer, *, valid_only: bool = True) -> None:
        self.buffer = buffer
        self._rows = buffer.storage.rows(valid_only=valid_only)
        self._columns = LazyColumns(self)
        super().__init__(max_size=self._rows.count)

    def __len__(self) -> int:
        return int(self._rows.count)

    def rows(self, index: Tensor) -> Tensor:
        """Return the buffer's rows of `batch["index"]`, `[B]`, or `[B, 1]` from TorchRL's slices."""
        return self._rows.at(rows_of(index, len(self))).reshape(len(index))

    def get(self, index: Any) -> Any:
        if isinstance(index, slice) and index == slice(None):
            return self._columns
        index = index[0] if isinstance(index, tuple) else index
        rows = self._rows.at(rows_of(index, len(self)))
        batch = through(self.buffer._first, self.buffer._gather(rows.reshape(-1)))
        return batch if rows.ndim == 1 else batch.reshape(rows.shape + batch.shape[1:])

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:  # noqa: ARG002
        raise ImmutableError(
            "A dataset is immutable",
            hint="write to your own torchrl.data.LazyMemmapStorage",
        )

    def _empty(self) -> None:
        self.set(None, None)

    def contains(self, item: Any) -> Any:
        rows = torch.as_tensor(item)
        found = (rows >= -len(self)) & (rows < len(self))
        return bool(found) if found.ndim == 0 else found

    def state_dict(self) -> dict[str, Any]:
        return {"rows": len(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        rows = fields.check(state_dict, type(self).__name__, {"rows": fields.COUNT})["rows"]
        if rows != len(self):
            raise UsageError(f"The state has {plural(rows, 'row')}; expected {len(self)}")

    def dumps(self, path: str | os.PathLike[str]) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "rows.json").write_text(json.dumps(self.state_dict()))

    def loads(self, path: str | os.PathLike[str]) -> None:
        self.load_state_dict(read_json(Path(path) / "rows.json"))


@pickled_by_name
class Collate:
    """Reads all rows if TorchRL asks for them, then calls the user's function, if there is one."""

    def __init__(self, then: Callable[[Any], Any] | None) -> None:
        self._then = then

    def __call__(self, data: Any) -> Any:
        batch = data.whole() if isinstance(data, LazyColumns) else data
        return batch if self._then is None else self._then(batch)


def to_torchrl(
    buffer: Buffer,
    *,
    valid_only: bool = True,
    batch_size: int | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
    **torchrl: Any,
) -> Any:
    """Return a `torchrl.data.TensorDictReplayBuffer` over the files of a dataset or a view.

    It is TorchRL's own class, with its samplers, transforms and `ImmutableDatasetWriter`; batches
    are gathered by the buffer's storage, so `derived`, `device`, text and the buffer's transforms
    apply. Nothing is copied, except a feature in which a sampler looks for trajectories: 8 bytes
    per row, once (with `SliceSampler(…, cache_values=True)`; otherwise for every batch).

    `batch["index"]` are rows of this storage; `rb.storage.rows(index)` returns the buffer's.

    Args:
        buffer: A dataset or a view.
        valid_only: Whether to leave out steps whose next observation is unknown and that
            are not terminated, since TorchRL's samplers draw any row; slices end before them.
        batch_size: Number of rows in a batch; None: the buffer's.
        collate_fn: Called with every batch, before transforms.
        transform: Called after the buffer's own transforms.
        **torchrl: Other arguments of `TensorDictReplayBuffer`: `sampler`, `prefetch`, ….

    Raises:
        UsageError: A sampler of this package, a storage or a writer; nothing to sample.
    """
    for name in ("storage", "writer"):
        if name in torchrl:
            raise UsageError(
                f"{name} cannot be set: to_torchrl uses its own, over an immutable dataset"
            )
    if isinstance(torchrl.get("sampler"), Sampler):
        raise UsageError(
            f"{torchrl['sampler']!r} is a sampler of this package; TorchRL's buffer needs one of TorchRL's",
            hint="torchrl.data.replay_buffers has the same names",
        )
    replay = theirs.TensorDictReplayBuffer(
        storage=RowsStorage(buffer, valid_only=valid_only),
        writer=theirs.ImmutableDatasetWriter(),
        collate_fn=Collate(collate_fn),
        batch_size=buffer.batch_size if batch_size is None else batch_size,
        **torchrl,
    )
    for link in buffer._chain.links:
        replay.append_transform(link.transform)
    if transform is not None:
        replay.append_transform(transform)
    return replay


def query(
    buffer: Buffer,
    predicate: Callable[[Any], bool] | None,
    trajectory_key: NestedKey | None,
) -> list[Any]:
    """Return the trajectories of a buffer that a predicate selects; see `Buffer.query`."""
    storage: Any = buffer.storage
    if not len(storage):
        return []
    by = None if trajectory_key is None else Boundaries(path_of(trajectory_key), ())
    runs, found = runs_of(storage, by), []
    for number in _by_time(buffer, runs).tolist():
        places = torch.arange(int(runs.lengths[number])) + runs.starts[number]
        rows = buffer.at_rows(places if runs.order is None else runs.order.rows(places))
        if not isinstance(rows, TensorDictBase):
            raise TypeError(
                "query needs tensordict-backed rows, whose features a predicate reads; found "
                f"{type(rows).__name__}"
            )
        trajectory = Trajectory(rows)
        if predicate is None or predicate(trajectory):
            found.append(trajectory)
    return found


def _by_time(buffer: Any, runs: EpisodeIndex) -> Tensor:
    """Return the numbers of runs, oldest first, those of each parallel environment together."""
    storage = buffer.storage
    width = getattr(storage, "width", 1)
    steps = max(len(storage) // width, 1)
    rows = runs.starts if runs.order is None else runs.order.rows(runs.starts)
    oldest = getattr(getattr(buffer, "writer", None), "cursor", 0)
    ages = (
        rows // width - (oldest if len(storage) == getattr(storage, "max_size", -1) else 0)
    ) % steps
    return torch.argsort(rows % width * steps + ages)


def to_spec(space: Mapping[str, Any] | None) -> Any:
    """Return the TorchRL spec of a Box, Discrete or Dict space, as in TorchRL; None for others.

    A `Discrete` that does not start at 0 is `Bounded`: TorchRL's class forgets the start.
    """
    kind = None if space is None else space.get("type")
    if space is not None and kind == "Dict":
        return theirs.Composite({name: to_spec(part) for name, part in space["subspaces"].items()})
    leaf = spaces_below(space).get(()) if kind in ("Box", "Discrete") else None
    if space is None or leaf is None:
        return None
    low, high = (np.broadcast_to(b, space.get("shape", ())) for b in (leaf.low, leaf.high))
    return _spec_of(replace(leaf, low=low, high=high), space.get("dtype", "int64"))


def to_composite(leaves: Mapping[Key, tuple[LeafSpace, str]]) -> Any:
    """Return the `Composite` of features with their stored dtypes, nested by parts of their keys.

    Whole numbers from 0 are `Categorical` (indices, not one-hot) or `MultiCategorical`; where the
    data have NaN, no component has a bound, or torch cannot compare (uint16 and wider), it is
    `Unbounded`. Bounds that the dtype cannot have are its own.
    """
    found = theirs.Composite()
    for key, (space, dtype) in leaves.items():
        found[key if len(key) > 1 else key[0]] = _spec_of(space, dtype)
    return found


def _spec_of(space: LeafSpace, stored: str) -> Any:
    dtype, shape = torch.from_numpy(np.zeros(0, stored)).dtype, torch.Size(space.low.shape)
    low, high = (np.array(bound) for bound in (space.low, space.high))
    free = np.isnan([low, high]).any() or (np.isneginf(low) & np.isposinf(high)).all()
    if free or stored in {"uint16", "uint32", "uint64"}:
        return theirs.Unbounded(shape, dtype=dtype)
    low, high = (_clamp(bound, np.dtype(stored)) for bound in (low, high))
    # the number of values must be a number of the dtype, with which TorchRL compares
    most = np.iinfo(stored).max if np.dtype(stored).kind in "iu" else np.inf
    counted = stored == "bool" or (space.kind != "Box" and high.max(initial=0) < most)
    if counted and not low.any():
        if (high == high.max(initial=0)).all():
            return theirs.Categorical(int(high.max()) + 1, shape=shape, dtype=dtype)
        return theirs.MultiCategorical((high.astype(int) + 1).tolist(), shape=shape, dtype=dtype)
    bounds = (torch.from_numpy(bound).to(dtype) for bound in (low, high))
    return theirs.Bounded(*bounds, shape, dtype=dtype)


def _clamp(bound: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind not in "iub":
        return bound
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    # float64 has no 2**63 - 1: what is not below it must not be converted
    inside = (bound > least) & (bound < most)
    found = np.where(bound >= most, np.array(most, dtype), np.array(least, dtype))
    found[inside] = bound[inside].astype(dtype)
    return found
