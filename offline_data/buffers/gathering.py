"""The leaves of a batch by torch alone: an `index_select` per table, then a copy per leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from offline_data.buffers.cuts import Cut, cut_into, cuts_of
from offline_data.buffers.maps import word_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from offline_data.buffers.plan import Gather, Plan


class TorchGather:
    """Gathers where the files are, moves each block at once, and cuts it where batches go.

    Args:
        plan: Plan of the gather.
        maps: The file of each of the plan's gathers, as words `[rows, words]`: a map on the CPU, or
            copied to the device.
        device: Device of the leaves.
        pin_memory: Whether blocks are put into page-locked memory first.
    """

    def __init__(
        self,
        plan: Plan,
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
            (gather, _source(gather, words), _cuts(gather))
            for gather, words in zip(plan.gathers, maps, strict=True)
        ]

    def __call__(self, rows: Tensor) -> list[Tensor]:
        """Return the leaves of `rows` `[B]`, by slot; raises `IndexError`."""
        plan = self._plan
        rows = rows.to(self._from)
        leaves = [self._arrive(rows)] * plan.count
        root = rows
        for gather, source, cuts in self._gathers:
            where = rows if gather.at == "step" else root if gather.at == "root" else root + 1
            block = torch.index_select(source, 0, where)
            if gather.episode is not None:
                root = rows + block[:, gather.episode]
            cut_into(leaves, self._arrive(block), cuts)
        for slot in plan.flags:
            leaves[slot] = torch.zeros((len(rows), 1), dtype=torch.bool, device=self._device)
        if plan.done is not None:
            done, terminated, truncated = plan.done
            leaves[done] = leaves[terminated] | leaves[truncated]
        return leaves

    def _arrive(self, block: Tensor) -> Tensor:
        if self._pin:
            block = block.pin_memory()
        return block.to(self._device, non_blocking=self._pin) if self._moves else block


def _source(gather: Gather, words: Tensor) -> Tensor:
    """Narrow a file to the words that are gathered: a prefix of each row, or rows and a half."""
    stride = words.shape[1]
    if gather.width <= stride:
        return words[:, : gather.width]
    return words.as_strided((gather.rows - 1, gather.width), (stride, 1))


def _cuts(gather: Gather) -> tuple[Cut, ...]:
    return cuts_of(gather.places, gather.width * word_of(gather.stride)[0])
