"""A random batch of a dataset, read without torch, and summaries of its features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural
from offline_data.episode.fields import DONE, TRUNCATED, join_key

if TYPE_CHECKING:
    from offline_data.store.reader import DatasetReader


@dataclass(frozen=True)
class SampledLeaf:
    """One feature of a batch."""

    dtype: str
    shape: tuple[int, ...]  # shape, batch dimension first
    min: float | int | bool | None  # None: no values, or unordered ones
    max: float | int | bool | None


def sampled_leaves(
    reader: DatasetReader, rows: NDArray[np.int64], slice_len: int | None = None
) -> dict[str, SampledLeaf]:
    """Return summaries of the features of rows in TED, by key; `index` is the row, text is codes.

    In a batch of slices of `slice_len` rows the last row of each is truncated and done, like those
    of `SliceSampler`.
    """
    columns = {**reader.transitions_at(rows), ("index",): rows}
    if slice_len:
        for key in (TRUNCATED, DONE):
            columns[key] = np.array(columns[key])
            columns[key][slice_len - 1 :: slice_len] = True
    named = {join_key(key): np.asarray(values) for key, values in columns.items()}
    return {key: _describe(named[key]) for key in sorted(named)}


def random_rows(
    reader: DatasetReader, count: int, slice_len: int | None = None, seed: int | None = None
) -> NDArray[np.int64]:
    """Return random step rows with replacement, like `RandomSampler` and `SliceSampler`: `[count]`.

    Only rows with a known next observation, or terminated ones, are drawn, uniformly; the same seed
    gives different rows than those samplers. With `slice_len`, that many consecutive rows of an
    episode follow each other. Raises `UsageError` without such a row or a long enough episode.
    """
    lengths = reader.lengths.copy()
    np.subtract.at(lengths, reader.episode_of(reader.invalid_rows), 1)  # each is a last row
    length = slice_len or 1
    places = np.maximum(lengths - length + 1, 0)  # number of possible slice starts per episode
    ends = np.cumsum(places)
    if not ends[-1]:
        raise UsageError(
            f"No episode of {reader.manifest.id} has {plural(length, 'row')} to sample; the "
            "longest has "
            f"{int(lengths.max())}",
            hint="use a smaller --slices" if slice_len else "`offline-data stats ID` shows why",
        )
    drawn = np.random.default_rng(seed).integers(ends[-1], size=count // length)
    episodes = np.searchsorted(ends, drawn, side="right")
    first = reader.starts[episodes] + drawn - (ends - places)[episodes]
    rows: NDArray[np.int64] = (first[:, None] + np.arange(length)).reshape(-1)
    return rows


def _describe(values: NDArray[np.generic]) -> SampledLeaf:
    ordered = values.size > 0 and values.dtype.kind in "buif"
    least = values.min().item() if ordered else None
    most = values.max().item() if ordered else None
    return SampledLeaf(str(values.dtype), values.shape, least, most)
