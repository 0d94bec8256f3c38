"""The bridge to TorchRL: a real `TensorDictReplayBuffer` of it over a dataset's own memory."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.chain import through
from offline_data.buffers.indexing import rows_of
from offline_data.buffers.lazy_columns import Collate, LazyColumns
from offline_data.buffers.load import load_dataset
from offline_data.buffers.samplers import Sampler
from offline_data.errors import ImmutableError, MissingDependencyError, UsageError

with warnings.catch_warnings():  # it deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs
    import torchrl.data.datasets as their_datasets

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from torch import Tensor

    from offline_data.buffers.dataset import BaseDatasetExperienceReplay

_OURS = (
    *("root", "download", "revision", "layout", "view"),
    *("keys", "device", "derived", "decode_text", "split_trajs"),
)
"""Options of `load_dataset` that say what the data are; the others are TorchRL's buffer's."""


class RowsStorage(theirs.Storage):  # type: ignore[misc]
    """A storage of TorchRL whose rows are gathered from a dataset when they are asked for.

    Nothing is copied when it is made, and it can only be read. `storage[:]` is what TorchRL's
    samplers look at to find trajectories: `LazyColumns`, which reads a leaf when asked for it.

    Args:
        buffer: A dataset or a view; batches are what it would give, before its transforms.
        valid_only: Whether rows whose next observation is unknown, and that are not terminated,
            are left out: rows are then numbered without them.
    """

    def __init__(self, buffer: BaseDatasetExperienceReplay, *, valid_only: bool = True) -> None:
        self._buffer = buffer
        self._rows = buffer.storage.rows(valid_only=valid_only)
        self._columns = LazyColumns(buffer.storage, self._rows, self._gather)
        super().__init__(max_size=self._rows.count)

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self._rows.count)

    def rows(self, index: Tensor) -> Tensor:
        """Return the buffer's rows of `batch["index"]`, int64 `[B]`.

        Args:
            index: `[B]`, or `[B, 1]` as TorchRL's slice samplers have it.
        """
        return self._rows_at(index).reshape(len(index))

    def get(self, index: Any) -> Any:
        """Return a batch of the index's shape; for `[:]` see above."""
        if isinstance(index, slice) and index == slice(None):
            return self._columns
        rows = self._rows_at(index[0] if isinstance(index, tuple) else index)
        batch = self._gather(rows.reshape(-1))
        return batch if rows.ndim == 1 else batch.reshape(rows.shape + batch.shape[1:])

    def _rows_at(self, index: Any) -> Tensor:
        return self._rows.at(rows_of(index, len(self)))

    def _gather(self, rows: Tensor) -> Any:
        return through(self._buffer._first, self._buffer._gather(rows))

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:  # noqa: ARG002
        """Raise `ImmutableError`."""
        raise _immutable()

    def _empty(self) -> None:
        raise _immutable()

    def contains(self, item: Any) -> Any:
        """Tell which of these rows there are, bool of the same shape."""
        rows = torch.as_tensor(item)
        found = (rows >= -len(self)) & (rows < len(self))
        return bool(found) if found.ndim == 0 else found

    def state_dict(self) -> dict[str, Any]:
        """Return how many rows there are: they themselves are in the dataset."""
        return {"rows": len(self)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that the state is of as many rows; raises `UsageError`."""
        if state_dict["rows"] != len(self):
            raise UsageError(f"The state is of {state_dict['rows']} rows; here are {len(self)}")

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict()` to a folder."""
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "rows.json").write_text(json.dumps(self.state_dict()))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Check what `dumps` wrote; raises `UsageError`."""
        self.load_state_dict(json.loads((Path(path) / "rows.json").read_text()))


def to_torchrl(
    buffer: BaseDatasetExperienceReplay,
    *,
    valid_only: bool = True,
    batch_size: int | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    transform: Callable[[Any], Any] | None = None,
    **torchrl: Any,
) -> Any:
    """Return a `torchrl.data.TensorDictReplayBuffer` over the files of a dataset or a view.

    It is TorchRL's own class (this package's buffers are not, and `isinstance` tells), with its
    samplers, transforms and `ImmutableDatasetWriter`; batches are gathered from the same memory as
    the buffer's, so `derived`, `device`, text and the buffer's transforms are as there. Nothing is
    copied, but a leaf that a sampler looks for trajectories in: 8 bytes a row, once.

    TorchRL's samplers draw any row of a storage, so `valid_only` decides what rows there are.
    `batch["index"]` has rows of this storage; `rb.storage.rows(index)` has the buffer's.
    `SliceSampler(…, cache_values=True)` looks for trajectories once, and not for every batch.

    Args:
        buffer: A dataset or a view.
        valid_only: Whether to leave out transitions whose next observation is unknown and that
            are not terminated; a slice then ends a row before them.
        batch_size: Rows of a batch; None: the buffer's.
        collate_fn: Called with every batch, before transforms.
        transform: Called after the buffer's own transforms.
        **torchrl: Other arguments of `TensorDictReplayBuffer`: `sampler`, `prefetch`, ….

    Raises:
        UsageError: A sampler of this package, a storage or a writer; nothing to sample.
    """
    _refuse(torchrl)
    made = theirs.TensorDictReplayBuffer(
        storage=RowsStorage(buffer, valid_only=valid_only),
        writer=theirs.ImmutableDatasetWriter(),
        collate_fn=Collate(collate_fn),
        batch_size=buffer.batch_size if batch_size is None else batch_size,
        **torchrl,
    )
    for one in (*buffer._transforms, *(() if transform is None else (transform,))):
        made.append_transform(one)
    return made


def torchrl_dataset(id: str, **options: Any) -> Any:
    """Load a dataset as TorchRL's buffer: `load_dataset(id, …).to_torchrl(…)`.

    After `register_in_torchrl()`, or `register_dataset(…)`, it is what
    `torchrl.data.datasets.load_dataset("offline_data:" + id)` calls.

    Args:
        id: `source:name[@revision]`, or the path of a dataset directory.
        **options: Those of `load_dataset` that say what the data are (`root`, `download`, `keys`,
            …), and those of `to_torchrl`.

    Raises:
        OfflineDataError: See `load_dataset` and `to_torchrl`.
    """
    own = {name: options.pop(name) for name in _OURS if name in options}
    return to_torchrl(load_dataset(id, **own), **options)


def register_in_torchrl() -> None:
    """Make `torchrl.data.datasets.load_dataset("offline_data:minari:…")` load datasets from here.

    It gives what `torchrl_dataset` gives. TorchRL looks for no plugins, so that this has to be
    called once in a program.

    Raises:
        MissingDependencyError: This version of TorchRL has no registry of datasets.
    """
    register = getattr(their_datasets, "register_dataset", None)
    if register is None:
        raise MissingDependencyError(
            "This version of torchrl has no registry of datasets",
            hint="pip install -U torchrl, or use offline_data.torchrl_dataset(id)",
        )
    register("offline_data", "offline_data.buffers.torchrl:torchrl_dataset", replace=True)


def _refuse(torchrl: dict[str, Any]) -> None:
    for name in ("storage", "writer"):
        if name in torchrl:
            raise UsageError(
                f"to_torchrl(…) brings its own {name}, over a dataset that is immutable"
            )
    if isinstance(torchrl.get("sampler"), Sampler):
        raise UsageError(
            f"{torchrl['sampler']!r} is a sampler of this package; TorchRL's buffer takes TorchRL's",
            hint="torchrl.data.replay_buffers has the same names",
        )


def _immutable() -> ImmutableError:
    return ImmutableError(
        "A dataset is immutable",
        hint="write to a torchrl.data.LazyMemmapStorage of your own, beside it",
    )
