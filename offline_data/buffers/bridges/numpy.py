"""`to_numpy`: a dataset as the dict of arrays that CORL, IQL and D4RL scripts train on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import torch

from offline_data.buffers.gather.mmap import map_file
from offline_data.buffers.keys import KeyLike, as_key
from offline_data.buffers.storage import DatasetStorage
from offline_data.buffers.views.rows import whole_of
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key, next_of
from offline_data.errors import UsageError
from offline_data.store.layout import OBSERVATIONS, STEPS, TED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.buffers.trajectories import TrajectoryStorage
    from offline_data.buffers.views.rows import SubsetStorage
    from offline_data.store.reader import DatasetReader

Style: TypeAlias = Literal["transitions", "episodes", "qlearning"]
"""Rows and arrays returned by `to_numpy`."""

STYLES: tuple[Style, ...] = get_args(Style)


def to_numpy(
    storage: DatasetStorage | TrajectoryStorage | SubsetStorage,
    style: Style = "transitions",
    *,
    observation_key: KeyLike | None = None,
    copy: bool = True,
) -> dict[str, NDArray[Any]]:
    """Return a dataset or view as arrays of `n` rows, in the order of the buffer.

    `BaseDatasetExperienceReplay.to_numpy` has the table of styles, keys, shapes and dtypes.

    Args:
        storage: Storage of a dataset or a view.
        style: See above.
        observation_key: Leaf to return as the observation; required if there are several.
        copy: Whether all arrays are contiguous copies. False: arrays are strided memory-mapped
            views of the files where the rows are contiguous on disk; writing to them changes this
            process's memory only. Encoded images are always decoded.

    Raises:
        UsageError: Several observation leaves and no `observation_key`, rows that are whole
            episodes, or `"episodes"` with end flags within an episode, which cannot be cut.
        NotFoundError: The dataset was deleted.
    """
    if style not in STYLES:
        raise UsageError(f"style is {style!r}; expected one of {', '.join(STYLES)}")
    steps = storage if isinstance(storage, DatasetStorage) else storage.steps
    steps.rows(valid_only=False)  # raises if the dataset was deleted
    whole, row_map = whole_of(storage)
    key = _observation(steps.reader, observation_key)
    if not isinstance(whole, DatasetStorage):
        raise UsageError(
            "The rows of this buffer are whole episodes; arrays have one row per transition",
            hint="open the dataset without split_trajs=True",
        )
    own = torch.arange(len(storage))
    if style == "transitions" and len(storage):
        valid = storage.rows(valid_only=True)
        own = valid.at(torch.arange(valid.count))
    table = _Table(steps.reader, row_map.at(own).numpy(), copy=copy)
    arrays = {
        "observations": table.observations(key, after=False),
        "actions": table.steps(("action",)),
        "rewards": table.scalars(REWARD),
        "next_observations": table.observations(key, after=True),
        "terminals": table.scalars(TERMINATED),
    }
    if style == "transitions":
        return arrays
    runs = storage.runs()
    last = (runs.starts + runs.lengths - 1).numpy()
    ends, truncated = arrays["terminals"], np.array(table.scalars(TRUNCATED), dtype=bool)
    inside = ends | truncated
    inside[last] = False
    if style == "episodes" and inside.any():
        raise UsageError(
            f"{int(inside.sum())} rows within episodes, the first of them row {int(inside.argmax())}, "
            "are terminated or truncated, so that code that cuts at terminals | timeouts would cut "
            "these episodes",
            hint="ds.episodes.start and .length are the episodes' rows; style='transitions' has no "
            "episodes",
        )
    truncated[last] |= ~ends[last]
    return (
        {**arrays, "timeouts": truncated} if style == "episodes" else _qlearning(arrays, truncated)
    )


def _qlearning(
    arrays: dict[str, NDArray[Any]], timeouts: NDArray[np.bool_]
) -> dict[str, NDArray[Any]]:
    """Apply D4RL's `qlearning_dataset` to all rows.

    https://github.com/Farama-Foundation/D4RL/blob/master/d4rl/__init__.py
    """
    kept = np.flatnonzero(~timeouts[:-1])
    observations = arrays["observations"]
    return {
        "observations": observations[kept].astype(np.float32),
        "actions": arrays["actions"][kept].astype(np.float32),
        "next_observations": observations[kept + 1].astype(np.float32),
        "rewards": arrays["rewards"][kept].astype(np.float32),
        "terminals": arrays["terminals"][kept],
    }


def _observation(reader: DatasetReader, key: KeyLike | None) -> Key:
    """Return the key of the observation leaf."""
    leaves = [*reader.observation_leaves, *reader.manifest.two_copies]
    name = ("observation",) if key is None else as_key(key)
    found = [leaf for leaf in leaves if leaf[: len(name)] == name]
    if len(found) == 1:
        return found[0]
    known = ", ".join(map(join_key, found or leaves))
    raise UsageError(
        f"{join_key(name)} is {len(found)} leaves; observations must be one array",
        hint=f"set observation_key=… to one of {known}",
    )


class _Table:
    """Leaves at selected rows of a dataset, as arrays; for `copy` see `to_numpy`."""

    def __init__(self, reader: DatasetReader, rows: NDArray[np.int64], *, copy: bool) -> None:
        self._reader, self._rows, self._copy = reader, rows, copy

    def observations(self, key: Key, *, after: bool) -> NDArray[Any]:
        """Return an observation leaf before or after each action."""
        reader = self._reader
        if key not in reader.observation_leaves or TED in reader.manifest.tables:
            return self.steps(next_of(key) if after else key)
        episodes = np.searchsorted(reader.starts, self._rows, side="right") - 1
        return self._leaf(OBSERVATIONS, key, self._rows + episodes + int(after))

    def steps(self, key: Key) -> NDArray[Any]:
        """Return a leaf with one row per transition."""
        return self._leaf(STEPS if STEPS in self._reader.manifest.tables else TED, key, self._rows)

    def scalars(self, key: Key) -> NDArray[Any]:
        """Return a leaf without the last dimension of TED's flags and rewards: `[n, 1]` as `[n]`."""
        column = self.steps(key)
        column = column[:, 0] if column.shape[1:] == (1,) else column
        return np.array(column) if self._copy else column

    def _leaf(self, table: str, key: Key, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return rows of a leaf: a copy, or a view if `copy` is False and the rows allow it."""
        reader = self._reader
        leaf, spec = reader.leaf(table, key), reader.manifest.tables[table][key]
        if not len(rows) or (np.diff(rows) != 1).any():
            return np.array(leaf[rows], order="C")
        run = slice(int(rows[0]), int(rows[-1]) + 1)
        if self._copy or not leaf.size or spec.encoding:
            return np.array(leaf[run], order="C")
        # Mapped privately: torch may write to read-only arrays, which would crash the process.
        words = map_file(reader.path / spec.file, len(leaf), spec.stride).words.numpy()
        shared: NDArray[Any] = np.ndarray(
            leaf.shape, leaf.dtype, words.reshape(-1).view(np.uint8), spec.offset, leaf.strides
        )
        return shared[run]
