"""Files of a dataset directory mapped as torch tensors, privately, so the disk never changes."""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, NamedTuple

import torch

from offline_data.errors import AccessError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

# A private writable map counts against the memory limit unless it needs no reserve; otherwise a
# file larger than RAM and swap cannot be mapped. Python has the constant since 3.13.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

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

    Raises:
        NotFoundError: The file is missing or too short.
        AccessError: It cannot be read or mapped.
    """
    size, dtype = word_of(stride)
    if rows * stride == 0:
        return Map(torch.empty((rows, stride // size), dtype=dtype), None)
    try:
        with path.open("rb") as file:
            flags = mmap.MAP_PRIVATE | _NO_RESERVE
            rights = mmap.PROT_READ | mmap.PROT_WRITE
            memory = mmap.mmap(file.fileno(), rows * stride, flags=flags, prot=rights)
    except (FileNotFoundError, ValueError) as error:
        raise NotFoundError(
            f"{path} was deleted or truncated since the dataset was opened: {error}",
            hint="was the dataset deleted? download it again, then open it again",
        ) from error
    except OSError as error:
        raise AccessError(f"{path} cannot be mapped: {error.strerror}") from error
    return Map(torch.frombuffer(memory, dtype=dtype).view(rows, stride // size), memory)
