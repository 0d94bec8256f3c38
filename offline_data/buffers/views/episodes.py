"""The episodes of a dataset, or of a view of it, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.keys import KeyLike, as_key
from offline_data.episodes.fields import Key, join_key
from offline_data.errors import NotFoundError
from offline_data.store.layout import EPISODES
from offline_data.store.reader import DatasetReader, decode

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.views.rows import SubsetStorage


class EpisodeTable:
    """Columns of the `E` episodes of a dataset; `batch["episode"]` has row numbers of this table.

    They are `start`, `length`, `return`, `terminated`, `truncated`, `final_observation`, and
    whatever else the source has (`id`, `seed`, options, …). A column is a tensor `[E, …]`, a copy
    that is read on first use; text is a list of `str` (or None).

    ```python
    ds.episodes.length[batch["episode"]]
    ds.episodes["return"]  # a Python keyword: by key, or as `ds.episodes.return_`
    ds.episodes["options/goal"]
    ```
    """

    def __init__(self, reader: DatasetReader) -> None:
        self._reader = reader
        self._read: dict[Key, Tensor | list[Any]] = {}

    def __len__(self) -> int:
        """Return `E`."""
        return self._reader.episode_count

    @property
    def columns(self) -> list[Key]:
        """Keys of all columns."""
        return list(self._reader.episodes)

    def __contains__(self, key: KeyLike) -> bool:
        return as_key(key) in self._reader.episodes

    def __getitem__(self, key: KeyLike) -> Any:
        """Return one column; raises `NotFoundError`."""
        name = as_key(key)
        if name not in self:
            known = ", ".join(map(join_key, self.columns))
            raise NotFoundError(f"Episodes have no column {join_key(name)!r}; there are {known}")
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def __getattr__(self, name: str) -> Any:
        """Return the column of that name, without a trailing underscore (`return_`)."""
        if name.startswith("_") or (name.rstrip("_"),) not in self:
            raise AttributeError(f"Episodes have no column {name!r}")
        return self[(name.rstrip("_"),)]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(key[0] for key in self.columns if len(key) == 1)]

    def __repr__(self) -> str:
        names = ", ".join(map(join_key, self.columns))
        return f"EpisodeTable({len(self)} episodes: {names})"

    def _load(self, key: Key) -> Tensor | list[Any]:
        values = self._reader.episodes[key]
        words = self._reader.vocabularies.get(EPISODES, {}).get(key)
        if words is not None:
            return list(decode(values, words).tolist())
        return torch.from_numpy(np.array(values))


class ViewEpisodes(EpisodeTable):
    """The episodes that a view has rows of, each once, in the order in which they come in it.

    `start` and `length` are the view's: the first row of the view that is of the episode, and how
    many there are. In a view of whole episodes, `view[start : start + length]` is the episode.
    Other columns (`return`, flags, `id`, …) say of the whole episode what the dataset says.

    Attributes:
        numbers: The episodes' numbers in the dataset, int64 `[E]`, as in `batch["dataset_episode"]`.
    """

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
