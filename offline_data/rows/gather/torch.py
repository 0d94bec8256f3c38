"""Gathering by torch only: an `index_select` per table, then a copy per feature."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import torch

from offline_data.rows.gather.mmap import word_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from offline_data.rows.gather.plan import Gather, GatherPlan, Place


class LeafSplit(NamedTuple):
    """All features of one dtype in a block of gathered rows, split off by one operation.

    Words are viewed as `dtype`; a row is split into pieces of `sizes` items: features (with their
    piece numbers in `leaves`) and gaps.
    """

    dtype: torch.dtype
    sizes: tuple[int, ...]
    leaves: tuple[tuple[int, Place], ...]


class TorchGather:
    """Gathers on the device of the files, moves each block at once, and splits it into features.

    Each feature is a contiguous copy. `maps` are the files of the plan's gathers, as words
    `[rows, words]`, on the CPU or the device; `pin_memory`: through page-locked memory.
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
        """Return the features of `rows` `[B]` by slot; raises `IndexError`."""
        plan = self._plan
        rows = rows.to(self._from)
        leaves = [self._move(rows)] * plan.count
        root = rows
        for gather, source, splits in self._gathers:
            positions = rows if gather.at == "step" else root if gather.at == "root" else root + 1
            block = torch.index_select(source, 0, positions)
            if gather.episode is not None:
                root = rows + block[:, gather.episode]
            block = self._move(block)
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

    def _move(self, block: Tensor) -> Tensor:
        if self._pin:
            block = block.pin_memory()
        return block.to(self._device, non_blocking=self._pin) if self._moves else block


def _source(gather: Gather, words: Tensor) -> Tensor:
    """Return the gathered words of a file: a prefix of each row, or overlapping longer rows."""
    stride = words.shape[1]
    if gather.width <= stride:
        return words[:, : gather.width]
    return words.as_strided((gather.rows - 1, gather.width), (stride, 1))


def _splits(gather: Gather) -> list[LeafSplit]:
    width = gather.width * word_of(gather.stride)[0]
    splits = []
    ordered = sorted(gather.places, key=lambda place: (str(place.dtype), place.offset))
    for dtype, places in groupby(ordered, attrgetter("dtype")):
        # Rows are padded to 8 bytes, so a block cannot be viewed as items of 16 bytes.
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
