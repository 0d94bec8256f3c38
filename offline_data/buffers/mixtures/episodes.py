"""The episodes of a mixture's members as one table, and splitting them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.buffers.mixtures.leaves import cast_exactly
from offline_data.buffers.specs import common_dtype
from offline_data.buffers.views.episodes import EpisodeTable, ViewEpisodes
from offline_data.episode.fields import Key, join_key
from offline_data.episode.split import in_pairs, split_episodes
from offline_data.rows.samplers import Sampler

if TYPE_CHECKING:
    from offline_data.analysis.episodes import EpisodeQuality

SOURCE: Key = ("source",)


class MixtureEpisodes(EpisodeTable):
    """Columns of the episodes of a mixture's sources, one table after the other.

    The columns are those that all have, and `source`, int64 `[E]`; `start` is a row of the source.
    An episode of a batch is row `first[batch["source"]] + batch["episode"]`; `first` is int64
    `[S]`.
    """

    def __init__(self, tables: Sequence[EpisodeTable]) -> None:
        self._tables = tables
        self._read = {}
        ends = torch.tensor([len(table) for table in tables]).cumsum(0)
        self.first = torch.cat([ends.new_zeros(1), ends[:-1]])

    def __len__(self) -> int:
        return sum(map(len, self._tables))

    @property
    def columns(self) -> list[Key]:
        first, *others = self._tables
        every = dict.fromkeys((*first.columns, *self._mark_keys))
        shown = {key for table in self._tables for key in table.columns}
        return [*(k for k in every if k in shown and all(k in table for table in others)), SOURCE]

    @property
    def _mark_keys(self) -> list[Key]:
        first, *others = self._tables
        return [key for key in first._mark_keys if all(key in table for table in others)]

    def _marks_version(self) -> Any:
        return [table._marks_version() for table in self._tables]

    @cached_property
    def _quality_keys(self) -> list[Key]:
        first, *others = self._tables
        every = (key for key in first._quality_keys if all(key in table for table in others))
        return [key for key in every if key not in self.columns]

    def quality(self, leaf: str | None = None, *, similar: bool = False) -> EpisodeQuality:
        """Return the columns that all sources have, and `source`, in the order of this table.

        Outliers are those of each source's dataset; `leaf` and `rate` are None where sources
        differ. Raises `UnknownLeafError` if a source has no such continuous feature, and
        `UsageError` for `similar`, which compares the episodes of one dataset.
        """
        from offline_data.analysis.episodes import EpisodeQuality

        if similar:
            raise UsageError(
                "quality(similar=True) compares the episodes of one dataset, not of a mixture",
                hint="mixture.sources[0].episodes.quality(similar=True)",
            )
        parts = [table.quality(leaf) for table in self._tables]
        columns = {
            name: np.concatenate([part[name] for part in parts])
            for name in parts[0]
            if all(name in part for part in parts)
        }
        columns[SOURCE[0]] = np.asarray(self[SOURCE])
        marked = {
            name: np.concatenate(
                [part.marked.get(name, np.zeros(len(part["length"]), bool)) for part in parts]
            )
            for name in dict.fromkeys(name for part in parts for name in part.marked)
        }
        leaves, rates = {part.leaf for part in parts}, {part.rate for part in parts}
        return EpisodeQuality(
            columns,
            marked,
            leaves.pop() if len(leaves) == 1 else None,
            rates.pop() if len(rates) == 1 else None,
        )

    def place(self, number: int) -> tuple[int, int]:
        """Return the source of an episode and its row there; raises like `rows`."""
        row = self._place(number)
        source = int(torch.searchsorted(self.first, row, right=True)) - 1
        while not len(self._tables[source]):  # an empty view begins at the same row
            source -= 1
        return source, row - int(self.first[source])

    def rows(self, number: int) -> Tensor:
        """Return the rows of one episode in its source, int64 `[T]`; see `EpisodeTable.rows`."""
        source, row = self.place(number)
        return self._tables[source].rows(row)

    def _load(self, key: Key) -> Tensor | list[Any]:
        if key == SOURCE:
            sizes = torch.tensor([len(table) for table in self._tables])
            return torch.arange(len(sizes)).repeat_interleave(sizes)
        parts = [table[key] for table in self._tables]
        if all(isinstance(part, list) for part in parts):
            return [text for part in parts for text in part]
        shapes = {getattr(part, "shape", None) and tuple(part.shape[1:]) for part in parts}
        if len(shapes) > 1:
            raise UsageError(f"The column {join_key(key)!r} of members differs in kind or shape")
        dtype = common_dtype(key, (part.dtype for part in parts))
        return torch.cat([cast_exactly(key, part, dtype, m) for m, part in enumerate(parts)])


def split_members(
    sources: Sequence[Any],
    shares: Mapping[str, float],
    seed: int,
    sampler: Callable[[], Sampler] | None,
) -> dict[str, list[Any]]:
    """Return for each share a view of every source; sources of one dataset are split together.

    Raises `UsageError` for invalid shares, or one without any episode of a source.
    """
    parts: dict[str, list[Any]] = {name: [] for name in shares}
    for number, source in enumerate(sources):
        same = [other for other in sources if other.data_path == source.data_path]
        own = _numbers(source)
        every = np.unique(np.concatenate([_numbers(other) for other in same]))
        pairs = all(in_pairs(other.episodes) for other in same)
        for name, chosen in split_episodes(len(every), shares, seed, pairs=pairs).items():
            rows = np.flatnonzero(np.isin(own, every[chosen]))
            if not len(rows):
                raise UsageError(f"{name}={shares[name]} has no episode of member {number}")
            given = None if sampler is None else sampler()
            parts[name].append(source.episodes_at(rows, sampler=given))
    return parts


def _numbers(source: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    table = source.episodes
    if isinstance(table, ViewEpisodes):
        return np.asarray(table.numbers)
    return np.arange(len(table))
