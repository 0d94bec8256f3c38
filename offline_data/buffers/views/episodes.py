"""The episodes of a view as columns: rows of the dataset's table, where they are in the view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.episodes import EpisodeTable

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.views.storage import SubsetStorage
    from offline_data.episodes import Key


class ViewEpisodes(EpisodeTable):
    """The episodes that a view has rows of, each once, in the order in which they come in it.

    `start` and `length` are the view's: the row of the view that the episode begins at, and how
    many rows of it the view has. Of a view of whole episodes, `view[start : start + length]` is the
    episode; where a view has rows of an episode in several places, or twice, they are the first of
    them and the number of all. Other columns (`return`, flags, `id`, …) say of the whole episode
    what the dataset says. `batch["episode"]` has row numbers of this table.

    Args:
        storage: The view's.
    """

    numbers: Tensor
    """The episodes' numbers in the dataset, int64 `[E]`: `batch["dataset_episode"]` has them."""

    def __init__(self, storage: SubsetStorage) -> None:
        super().__init__(storage.steps.reader)
        self.numbers = storage.episodes
        self._storage = storage

    def __len__(self) -> int:
        """Return `E`."""
        return len(self.numbers)

    def _load(self, key: Key) -> Tensor | list[Any]:
        pieces = self._storage.transitions
        episode = self._storage.episode_rows(self._storage.steps.runs().of(pieces.first)).cpu()
        if key == ("length",):
            return torch.zeros_like(self.numbers).scatter_add_(0, episode, pieces.lengths)
        if key == ("start",):
            most = torch.full_like(self.numbers, pieces.count)
            return most.scatter_reduce_(0, episode, pieces.starts[:-1], "amin")
        whole = super()._load(key)
        if isinstance(whole, list):
            return [whole[number] for number in self.numbers.tolist()]
        return whole[self.numbers]
