"""`to_numpy`: a dataset as the dict of arrays that CORL, IQL and D4RL scripts train from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from offline_data.buffers.keys import KeyLike, as_key
from offline_data.buffers.maps import map_rows
from offline_data.buffers.storage import DatasetStorage
from offline_data.buffers.views.choosing import whole_of
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key, next_of
from offline_data.errors import UsageError
from offline_data.store.layout import OBSERVATIONS, STEPS, TED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.buffers.dataset import BaseDatasetExperienceReplay
    from offline_data.store.reader import DatasetReader

    Rows: TypeAlias = slice | NDArray[np.int64]

Style: TypeAlias = Literal["transitions", "episodes", "qlearning"]
"""Which rows and which arrays `to_numpy` returns."""

STYLES: tuple[Style, ...] = ("transitions", "episodes", "qlearning")

_ACTION: Key = ("action",)


def to_numpy(
    buffer: BaseDatasetExperienceReplay,
    style: Style = "transitions",
    *,
    observation_key: KeyLike | None = None,
    copy: bool = True,
) -> dict[str, NDArray[Any]]:
    """Return a dataset, or a view of one, as arrays of `n` rows, in the order of the buffer.

    | style | rows | arrays | can be cut by flags |
    |---|---|---|---|
    | `"transitions"` | all whose next observation is known, or that are terminated | `observations`, `actions`, `rewards`, `next_observations`, `terminals` | no: rows that end episodes may be missing, so there are no `timeouts` |
    | `"episodes"` | all | the same and `timeouts` | yes: where `terminals` or `timeouts` is set, exactly episodes end |
    | `"qlearning"` | all but the last one and those that time out | as `"transitions"`, as D4RL's `qlearning_dataset` makes them | no |

    - `"transitions"` is what Q-learning needs, and the default: every row may be bootstrapped from.
      It has the names of D4RL's `qlearning_dataset`, so that CORL's and IQL's scripts take it, and
      more rows: here the transition before a time-out is kept where the observation after it is
      known.
    - `"episodes"` is what D4RL's `env.get_dataset()` gives, for `sequence_dataset`, Decision
      Transformer and other code that cuts episodes itself. `timeouts` is set at the last row of
      every episode that does not end terminated, whether the source has a flag there or not; of a
      view that has pieces of an episode, at the last row of each piece. If the observation after
      the last action is not known, `next_observations` repeats the one before it (`valid_rows`
      are all other rows).
    - `"qlearning"` is what D4RL's `qlearning_dataset` returns for these episodes, number for number:
      numbers are float32, and `next_observations` is the observation of the next row, so that of
      a terminated row is the beginning of the next episode. To repeat published results.

    `observations` and `next_observations` are `[n, …]`, `actions` `[n, …]`, `rewards` `[n]`;
    `terminals` and `timeouts` are bool `[n]`. Dtypes are as stored, but with `"qlearning"`. Rows are
    as stored: transforms, `derived` and `device` of the buffer do not count, text is codes.

    Args:
        buffer: A dataset or a view.
        style: See above.
        observation_key: Leaf that is the observation; needed where there are several.
        copy: Whether all arrays are copies, contiguous. False: where rows follow each other in the
            dataset, arrays that can be are strided views of the files that take no memory;
            writing to them changes this process's memory only.

    Returns:
        Arrays that may be written to; the dataset never changes.

    Raises:
        UsageError: The observation has several leaves, the buffer's rows are whole episodes, or
            `"episodes"` of a dataset with end flags inside of episodes, which then cannot be cut.
        NotFoundError: The dataset was deleted.

    Example:
        ```python
        data = ds.to_numpy()
        policy.train(data["observations"], data["actions"])
        ```
    """
    if style not in STYLES:
        raise UsageError(f"style is {style!r}; expected one of {', '.join(STYLES)}")
    buffer._steps_storage.rows(valid_only=False)  # raises if the dataset was deleted
    reader = buffer._steps_storage.reader
    key = _observation(reader, observation_key)
    rows = _rows(buffer, valid_only=style == "transitions")
    arrays = {
        "observations": _observations(reader, key, rows, after=False, copy=copy),
        "actions": _steps(reader, _ACTION, rows, copy=copy),
        "rewards": _scalar(reader, REWARD, rows, copy=copy),
        "next_observations": _observations(reader, key, rows, after=True, copy=copy),
        "terminals": _scalar(reader, TERMINATED, rows, copy=copy),
    }
    if style != "transitions":
        arrays["timeouts"] = _timeouts(buffer, rows, arrays["terminals"], style)
    return _as_qlearning(arrays) if style == "qlearning" else arrays


def _as_qlearning(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Do to all rows what D4RL's `qlearning_dataset` does.

    https://github.com/Farama-Foundation/D4RL/blob/master/d4rl/__init__.py
    """
    kept = np.flatnonzero(~arrays["timeouts"][:-1])
    observations = arrays["observations"]
    return {
        "observations": observations[kept].astype(np.float32),
        "actions": arrays["actions"][kept].astype(np.float32),
        "next_observations": observations[kept + 1].astype(np.float32),
        "rewards": arrays["rewards"][kept].astype(np.float32),
        "terminals": arrays["terminals"][kept],
    }


