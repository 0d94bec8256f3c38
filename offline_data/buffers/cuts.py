"""Gathered rows as leaves: where a block of words is cut, and the cutting."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


@dataclass(frozen=True)
class Place:
    """One leaf in a row of a block."""

    slot: int
    """Number of the leaf in the batch."""
    dtype: torch.dtype
    """Its item type."""
    shape: tuple[int, ...]
    """Shape of one row of it."""
    offset: int
    """Bytes from the beginning of the row; a multiple of the item size."""
    count: int
    """Items in one row of it."""

    @property
    def end(self) -> int:
        """Bytes from the beginning of the row to the end of the leaf."""
        return self.offset + self.count * self.dtype.itemsize


@dataclass(frozen=True)
class Cut:
    """All leaves of one item type in a block, cut out by one operation."""

    dtype: torch.dtype
    """The type that the words of the block are seen as."""
    sizes: tuple[int, ...]
    """Items of each piece of a row, in order; what lies between leaves is a piece too."""
    leaves: tuple[tuple[int, Place], ...]
    """Number of the piece that each leaf is."""
    whole: bool
    """Whether the block is one leaf and nothing else."""


def cuts_of(places: Iterable[Place], width: int) -> tuple[Cut, ...]:
    """Plan the cutting of rows of `width` bytes into leaves, an operation per item type."""
    ordered = sorted(places, key=lambda place: (str(place.dtype), place.offset))
    return tuple(
        _cut(dtype, list(group), width) for dtype, group in groupby(ordered, attrgetter("dtype"))
    )


def _cut(dtype: torch.dtype, places: list[Place], width: int) -> Cut:
    # Rows are padded to 8 bytes: a block of them cannot be seen as items of 16.
    seen = dtype if dtype.itemsize <= torch.int64.itemsize else torch.int64
    sizes, leaves, done = [], [], 0
    for place in places:
        begin, end = place.offset // seen.itemsize, place.end // seen.itemsize
        if begin > done:
            sizes.append(begin - done)
        leaves.append((len(sizes), place))
        sizes.append(end - begin)
        done = end
    if done < width // seen.itemsize:
        sizes.append(width // seen.itemsize - done)
    return Cut(seen, tuple(sizes), tuple(leaves), len(sizes) == 1)


def cut_into(leaves: list[Tensor], block: Tensor, cuts: Iterable[Cut]) -> None:
    """Put the leaves of a block `[B, words]` into their slots, each `[B, *shape]`.

    Each leaf is contiguous and has memory of its own, so that writing to one in place, saving it
    or sending it to another process has nothing to do with the others.
    """
    rows = block.shape[0]
    for cut in cuts:
        if cut.whole:
            place = cut.leaves[0][1]
            leaves[place.slot] = block.view(place.dtype).view(rows, *place.shape)
            continue
        pieces = torch.split_with_sizes(block.view(cut.dtype), cut.sizes, 1)
        for piece, place in cut.leaves:
            leaf = pieces[piece].clone(memory_format=torch.contiguous_format)
            leaves[place.slot] = leaf.view(place.dtype).view(rows, *place.shape)
