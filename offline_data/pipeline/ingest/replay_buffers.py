"""Replay buffers of Stable-Baselines3, TorchRL and d3rlpy as episodes; none of them is imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.episode.fields import (
    REWARD,
    TERMINATED,
    TRUNCATED,
    Dropped,
    Key,
    join_key,
)
from offline_data.formats.base import SourceInfo
from offline_data.formats.buffer_rows import (
    NEITHER,
    NOTE_OLDEST,
    BufferDataset,
    BufferRows,
    rows_of_ted,
)
from offline_data.formats.environments import space_to_json
from offline_data.formats.flat.arrays import array_of

NOTE_SCALED = (
    "Actions are as the buffer has them; Stable-Baselines3 scales those of a Box to [-1, 1]."
)
NOTE_ENDS = "The buffer does not tell time limits from other ends: every end is terminated."
NOTE_NO_FINAL = (
    "The buffer (optimize_memory_usage) has not kept the observation after most episodes."
)

_RINGS = {"RoundRobinWriter", "TensorDictRoundRobinWriter"}
_FIXED = {"ImmutableDatasetWriter"}


def episodes_of_buffer(buffer: Any) -> Any:
    """Return the episodes of a replay buffer as raw data or an iterable; None if it is not one.

    Raises `FormatError` if the buffer has lost their order, or is of a kind that is not read.
    """
    names = {
        f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(buffer).__mro__
    }
    if "stable_baselines3.ReplayBuffer" in names:
        return BufferDataset(_rows_of_sb3(buffer))
    if "d3rlpy.ReplayBufferBase" in names:
        return list(buffer.episodes)
    if "torchrl.ReplayBuffer" in names:
        return BufferDataset(_rows_of_torchrl(buffer._storage, buffer._writer))
    if "torchrl.Storage" in names:
        return BufferDataset(_rows_of_torchrl(buffer, None))
    return None


def _rows_of_sb3(buffer: Any) -> BufferRows:
    """Rows are `[buffer_size, n_envs]`; `pos` is the next one to be written."""
    size, count, pos = buffer.buffer_size, buffer.n_envs, int(buffer.pos)
    sparing = bool(buffer.optimize_memory_usage)
    oldest = pos + sparing  # the observation in row `pos` is that after the newest step
    times = np.arange(oldest, pos + size) % size if buffer.full else np.arange(pos)

    def flat(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        rows: NDArray[Any] = array.reshape(size * count, *shape)
        return rows

    def observations(name: str) -> dict[Key, NDArray[Any]]:
        value, space = getattr(buffer, name), buffer.observation_space
        if not isinstance(value, Mapping):
            return {("observation",): flat(value, space.shape)}
        return {("observation", k): flat(array, space[k].shape) for k, array in value.items()}

    timeouts = flat(buffer.timeouts, (1,)).astype(bool)
    box = type(buffer.action_space).__name__ == "Box"
    spaces = {"observation": space_to_json(buffer.observation_space)}
    if not box:
        spaces["action"] = space_to_json(buffer.action_space)
    notes = {
        NOTE_OLDEST: buffer.full,
        NOTE_SCALED: box,
        NOTE_ENDS: not buffer.handle_timeout_termination,
        NOTE_NO_FINAL: sparing,
    }
    return BufferRows(
        {
            ("action",): flat(buffer.actions, buffer.action_space.shape),
            REWARD: flat(buffer.rewards, (1,)),
            TERMINATED: flat(buffer.dones, (1,)).astype(bool) & ~timeouts,
            TRUNCATED: timeouts,
        },
        observations("observations"),
        {} if sparing else observations("next_observations"),
        [times * count + number for number in range(count)],
        [pos % size * count + number for number in range(count)],
        SourceInfo(spaces=spaces, notes=tuple(note for note, holds in notes.items() if holds)),
    )


def _rows_of_torchrl(storage: Any, writer: Any) -> BufferRows:
    """Rows are those of a TED tensordict; `_cursor` of the writer is the next one to be written."""
    count, full = len(storage), len(storage) >= storage.max_size
    if getattr(storage, "ndim", 1) != 1:
        raise FormatError(f"The storage has {storage.ndim} dimensions; expected 1")
    columns = _columns(getattr(storage, "_storage", storage), count)
    kind = type(writer).__name__
    if kind not in {*_RINGS, *_FIXED} and (full or writer is not None):
        said = (
            f"a {kind} writes in no order of time"
            if writer
            else "a full storage says no oldest row"
        )
        raise FormatError(
            f"The order of episodes is lost: {said}",
            hint="convert the ReplayBuffer of a storage; its writer must be a round-robin one",
        )
    oldest = int(writer._cursor) if kind in _RINGS and full else 0
    odd = [
        key
        for key, column in columns.items()
        if column.dtype == object and not all(isinstance(value, str) for value in column)
    ]
    dropped = tuple(Dropped(join_key(key), NEITHER) for key in odd)
    info = SourceInfo(notes=(NOTE_OLDEST,) if full else (), dropped=dropped)
    kept = {key: column for key, column in columns.items() if key not in odd}
    return rows_of_ted(kept, count, oldest, info)


def _columns(stored: Any, count: int) -> dict[Key, NDArray[Any]]:
    """Return the features of a tensordict, or of a list of them, as arrays of `count` rows."""
    if isinstance(stored, list):
        every = [_columns(one[None], 1) for one in stored[:count]]
        return (
            {key: np.concatenate([one[key] for one in every]) for key in every[0]} if every else {}
        )
    if not hasattr(stored, "batch_size"):
        raise FormatError(f"The storage holds a {type(stored).__name__}; expected a TensorDict")
    leaves = stored.items(include_nested=True, leaves_only=True, is_leaf=_is_leaf)
    return {
        (key,) if isinstance(key, str) else tuple(key): np.fromiter(leaf.tolist(), object, count)
        if _is_plain(type(leaf))
        else array_of(leaf, str(key))
        for key, leaf in ((key, leaf[:count]) for key, leaf in leaves)
    }


def _is_plain(kind: type) -> bool:
    return kind.__name__ in {"NonTensorData", "NonTensorStack"}


def _is_leaf(kind: type) -> bool:
    return _is_plain(kind) or not hasattr(kind, "batch_size")
