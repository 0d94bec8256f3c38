"""Files of a dataset directory as torch tensors: mapped privately, so nothing reaches the disk."""

from __future__ import annotations

import mmap
import sys
from typing import TYPE_CHECKING, NamedTuple

import torch

from offline_data.errors import AccessError, NotFoundError

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

# A private writable map counts against memory unless it says that it needs no reserve; without
# this a file larger than RAM and swap cannot be mapped. Python names the flag from 3.13 on.
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)

_WORDS = ((8, torch.int64), (4, torch.int32), (2, torch.int16), (1, torch.uint8))


def word_of(stride: int) -> tuple[int, torch.dtype]:
    """Return the widest word, in bytes and as a type, that rows of `stride` bytes are made of."""
    return next((size, dtype) for size, dtype in _WORDS if stride % size == 0)


class Map(NamedTuple):
    """A file of rows in memory: words `[rows, stride // word]`, and the map that holds them.

    Writing to them changes this process's memory, not the file; no words have no map.
    """

    words: Tensor
    memory: mmap.mmap | None

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.words.numel() * self.words.itemsize


def map_file(path: Path, rows: int, stride: int) -> Map:
    """Map a file of `rows` rows of `stride` bytes.

    Raises:
        NotFoundError: The file is gone, or shorter than that.
        AccessError: It may not be read, or not be mapped.
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
            f"{path} is gone or was cut short since the dataset was opened: {error}",
            hint="was the dataset deleted? download it again, then open it again",
        ) from error
    except OSError as error:
        raise AccessError(f"{path} cannot be mapped: {error.strerror}") from error
    return Map(torch.frombuffer(memory, dtype=dtype).view(rows, stride // size), memory)
