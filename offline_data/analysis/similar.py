"""The nearest other episode of each episode, and near-duplicates."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.block import blocks
from offline_data.analysis.checks.rules.duplicates import NearDuplicateEpisodes
from offline_data.analysis.episodes import (
    BLOCK_ITEMS,
    EpisodeQuality,
    LeafSeries,
    finite_or_nan,
    sample_rows,
)
from offline_data.episode.fields import Key, split_key
from offline_data.store.reader import DatasetReader

_FEATURES = 64  # components in a summary; of more, as many evenly spaced ones

_DISTANCES = 1 << 22  # distances in memory at once


def with_similar(reader: DatasetReader, quality: EpisodeQuality) -> EpisodeQuality:
    """Return quality with the columns `nearest`, `distance` and `duplicate_of`; reads the rows again.

    - `nearest`: Number of the other episode with the smallest `distance`; -1 for a single episode.
    - `distance`: Root mean square of the differences of summaries: mean, standard deviation, first and
      last value of up to 64 components of `quality.leaf`, each divided by its robust range. Values that
      are not finite count as 0.
    - `duplicate_of`: First earlier episode with which it shares 90 % of the different rows of the largest
      floating-point observation, rounded to 12 significant bits, as in rule RL061; -1 without one.

    The time grows with the square of the number of episodes, memory with their number and a constant:
    4,194,304 distances. Without a continuous feature only `duplicate_of` is added.
    """
    columns = dict(quality.columns)
    if quality.leaf is not None:
        summaries = _summaries(reader, split_key(quality.leaf))
        columns["nearest"], columns["distance"] = _nearest(summaries)
    rule = NearDuplicateEpisodes({"candidates": 4 * reader.episode_count})
    copies = np.full(reader.episode_count, -1)
    for later, earlier in rule.pairs(reader).items():
        copies[later] = earlier
    return replace(quality, columns={**columns, "duplicate_of": copies})


def _summaries(reader: DatasetReader, key: Key) -> NDArray[np.float64]:
    """Return mean, standard deviation, first and last value of each component, `[E, 4 · components]`."""
    series, leaf = LeafSeries(reader, key), reader.leaves[key]
    chosen = np.unique(np.linspace(0, prod(leaf.shape) - 1, _FEATURES).astype(int))
    sample = finite_or_nan(sample_rows(reader, key))[:, chosen]
    low, middle, high = np.nanquantile(sample, (0.01, 0.5, 0.99), axis=0)[:, :, None]
    scale = np.where(high > low, high - low, 1)
    mean, square, first, last = np.zeros((4, len(chosen), reader.episode_count))
    count = np.zeros(reader.episode_count)
    for block in blocks(reader, [leaf], BLOCK_ITEMS):
        series.read(block)
        values = (series.rows[chosen, series.past :] - middle) / scale
        values[~np.isfinite(values)] = 0
        episodes, firsts = series.episodes, series.firsts
        stops = np.append(firsts[1:], values.shape[1])
        mean[:, episodes] += np.add.reduceat(values, firsts, axis=1)
        square[:, episodes] += np.add.reduceat(np.square(values), firsts, axis=1)
        count[episodes] += stops - firsts
        first[:, episodes.stop - len(series.new) : episodes.stop] = values[
            :, series.new - series.past
        ]
        last[:, episodes] = values[:, stops - 1]
    mean /= count
    std = np.sqrt(np.maximum(square / count - np.square(mean), 0))
    return np.asarray(np.concatenate([mean, std, first, last]).T)


def _nearest(summaries: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the nearest other row of each row, and its distance."""
    count = len(summaries)
    nearest, distance = np.full(count, -1), np.full(count, np.nan)
    squares = np.square(summaries).sum(axis=1)
    step = max(1, _DISTANCES // count)
    for begin in range(0, count if count > 1 else 0, step):
        some = np.arange(begin, min(begin + step, count))
        found = squares - 2 * summaries[some] @ summaries.T
        found[some - begin, some] = np.inf
        nearest[some] = found.argmin(axis=1)
    if count > 1:  # differences of squares lose the digits of small distances
        distance = np.sqrt(np.square(summaries - summaries[nearest]).mean(axis=1))
    return nearest, distance
