"""The episodes of a dataset as columns."""

from __future__ import annotations

from functools import cached_property
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


class EpisodeTable:
    """Columns of `E` rows: `start`, `length`, `return`, `terminated`, `truncated`,
    `final_observation`, and whatever else the source has (`id`, `seed`, options, …).

    A column is a tensor `[E, …]`, a copy that is yours and is read on first use; text is a list
    of `str` (or None). `batch["episode"]` has row numbers of this table.

    ```python
    ds.episodes.length[batch["episode"]]
    ds.episodes["return"]  # a Python keyword: by key, or as `ds.episodes.return_`
    ds.episodes["options/goal"]
    ```
    """  # noqa: D205 - the columns are one sentence

    def __init__(self, reader: DatasetReader) -> None:
        self._reader = reader
        self._read: dict[Key, Tensor | list[Any]] = {}

    def __len__(self) -> int:
        """Return `E`."""
        return self._reader.episode_count

    @cached_property
    def columns(self) -> list[Key]:
        """Keys of all columns."""
        return list(self._reader.episodes)

    def __contains__(self, key: KeyLike) -> bool:
        return as_key(key) in self.columns

    def __getitem__(self, key: KeyLike) -> Any:
        """Return one column; raises `NotFoundError`."""
        name = as_key(key)
        if name not in self.columns:
            known = ", ".join(map(join_key, self.columns))
            raise NotFoundError(f"Episodes have no column {join_key(name)!r}; there are {known}")
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def __getattr__(self, name: str) -> Any:
        """Return the column of that name; a trailing underscore is for Python's keywords."""
        if name.startswith("_") or (name.rstrip("_"),) not in self.columns:
            raise AttributeError(f"Episodes have no column {name!r}")
        return self[name.rstrip("_")]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(key[0] for key in self.columns if len(key) == 1)]

    def __repr__(self) -> str:
        return f"EpisodeTable({len(self)} episodes: {', '.join(map(join_key, self.columns))})"

    def _load(self, key: Key) -> Tensor | list[Any]:
        values = self._reader.episodes[key]
        words = self._reader.vocabularies.get(EPISODES, {}).get(key)
        if words is not None:
            return list(decode(values, words).tolist())
        return torch.from_numpy(np.array(values))
