"""The leaves of a batch by torch alone: an `index_select` per table, then a copy per leaf."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import torch

from offline_data.buffers.gather.mmap import word_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from offline_data.buffers.gather.plan import Gather, GatherPlan, Place


class LeafSplit(NamedTuple):
    """All leaves of one item type in a block of gathered rows, split off by one operation.

    Words are seen as `dtype`; a row has pieces of `sizes` items, one for each leaf (with its
    number in `leaves`) and for what lies between.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    leaves: tuple[tuple[int, Place], ...]


class TorchGather:
    """Gathers where the files are, moves each block at once, and splits it where batches go.

    Each leaf is contiguous and has memory of its own. `maps` has the file of each of the plan's
    gathers, as words `[rows, words]`: a map on the CPU, or copied to the device. With
    `pin_memory` blocks are put into page-locked memory first.
    """

    def __init__(
        self,
        plan: GatherPlan,
        maps: Sequence[Tensor],
        device: torch.device,
        *,
        pin_memory: bool = False,
    ) -> None:
        self._plan = plan
        self._device = device
        self._from = maps[0].device if maps else torch.device("cpu")
        self._moves = device.type != self._from.type
        self._pin = pin_memory
        self._gathers = [
            (gather, _source(gather, words), _splits(gather))
            for gather, words in zip(plan.gathers, maps, strict=True)
        ]

    def __call__(self, rows: Tensor) -> list[Tensor]:
        """Return the leaves of `rows` `[B]`, by slot; raises `IndexError`."""
        plan = self._plan
        rows = rows.to(self._from)
        leaves = [self._moved(rows)] * plan.count
        root = rows
        for gather, source, splits in self._gathers:
            where = rows if gather.at == "step" else root if gather.at == "root" else root + 1
            block = torch.index_select(source, 0, where)
            if gather.episode is not None:
                root = rows + block[:, gather.episode]
            block = self._moved(block)
            for dtype, sizes, places in splits:
                pieces = torch.split_with_sizes(block.view(dtype), sizes, 1)
                for piece, place in places:
                    leaf = pieces[piece]
                    if len(sizes) > 1:
                        leaf = leaf.clone(memory_format=torch.contiguous_format)
                    leaves[place.slot] = leaf.view(place.dtype).view(len(rows), *place.shape)
        for slot in plan.flags:
            leaves[slot] = torch.zeros((len(rows), 1), dtype=torch.bool, device=self._device)
        if plan.done is not None:
            done, terminated, truncated = plan.done
            leaves[done] = leaves[terminated] | leaves[truncated]
        return leaves

    def _moved(self, block: Tensor) -> Tensor:
        if self._pin:
            block = block.pin_memory()
        return block.to(self._device, non_blocking=self._pin) if self._moves else block


def _source(gather: Gather, words: Tensor) -> Tensor:
    """Narrow a file to the words that are gathered: a prefix of each row, or rows and a half."""
    stride = words.shape[1]
    if gather.width <= stride:
        return words[:, : gather.width]
    return words.as_strided((gather.rows - 1, gather.width), (stride, 1))


def _splits(gather: Gather) -> list[LeafSplit]:
    """Plan how gathered rows are split into leaves, one operation per item type."""
    width = gather.width * word_of(gather.stride)[0]
    splits = []
    ordered = sorted(gather.places, key=lambda place: (str(place.dtype), place.offset))
    for dtype, places in groupby(ordered, attrgetter("dtype")):
        # Rows are padded to 8 bytes: a block of them cannot be seen as items of 16.
        seen = dtype if dtype.itemsize <= torch.int64.itemsize else torch.int64
        sizes: list[int] = []
        leaves = []
        for place in places:
            begin, end = place.offset // seen.itemsize, place.end // seen.itemsize
            if begin > sum(sizes):
                sizes.append(begin - sum(sizes))
            leaves.append((len(sizes), place))
            sizes.append(end - begin)
        if sum(sizes) < width // seen.itemsize:
            sizes.append(width // seen.itemsize - sum(sizes))
        splits.append(LeafSplit(seen, tuple(sizes), tuple(leaves)))
    return splits
