"""`to_numpy`: a dataset as the dict of arrays that CORL, IQL and D4RL scripts train from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.keys import KeyLike, as_key
from offline_data.buffers.storage import DatasetStorage
from offline_data.buffers.views.choosing import whole_of
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key
from offline_data.errors import UsageError
from offline_data.store.layout import EPISODE, OBSERVATIONS, TED

if TYPE_CHECKING:
    from typing import TypeAlias

    from numpy.typing import NDArray

    from offline_data.buffers.dataset import BaseDatasetExperienceReplay
    from offline_data.store.reader import DatasetReader

    Rows: TypeAlias = slice | NDArray[np.int64]

_ACTION: Key = ("action",)


def to_numpy(
    buffer: BaseDatasetExperienceReplay,
    *,
    valid_only: bool = True,
    observation_key: KeyLike | None = None,
    copy: bool = False,
) -> dict[str, NDArray[Any]]:
    """Return the transitions of a dataset, or a view of one, as six arrays of `n` rows.

    `observations` `[n, …]`, `actions` `[n, …]`, `rewards` `[n]`, `next_observations` `[n, …]`,
    `terminals` bool `[n]`, `timeouts` bool `[n]`: the names of D4RL's `qlearning_dataset`, dtypes
    as stored, in the order of the buffer. Unlike there, `next_observations` of a truncated
    transition is what was observed, not the beginning of the next episode.

    Where the rows follow each other in the dataset (a whole set that has no transition to leave
    out; a view of adjacent episodes), arrays are read-only, strided views of the files, and take no
    memory: steps always, observations where they are stored once a transition (layout `ted`) or
    are those of one episode. Otherwise they are copies, contiguous and writable: in layout
    `compact` `n` rows of `observations`, and as many of `next_observations`. What is writable is
    a copy; `copy=True` copies all.

    Nothing else is done to rows: transforms, `derived` and `device` of the buffer do not count,
    text is codes.

    Args:
        buffer: A dataset or a view.
        valid_only: Whether to leave out transitions whose next observation is unknown and that
            are not terminated. False: their `next_observations` repeat the last known one.
        observation_key: Leaf that is the observation; needed where there are several.
        copy: Whether to copy what could be a view.

    Raises:
        UsageError: The observation has several leaves, or the buffer's rows are whole episodes.
        NotFoundError: The dataset was deleted.

    Example:
        ```python
        data = ds.to_numpy()
        policy.train(data["observations"], data["actions"])
        ```
    """
    reader = buffer._steps_storage.reader
    key = _observation(reader, observation_key)
    rows = _rows(buffer, valid_only=valid_only)
    arrays = {
        "observations": _observations(reader, key, rows, after=False),
        "actions": reader.step(_ACTION)[rows],
        "rewards": _scalar(reader.step(REWARD)[rows]),
        "next_observations": _observations(reader, key, rows, after=True),
        "terminals": _scalar(reader.step(TERMINATED)[rows]),
        "timeouts": _scalar(reader.step(TRUNCATED)[rows]),
    }
    return {name: np.array(array) if copy else array for name, array in arrays.items()}


def _observation(reader: DatasetReader, key: KeyLike | None) -> Key:
    """Return the leaf that is the observation."""
    leaves = list(reader.observation_leaves)
    name = ("observation",) if key is None else as_key(key)
    found = [leaf for leaf in leaves if leaf[: len(name)] == name]
    if len(found) == 1:
        return found[0]
    known = ", ".join(map(join_key, found or leaves))
    raise UsageError(
        f"{join_key(name)} is {len(found)} leaves, and observations are one array",
        hint=f"observation_key=… names one of {known}",
    )


def _rows(buffer: BaseDatasetExperienceReplay, *, valid_only: bool) -> Rows:
    """Return the dataset's rows, as a slice where they follow each other."""
    storage = buffer.storage
    chosen = storage.rows(valid_only=valid_only)
    whole, row_map = whole_of(storage)
    if not isinstance(whole, DatasetStorage):
        raise UsageError(
            "The rows of this buffer are whole episodes, and arrays have a row a transition",
            hint="open the dataset without split_trajs=True",
        )
    rows = row_map.at(chosen.at(torch.arange(chosen.count))).numpy()
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _observations(reader: DatasetReader, key: Key, rows: Rows, *, after: bool) -> NDArray[Any]:
    """Return an observation leaf before or after each action, as a view where it can be one."""
    if isinstance(rows, slice):
        if TED in reader.manifest.tables:
            return reader.leaf(TED, ("next", *key) if after else key)[rows]
        first, last = reader.step(EPISODE)[[rows.start, rows.stop - 1]].tolist()
        if first == last:
            shift = first + int(after)
            return reader.leaf(OBSERVATIONS, key)[rows.start + shift : rows.stop + shift]
        rows = np.arange(rows.start, rows.stop)
    return reader.observations_at(key, rows, after=after)


def _scalar(column: NDArray[Any]) -> NDArray[Any]:
    """Drop the dimension that flags and rewards have in TED: `[n, 1]` becomes `[n]`."""
    return column[:, 0] if column.shape[1:] == (1,) else column
