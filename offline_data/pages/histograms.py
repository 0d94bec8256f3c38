"""Histograms of every feature of datasets, over bins that several datasets share."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.checks.block import BLOCK_ITEMS, all_leaves, blocks, is_numeric, leaves_by_file
from offline_data.episodes.fields import REWARD, join_key
from offline_data.progress import SILENT
from offline_data.reports.stats import LeafStats, dataset_stats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from offline_data.episodes.fields import Key
    from offline_data.progress import Progress
    from offline_data.reports.stats import DatasetStats
    from offline_data.store.reader import DatasetReader

BINS = 40
MOST_FEATURES_SHOWN = 48
"""Features of a leaf that have a histogram: the first ones."""
MOST_SHOWN = 256
"""Histograms of all leaves; leaves that come later have none."""
_DEVIATIONS = 5.0


@dataclass(frozen=True, eq=False)
class Bins:
    """Bins of a feature, and how many of its values are in each."""

    edges: NDArray[np.float64]
    """`[bins + 1]`, ascending."""
    counts: NDArray[np.int64]
    """`[bins]`; the first and the last have values beyond the edges, too. Exact."""
    integers: bool = False
    """Whether each bin is one integer."""
    clipped: bool = False
    """Whether there are values beyond the edges."""

    @property
    def shares(self) -> NDArray[np.float64]:
        """Counts by their sum; 0 if there are none."""
        return np.asarray(self.counts / max(1, int(self.counts.sum())))


@dataclass(frozen=True, eq=False)
class Distributions:
    """Statistics and histograms of one dataset."""

    stats: DatasetStats
    returns: Bins | None
    """Of episodes; None if no return is finite."""
    lengths: Bins
    features: Mapping[Key, tuple[Bins, ...]]
    """Of the first features of each leaf, the reward's first, then the actions'."""
    left_out: tuple[str, ...]
    """Leaves without histograms: beyond the bounds, or all values not finite."""


def distributions_of(
    readers: Sequence[DatasetReader], progress: Progress = SILENT
) -> list[Distributions]:
    """Return the histograms of datasets; leaves of the same name and shape have the same bins.

    Reads each dataset twice, in bounded memory: once for the range of each feature. Bins have equal
    widths, and reach five standard deviations to either side of the mean at most.

    Raises:
        ManifestError, FormatError: A file is missing or damaged.
    """
    stats = [dataset_stats(reader, progress) for reader in readers]
    edges, left_out = _chosen_edges(readers, stats)
    returns = [_finite(reader.episodes[("return",)]) for reader in readers]
    of_returns = _edges_of([values for values in returns if len(values)])
    of_lengths = _edges_of([reader.lengths for reader in readers])
    found = []
    for reader, described, values in zip(readers, stats, returns, strict=True):
        counted = _count(reader, edges, progress)
        found.append(
            Distributions(
                described,
                _bins(of_returns, values) if len(values) else None,
                _bins(of_lengths, reader.lengths),
                {key: counted[key] for key in edges if key in counted},
                tuple(left_out),
            )
        )
    return found


def feature_edges(stats: Sequence[LeafStats], feature: int) -> NDArray[np.float64] | None:
    """Return the edges of bins for one feature of a leaf in several datasets.

    Integers have a bin each if there are at most `BINS` of them. None if no value is finite.
    """
    lows, highs, near = [], [], []
    for leaf in stats:
        found = leaf.features
        if found is None or not found.count.ravel()[feature]:
            continue
        low, high, mean, std = (
            float(figure.ravel()[feature])
            for figure in (found.min, found.max, found.mean, found.std)
        )
        lows.append(low)
        highs.append(high)
        near.append((max(low, mean - _DEVIATIONS * std), min(high, mean + _DEVIATIONS * std)))
    if not lows:
        return None
    whole = all(np.dtype(leaf.dtype).kind in "iub" for leaf in stats)
    if whole and max(highs) - min(lows) < BINS:
        return np.arange(min(lows) - 0.5, max(highs) + 1)
    return _spread(min(low for low, _ in near), max(high for _, high in near))


def quantile(bins: Bins, share: float) -> float:
    """Return about the value below which a share of the values lies, to within one bin."""
    sums = np.concatenate([[0], np.cumsum(bins.counts)])
    return float(np.interp(share * sums[-1], sums, bins.edges))


def _chosen_edges(
    readers: Sequence[DatasetReader], stats: Sequence[DatasetStats]
) -> tuple[dict[Key, list[NDArray[np.float64]]], list[str]]:
    """Return edges by leaf that all datasets have, and the leaves without."""
    chosen: dict[Key, list[NDArray[np.float64]]] = {}
    described = [{leaf.key: leaf for leaf in one.leaves} for one in stats]
    shapes = [{key: leaf.shape for key, leaf in all_leaves(reader).items()} for reader in readers]
    numeric = [key for key, leaf in all_leaves(readers[0]).items() if is_numeric(leaf)]
    numeric.sort(key=lambda key: (key != REWARD, key[0] != "action", key[0] != "observation", key))
    left_out, room = [], MOST_SHOWN
    for key in numeric:
        if any(one.get(key) != shapes[0][key] for one in shapes):
            continue
        leaves = [one[join_key(key)] for one in described]
        width = min(prod(shapes[0][key]), MOST_FEATURES_SHOWN)
        known = width <= room and all(leaf.features is not None for leaf in leaves)
        edges = [feature_edges(leaves, feature) for feature in range(width)] if known else []
        found = [one for one in edges if one is not None]
        if len(found) < width or not width:
            left_out.append(join_key(key))
            continue
        chosen[key] = found
        room -= width
    return chosen, left_out


def _count(
    reader: DatasetReader, edges: Mapping[Key, Sequence[NDArray[np.float64]]], progress: Progress
) -> dict[Key, tuple[Bins, ...]]:
    """Count the values of each feature in each bin, in one pass over the files."""
    leaves = all_leaves(reader)
    counts = {key: [np.zeros(len(e) - 1, np.int64) for e in edges[key]] for key in edges}
    beyond = {key: [False] * len(edges[key]) for key in edges}
    groups = [[leaf for key, leaf in g.items() if key in edges] for g in leaves_by_file(reader)]
    row = sum(leaf.nbytes for group in groups for leaf in group)
    with progress.task("histograms", row * reader.transitions, "B") as task:
        for group in filter(None, groups):
            for block in blocks(reader, group, BLOCK_ITEMS):
                for leaf in group:
                    values = block.numbers(leaf.key)
                    flat = values.reshape(len(values), -1)
                    for i, of_feature in enumerate(edges[leaf.key]):
                        found, more = _counted(flat[:, i], of_feature)
                        counts[leaf.key][i] += found
                        beyond[leaf.key][i] |= more
                    task.advance(leaf.nbytes * len(block))
    return {
        key: tuple(
            Bins(e, n, _are_integers(e) and "float" not in leaves[key].dtype, more)
            for e, n, more in zip(edges[key], counts[key], beyond[key], strict=True)
        )
        for key in edges
    }


def _counted(
    values: NDArray[np.generic], edges: NDArray[np.float64]
) -> tuple[NDArray[np.int64], bool]:
    """Return the number of finite values in each bin, and whether some are beyond the edges."""
    scaled = values.astype(np.float64)
    scaled -= edges[0]
    scaled *= (len(edges) - 1) / (edges[-1] - edges[0])
    if values.dtype.kind == "f":
        scaled = scaled[np.isfinite(scaled)]
    more = bool(len(scaled)) and not (
        -1e-6 <= scaled.min() <= scaled.max() <= len(edges) - 1 + 1e-6
    )
    places = scaled.clip(0, len(edges) - 2 + 0.5).astype(np.int64)
    return np.bincount(places, minlength=len(edges) - 1), more


def _bins(edges: NDArray[np.float64], values: NDArray[np.generic]) -> Bins:
    counts, more = _counted(values, edges)
    return Bins(edges, counts, _are_integers(edges) and values.dtype.kind in "iu", more)


def _edges_of(values: Sequence[NDArray[Any]]) -> NDArray[np.float64]:
    """Return the edges of bins for numbers of several datasets, none of them empty."""
    if not values:
        return _spread(0.0, 0.0)
    low, high = min(float(part.min()) for part in values), max(float(part.max()) for part in values)
    if values[0].dtype.kind in "iu" and high - low < BINS:
        return np.arange(low - 0.5, high + 1)
    return _spread(low, high)


def _spread(low: float, high: float) -> NDArray[np.float64]:
    """Return the edges of `BINS` bins of equal widths, also where all values are about equal."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        half = 0.5 * (abs(low) or 1.0)
        low, high = low - half, high + half
    return np.linspace(low, high, BINS + 1)


def _finite(values: ArrayLike) -> NDArray[np.float64]:
    numbers = np.asarray(values, np.float64).ravel()
    return numbers[np.isfinite(numbers)]


def _are_integers(edges: NDArray[np.float64]) -> bool:
    return bool(edges[0] % 1 == 0.5) and bool((np.diff(edges) == 1).all())
