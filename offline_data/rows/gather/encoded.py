"""Encoded features of batches: decoded to tensors in threads, or returned as bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack

from offline_data.base.errors import UsageError
from offline_data.episode.fields import Key, join_key, next_of
from offline_data.store.layout import OBSERVATIONS, STEPS, VIDEO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from torch import Tensor

    from offline_data.store.encoded import EncodedColumn
    from offline_data.store.reader import DatasetReader

EncodedLeaf: TypeAlias = tuple[str, Key, int]
"""Table and key of an encoded feature, and for observations 0 before or 1 after an action."""


def encoded_leaves(reader: DatasetReader) -> dict[Key, EncodedLeaf]:
    """Return the features of batches that the dataset stores encoded."""
    leaves = {k: (STEPS, k, 0) for k, leaf in reader.step_leaves.items() if leaf.encoding}
    for key, leaf in reader.observation_leaves.items():
        if leaf.encoding:
            leaves |= {key: (OBSERVATIONS, key, 0), next_of(key): (OBSERVATIONS, key, 1)}
    return leaves


class EncodedGather:
    """Gathers raw features with `gather`, and encoded ones into the slots after those.

    `decode`: whether encoded features are pixels on `device`; else numbers for `ImageBytes`.
    """

    def __init__(
        self,
        gather: Callable[[Tensor], list[Tensor]],
        leaves: Mapping[int, EncodedLeaf],
        reader: DatasetReader,
        device: torch.device,
        *,
        pin_memory: bool,
        in_memory: bool,
        decode: bool,
    ) -> None:
        self._gather, self._reader, self._device = gather, reader, device
        self._pin, self._decode = pin_memory, decode
        self._columns: dict[tuple[str, Key], EncodedColumn] = {}
        self._slots: dict[tuple[str, Key], list[tuple[int, int]]] = {}
        for slot, (table, key, after) in leaves.items():
            column: Any = reader.leaf(table, key)
            self._columns[table, key] = column.in_memory() if in_memory else column
            self._slots.setdefault((table, key), []).append((slot, after))

    def __call__(self, rows: Tensor) -> list[Tensor]:
        """Return the features of `rows` `[B]`, by slot; raises `IndexError`, `FormatError`."""
        steps = rows.to("cpu", torch.int64).numpy()
        if len(steps) and not 0 <= steps.min() <= steps.max() < self._reader.transitions:
            raise IndexError(f"Rows {steps.min()} to {steps.max()} are out of range")
        roots = steps + self._reader.episode_of(steps)
        found: dict[int, Tensor] = {}
        for leaf, places in self._slots.items():  # before and after the action together
            wanted = [steps if leaf[0] == STEPS else roots + after for _, after in places]
            if self._decode:
                tensors = self._decode_rows(
                    self._columns[leaf][np.concatenate(wanted)], len(wanted)
                )
            else:
                tensors = [torch.from_numpy(rows + 1).to(self._device) for rows in wanted]
            found.update(zip((slot for slot, _ in places), tensors, strict=True))
        return [*self._gather(rows), *(found[slot] for slot in sorted(found))]

    def _decode_rows(self, column: EncodedColumn, parts: int) -> list[Tensor]:
        shape = (len(column) // parts, *column.shape[1:])
        dtype = getattr(torch, column.dtype.name)
        leaves = [
            torch.empty(shape, dtype=dtype, pin_memory=True)
            if self._pin
            else torch.from_numpy(np.empty(shape, column.dtype))  # huge pages, unlike torch's
            for _ in range(parts)
        ]
        column.decode([row for leaf in leaves for row in leaf.numpy()], torch.get_num_threads())
        return [leaf.to(self._device, non_blocking=self._pin) for leaf in leaves]


class ImageBytes:
    """Replaces numbers of images (a row of the table + 1, or 0 for padding) by their bytes."""

    def __init__(self, reader: DatasetReader, keys: Iterable[Key]) -> None:
        self._reader, self._keys = reader, tuple(keys)
        leaves = encoded_leaves(reader)
        for key in self._keys:
            if reader.manifest.tables[leaves[key][0]][leaves[key][1]].encoding == VIDEO:
                raise UsageError(
                    f"decode=False hands out the bytes of images, and {join_key(key)!r} is a video, "
                    "whose frames have none of their own",
                    hint="leave decode=False out, or the feature: keys=[…]",
                )

    def __call__(self, batch: Any) -> Any:
        """Set features to `NonTensorStack`s of `bytes` (None: padding); returns the batch."""
        leaves = encoded_leaves(self._reader)
        for key in self._keys:
            numbers = batch.get(key)
            if numbers.dtype != torch.int64:
                raise UsageError(
                    f"With decode=False the feature {join_key(key)!r} is the bytes of images, which "
                    "derived= cannot compute with",
                    hint="leave out decode=False",
                )
            column: Any = self._reader.leaf(*leaves[key][:2])
            rows = numbers.cpu().numpy()
            images = np.full(rows.shape, None, object)
            images[rows > 0] = np.array([*column[rows[rows > 0] - 1].images(), None], object)[:-1]
            leaf: Any = NonTensorData(images[()], batch_size=[])
            batch.set(key, NonTensorStack.from_list(images.tolist()) if rows.ndim else leaf)
        return batch