def _timeouts(
    buffer: BaseDatasetExperienceReplay, rows: Rows, terminals: NDArray[Any], style: Style
) -> NDArray[np.bool_]:
    """Return which rows are the last of an episode that does not end terminated there."""
    truncated = _scalar(buffer._steps_storage.reader, TRUNCATED, rows, copy=True).astype(bool)
    runs = buffer.storage.runs()
    last = (runs.starts + runs.lengths - 1).numpy()
    inside = terminals | truncated
    inside[last] = False
    if style == "episodes" and inside.any():
        row = int(inside.argmax())
        raise UsageError(
            f"{int(inside.sum())} rows inside of episodes, row {row} the first, are terminated or "
            "truncated, so that code that cuts at terminals | timeouts would cut episodes apart",
            hint="ds.episodes.start and .length are the episodes' rows; style='transitions' has no "
            "episodes",
        )
    truncated[last] |= ~terminals[last]
    return truncated


def _observation(reader: DatasetReader, key: KeyLike | None) -> Key:
    """Return the leaf that is the observation."""
    leaves = [*reader.observation_leaves, *reader.manifest.two_copies]
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
    whole, row_map = whole_of(buffer.storage)
    if not isinstance(whole, DatasetStorage):
        raise UsageError(
            "The rows of this buffer are whole episodes; arrays have one row per transition",
            hint="open the dataset without split_trajs=True",
        )
    own = buffer.valid_rows if valid_only else torch.arange(len(buffer))
    rows = row_map.at(own).numpy()
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _observations(
    reader: DatasetReader, key: Key, rows: Rows, *, after: bool, copy: bool
) -> NDArray[Any]:
    """Return an observation leaf before or after each action."""
    if key not in reader.observation_leaves or TED in reader.manifest.tables:
        return _steps(reader, next_of(key) if after else key, rows, copy=copy)
    if isinstance(rows, slice):
        first, last = _episodes_of(reader, np.array([rows.start, rows.stop - 1])).tolist()
        if first == last:
            shift = first + int(after)
            rows = slice(rows.start + shift, rows.stop + shift)
            return _leaf(reader, OBSERVATIONS, key, rows, copy=copy)
        rows = np.arange(rows.start, rows.stop)
    return _leaf(
        reader, OBSERVATIONS, key, rows + _episodes_of(reader, rows) + int(after), copy=copy
    )


def _episodes_of(reader: DatasetReader, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the episode of each row, by where episodes start, which was checked."""
    return np.searchsorted(reader.starts, rows, side="right") - 1


def _steps(reader: DatasetReader, key: Key, rows: Rows, *, copy: bool) -> NDArray[Any]:
    table = STEPS if STEPS in reader.manifest.tables else TED
    return _leaf(reader, table, key, rows, copy=copy)


def _scalar(reader: DatasetReader, key: Key, rows: Rows, *, copy: bool) -> NDArray[Any]:
    """Return a leaf without the dimension that flags and rewards have in TED: `[n, 1]` is `[n]`."""
    column = _steps(reader, key, rows, copy=False)
    column = column[:, 0] if column.shape[1:] == (1,) else column
    return np.array(column) if copy else column


def _leaf(reader: DatasetReader, table: str, key: Key, rows: Rows, *, copy: bool) -> NDArray[Any]:
    """Return rows of a leaf: a copy, or where that is not asked for and they can be, a view."""
    leaf = reader.leaf(table, key)
    if copy or not isinstance(rows, slice) or not leaf.size:
        return np.array(leaf[rows], order="C")
    spec = reader.manifest.tables[table][key]
    # Mapped privately: torch writes to arrays that are read-only, which would end the process.
    words = map_rows(reader.path / spec.file, len(leaf), spec.stride).numpy()
    shared: NDArray[Any] = np.ndarray(
        leaf.shape, leaf.dtype, words.reshape(-1).view(np.uint8), spec.offset, leaf.strides
    )
    return shared[rows]
