"""Files of a dataset directory mapped as torch tensors, privately, so the disk never changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from offline_data.base.files import map_privately

if TYPE_CHECKING:
    import mmap
    from pathlib import Path

    from torch import Tensor

_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


def word_of(stride: int) -> tuple[int, torch.dtype]:
    """Return the widest word, as bytes and dtype, that divides rows of `stride` bytes."""
    return next((size, dtype) for size, dtype in _WORDS if stride % size == 0)


class Map(NamedTuple):
    """A memory-mapped file of rows: words `[rows, stride // word]` and the map that owns them.

    Writing to them changes this process's memory, not the file. `memory` is None without rows.
    """

    words: Tensor
    memory: mmap.mmap | None

    @property
    def nbytes(self) -> int:
        """Size of all rows in bytes."""
        return self.words.numel() * self.words.itemsize


def map_file(path: Path, rows: int, stride: int) -> Map:
    """Map a file of `rows` rows of `stride` bytes.

    Raises `NotFoundError` if it is missing or too short, and `AccessError` if it cannot be read.
    """
    size, dtype = word_of(stride)
    if rows * stride == 0:
        return Map(torch.empty((rows, stride // size), dtype=dtype), None)
    memory = map_privately(path, rows * stride)
    return Map(torch.frombuffer(memory, dtype=dtype).view(rows, stride // size), memory)
