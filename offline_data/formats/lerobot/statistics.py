"""Statistics of features by episode and of all episodes, as LeRobot's `compute_stats.py` has them.

Numbers: over all rows, in version 3.0 also over all axes but the last. Images: of each channel, divided by 255, `[3, 1, 1]`,
from at most `_MOST` frames of an episode, every few pixels of large ones. Quantiles are exact in an
episode, where LeRobot's are of a histogram. Those of all episodes are of all rows (`QuantileSketch`),
where LeRobot's are the extremes of the episodes' quantiles; of images their mean weighted by frames.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.store.quantiles import LEVELS, QuantileSketch

Stats: TypeAlias = dict[str, NDArray[Any]]  # `min`, `max`, `mean`, `std`, `count`, quantiles

_FEWEST, _MOST = 100, 10_000
_LARGE, _SMALL = 300, 150  # images with a side of `_LARGE` pixels are reduced to about `_SMALL`


def stats_of_rows(values: NDArray[Any], *, by_row: bool = False) -> Stats:
    """Return the statistics of numbers or flags `[T, …]`, of the last axis; `by_row`: of all but the first.

    Example:
        >>> found = stats_of_rows(np.array([[1.0, 5.0], [3.0, 5.0]]))
        >>> found["mean"].tolist(), found["q50"].tolist(), found["count"].tolist()
        ([2.0, 5.0], [2.0, 5.0], [2])
    """
    shape = values.shape[1:] or (1,)
    rows = values.reshape(-1, *(shape if by_row else shape[-1:])).astype(np.float64)
    with np.errstate(all="ignore"):  # of numbers that are not finite
        found = {
            "min": rows.min(axis=0),
            "max": rows.max(axis=0),
            "mean": rows.mean(axis=0),
            "std": rows.std(axis=0),
            "count": np.array([len(values)]),
        }
        quantiles = np.quantile(rows, list(LEVELS.values()), axis=0)
    return found | dict(zip(LEVELS, quantiles, strict=True))


def quantiles_of(seen: QuantileSketch) -> Stats:
    """Return the quantiles of all rows that a sketch has seen."""
    return dict(zip(LEVELS, seen.quantiles([*LEVELS.values()]).T, strict=True))


def sampled_frames(length: int) -> NDArray[np.int64]:
    """Return the frames of an episode of which statistics are computed.

    Example:
        >>> len(sampled_frames(50)), len(sampled_frames(1000)), sampled_frames(1000)[-1].item()
        (50, 177, 999)
    """
    count = max(min(length, _FEWEST), min(int(length**0.75), _MOST))
    return np.round(np.linspace(0, length - 1, count)).astype(np.int64)


def reduce_image(image: NDArray[Any]) -> NDArray[Any]:
    """Return every few pixels of a large image `[H, W, …]`."""
    height, width = image.shape[:2]
    if max(height, width) < _LARGE:
        return image
    step = max(height, width) // _SMALL
    return image[::step, ::step]


def stats_of_images(images: NDArray[Any]) -> Stats:
    """Return the statistics of sampled images `[n, H, W]` or `[n, H, W, C]`, of three channels.

    Example:
        >>> found = stats_of_images(np.full((2, 4, 4, 3), 51, np.uint8))
        >>> found["mean"].shape, found["q01"][0, 0, 0].item(), found["count"].item()
        ((3, 1, 1), 0.2, 2)
    """
    pixels = images.reshape(len(images), *images.shape[1:3], -1)[..., :3]
    levels = np.arange(np.iinfo(images.dtype).max + 1) / np.iinfo(images.dtype).max
    columns = []
    for channel in range(pixels.shape[-1]):
        counts = np.bincount(pixels[..., channel].ravel(), minlength=len(levels))
        there, total = np.flatnonzero(counts), counts.sum()
        mean = (levels * counts).sum() / total
        spread = np.sqrt(((levels - mean) ** 2 * counts).sum() / total)
        places = np.searchsorted(np.cumsum(counts), np.array([*LEVELS.values()]) * total)
        columns.append([levels[there[0]], levels[there[-1]], mean, spread, *levels[places]])
    names = ("min", "max", "mean", "std", *LEVELS)
    table = np.repeat(np.array(columns), 3 // len(columns), axis=0).T[..., None, None]
    return dict(zip(names, table, strict=True)) | {"count": np.array([len(images)])}


def merge_stats(one: Mapping[str, Stats], other: Mapping[str, Stats]) -> dict[str, Stats]:
    """Return the statistics of the rows of both, by feature; `one` may be empty."""
    return {name: _merge(one[name], new) if one else new for name, new in other.items()}


def _merge(one: Stats, other: Stats) -> Stats:
    counts = np.array([one["count"].item(), other["count"].item()], np.float64)
    first, second = counts / counts.sum()
    with np.errstate(all="ignore"):
        found = {name: first * one[name] + second * other[name] for name in ("mean", *LEVELS)}
        variances = (
            part["std"] ** 2 + (part["mean"] - found["mean"]) ** 2 for part in (one, other)
        )
        spread = np.sqrt(first * next(variances) + second * next(variances))
    return found | {
        "min": np.minimum(one["min"], other["min"]),
        "max": np.maximum(one["max"], other["max"]),
        "std": spread,
        "count": one["count"] + other["count"],
    }
