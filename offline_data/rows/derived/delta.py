"""`delta_timestamps`: features at several times around a row, as LeRobot's datasets have them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.ids import unknown
from offline_data.episode.fields import Key, join_key
from offline_data.rows.derived.base import CachedLeaf, check_rows
from offline_data.rows.derived.stack import gather_around
from offline_data.rows.keys import as_key
from offline_data.rows.storage import Storage

if TYPE_CHECKING:
    from tensordict import TensorDict

    from offline_data.store.reader import DatasetReader

TOLERANCE = 1e-4  # seconds by which a time may differ from a multiple of `1 / fps`


def pad_key(key: Key) -> Key:
    """Return the key of the mask of a feature, next to it: `top_is_pad` of `top`."""
    return (*key[:-1], f"{key[-1]}_is_pad")


def delta_timestamps(
    deltas: Mapping[Any, Iterable[float]], fps: float, *, tolerance_s: float = TOLERANCE
) -> DeltaTimestamps:
    """Set features to their values at several times, in seconds from that of the row.

    ```
    row              t                          [-0.1, 0.0, 0.1] at 10 fps
    action           a_t-1  a_t    a_t+1        in the first row of an episode   a_0   a_0    a_1
    action_is_pad    False  False  False                                         True  False  False
    ```

    As in LeRobot, a feature becomes `[B, k, *shape]`; `KEY_is_pad`, bool `[B, k]` next to it, is
    True for times outside of the episode, where the first or last row is repeated.

    Args:
        deltas: Seconds by feature; `observation.images.top` and `("observation", "images", "top")`
            are the same.
        fps: Rows in a second.
        tolerance_s: Seconds by which a time may differ from a multiple of `1 / fps`.

    Raises:
        UsageError: A time that is not such a multiple; or, on the first batch, a missing feature.

    Example:
        >>> delta_timestamps({"action": [0, 0.1, 0.2]}, 10)
        DeltaTimestamps(offsets=((('action',), (0, 1, 2)),))
    """
    found: dict[Key, tuple[int, ...]] = {}
    for key, times in deltas.items():
        seconds = [float(one) for one in times]
        odd = [one for one in seconds if not abs(one * fps - round(one * fps)) / fps <= tolerance_s]
        if odd or not seconds:
            raise UsageError(
                f"delta_timestamps of {join_key(as_key(key))!r} are {seconds or 'empty'}; expected "
                f"multiples of 1/{fps:g} s" + (f", which {odd[0]:g} is not" if odd else "")
            )
        found[as_key(key)] = tuple(round(one * fps) for one in seconds)
    return DeltaTimestamps(tuple(found.items()))


def deltas_of(reader: DatasetReader, deltas: Mapping[Any, Iterable[float]]) -> DeltaTimestamps:
    """Return `delta_timestamps` with the `fps` that the dataset states; raises `UsageError`."""
    fps = reader.manifest.about.get("fps")
    if not isinstance(fps, int | float) or not 0 < fps < 1e6:
        raise UsageError(
            f"{reader.manifest.id} does not state how many rows a second has",
            hint="pass derived=delta_timestamps({…}, fps=…)",
        )
    made = delta_timestamps(deltas, fps)
    known = [*reader.leaves]
    for key in made.keys:
        if key not in known:
            names = [join_key(one) for one in known]
            raise unknown(UsageError, "delta_timestamps: no feature", join_key(key), names)
    return made


@dataclass(frozen=True)
class DeltaTimestamps(CachedLeaf):
    """Result of `delta_timestamps`, which documents the result."""

    offsets: tuple[tuple[Key, tuple[int, ...]], ...]
    """Rows from that of the batch, by feature."""

    @property
    def keys(self) -> tuple[Key, ...]:
        """Features that are set."""
        return tuple(key for key, _ in self.offsets)

    def __call__(self, batch: TensorDict, rows: Tensor, storage: Storage) -> TensorDict:
        check_rows("delta_timestamps", batch)
        together: dict[tuple[int, ...], list[Key]] = {}
        for key, offsets in self.offsets:
            together.setdefault(offsets, []).append(key)
        for offsets, keys in together.items():
            leaves, inside = gather_around(
                self._memory, storage, tuple(keys), rows, torch.tensor(offsets)
            )
            for key, leaf in leaves.items():
                batch.set(key, leaf)
                batch.set(pad_key(key), ~inside.to(leaf.device))
        return batch
