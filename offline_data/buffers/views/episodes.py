"""The episodes of a view as columns: rows of the dataset's table."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.episodes import EpisodeTable

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.samplers.base import Runs
    from offline_data.buffers.views.pieces import Pieces
    from offline_data.episodes import Key
    from offline_data.store.reader import DatasetReader


class ViewEpisodes(EpisodeTable):
    """The episodes that a view has rows of, each once, in the order in which they come in it.

    Columns say what the dataset says of an episode: `start` is its first row in the dataset,
    `length` its length there, also where the view has some of its rows only.

    `batch["episode"]` has numbers of the dataset, so it is not an index of this table:

    ```python
    view.episodes["return"][view.episodes.find(batch["episode"])]
    ```

    Args:
        reader: The dataset.
        numbers: See below.
    """

    numbers: Tensor
    """The episodes' numbers in the dataset, int64 `[E]`."""

    def __init__(self, reader: DatasetReader, numbers: Tensor) -> None:
        super().__init__(reader)
        self.numbers = numbers

    def __len__(self) -> int:
        """Return `E`."""
        return len(self.numbers)

    def find(self, numbers: Tensor) -> Tensor:
        """Turn numbers of the dataset, int64 of any shape, into rows of this table.

        Raises:
            IndexError: An episode that the view has no row of.
        """
        ordered, order = self._sorted
        at = torch.searchsorted(ordered, numbers).clamp(max=len(ordered) - 1)
        if numbers.numel() and (not len(ordered) or bool((ordered[at] != numbers).any())):
            raise IndexError("Some of these episodes of the dataset are not in the view")
        return order[at]

    @cached_property
    def _sorted(self) -> tuple[Tensor, Tensor]:
        ordered, order = self.numbers.sort()
        return ordered, order

    def _load(self, key: Key) -> Tensor | list[Any]:
        whole = super()._load(key)
        if isinstance(whole, list):
            return [whole[number] for number in self.numbers.tolist()]
        return whole[self.numbers]


def episodes_of(pieces: Pieces, runs: Runs) -> Tensor:
    """Return the number of every run that has a piece, in the order of the pieces, int64 `[E]`."""
    numbers = runs.of(pieces.first).numpy()
    _, first = np.unique(numbers, return_index=True)
    return torch.from_numpy(numbers[np.sort(first)])
