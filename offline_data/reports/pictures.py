"""Numbers behind the pictures of a dataset: plain arrays, for `plot`, `report` and others to draw."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.figures import MOST_FEATURES, DatasetStats, LeafStats
from offline_data.analysis.frames import image_layout
from offline_data.analysis.histograms import HISTOGRAM_BINS, Histograms
from offline_data.analysis.statistics import dataset_stats
from offline_data.base.errors import UsageError
from offline_data.base.ids import did_you_mean
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key, split_key
from offline_data.store.names import feature_labels, feature_names
from offline_data.store.quantiles import QUANTILES
from offline_data.store.reader import DatasetReader

COVERAGE_ROWS = 1 << 17  # most observations, evenly spread, for principal components
COVERAGE_FEATURES = 512  # most numbers in an observation for principal components
COVERAGE_BINS = 48
TIMELINE_POINTS = 2000
MOST_POINTS = 400  # steps of `Curves`
_CHUNK_ITEMS = 1 << 20
_MOST_MARKS = 1000
_MOST_SELECTED = 64  # histograms of a leaf that is given to `select`
_ROUNDING = 1e-12  # share of the largest variance below which another is an error of rounding


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of the finite values of one quantity in bins of equal width, the outer ones cut off."""

    label: str  # `return`, `length`, or a feature: `next/reward`, `action[0]`
    unit: str  # unit of the counts: `episodes` or `transitions`
    counts: NDArray[np.int64]  # `[bins]`; neither the first nor the last is empty
    # `[bins + 1]`, ascending; bin `i` holds `edges[i] <= value < edges[i + 1]`, the last one also
    # `edges[-1]`. The ends are the least and the greatest value, unless `discrete`.
    edges: NDArray[np.float64]
    discrete: bool  # whether the values are integers, with one bin for each, that begins there
    not_finite: int  # values that are NaN or infinite, which no bin holds

    @property
    def constant(self) -> bool:
        """True if all values are in one bin."""
        return len(self.counts) == 1

    @property
    def counted(self) -> str:
        """Unit of the counts, for people: `episodes` or `steps`."""
        return "steps" if self.unit == "transitions" else self.unit


@dataclass(frozen=True, eq=False)
class Ranges:
    """Range of each number in an observation leaf."""

    label: str  # TED key, parts joined by `/`
    # `[F]`: `[0]`, `[1]`, … or `[0, 2]`, then the source's name of it, if any; the empty text for a
    # leaf of one number.
    names: tuple[str, ...]
    # `[F, levels]` at `DatasetPictures.levels`, of which the first is the minimum and the last the
    # maximum; NaN where no value is finite.
    quantiles: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Rewards over one episode, at points of `every` steps."""

    episode: int  # its number in the dataset, from 0
    length: int  # steps
    every: int
    step: NDArray[np.int64]  # `[n]` last step of each point, from 0
    reward: NDArray[np.float64]  # `[n]` mean reward of the steps of a point
    # `[n]` undiscounted sum of the rewards up to and including that step; NaN from the first NaN on
    cumulated: NDArray[np.float64]
    terminated: NDArray[np.int64]  # steps with the flag set, the first 1000
    truncated: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Coverage:
    """Density of observations along their first two principal components.

    Each number is standardized with its mean and standard deviation first; constant ones are left
    out. A histogram of evenly spread observations before actions.
    """

    counts: NDArray[np.int64]  # `[bins, bins]`: along the first component, then the second
    edges: tuple[NDArray[np.float64], NDArray[np.float64]]  # `[bins + 1]`, in standard deviations
    # shares of the variance in [0, 1]; of one number, the second is 0
    explained: tuple[float, float]
    components: NDArray[np.float64]  # `[2, F]` unit vectors
    names: tuple[str, ...]  # `[F]` names of the numbers: `observation[0]`
    rows: int  # number of observations counted; those with NaN or infinity are not


@dataclass(frozen=True, eq=False)
class Curves:
    """Values of a leaf at some steps of an episode."""

    key: str  # TED key, parts joined by `/`
    names: tuple[str, ...]  # name of each feature, `[0]` or `[0] elbow`; no text for the only one
    episode: int
    steps: NDArray[np.int64]  # `[steps]`, from 0
    values: NDArray[np.float64]  # `[features, steps]`


@dataclass(frozen=True, eq=False)
class DatasetPictures:
    """Everything that is drawn of a dataset, and what cannot be."""

    id: str
    transitions: int
    episodes: int
    stats: DatasetStats
    returns: Histogram | None  # of the undiscounted returns of episodes; None if none is finite
    lengths: Histogram | None
    rewards: tuple[Histogram, ...]  # of each number of the reward, or of the leaf given to `select`
    actions: tuple[Histogram, ...]  # one for each number of the action
    ranges: tuple[Ranges, ...]  # one for each observation leaf
    timelines: tuple[Timeline, ...]  # episodes of least to greatest return, evenly spread by rank
    coverage: Coverage | None
    left_out: tuple[tuple[str, str], ...]  # missing pictures, or leaves of them, and the reason
    levels: tuple[float, ...] = QUANTILES
    curves: tuple[Curves, ...] = ()  # of each leaf given to `select`; episode of the median return


def summarise(
    reader: DatasetReader,
    progress: Progress = SILENT,
    *,
    stats: DatasetStats | None = None,
    episodes: int = 4,
) -> DatasetPictures:
    """Compute the pictures of a dataset, with the pass over all rows of `dataset_stats`.

    Then only rewards of `episodes` timelines are read, and up to `COVERAGE_ROWS` observations,
    twice. `stats` are those of the whole dataset, if they are known. Raises `ManifestError` if a
    file is missing or damaged.
    """
    found = dataset_stats(reader, progress) if stats is None else stats
    observed = {"/".join(key) for key in (*reader.observation_leaves, *reader.manifest.two_copies)}
    observed = {key for key in observed if _root(key) != "info"}
    actions, observations, left_out = list[LeafStats](), list[LeafStats](), list[tuple[str, str]]()
    for leaf in found.leaves:
        if leaf.key not in observed and _root(leaf.key) != "action":
            continue
        if image_layout(leaf.dtype, leaf.shape):
            left_out.append((leaf.key, f"images, {leaf.kind}"))
        elif leaf.features is None:
            left_out.append((leaf.key, _why_not_measured(leaf)))
        elif prod(leaf.shape):
            (observations if leaf.key in observed else actions).append(leaf)
    left_out += [
        (one.key, "text")
        for one in found.texts
        if one.key in observed or _root(one.key) == "action"
    ]
    returns, names = np.asarray(reader.episodes[("return",)]), feature_names(reader)
    coverage, missing = _coverage(reader, observations)
    left_out += [] if coverage else [("coverage", missing)]
    return DatasetPictures(
        found.id,
        found.transitions,
        found.episodes,
        found,
        histogram_of("return", returns) if np.isfinite(returns).any() else None,
        histogram_of("length", reader.lengths),
        tuple(
            one for leaf in found.leaves if leaf.key == "next/reward" for one in histograms_of(leaf)
        ),
        tuple(one for leaf in actions for one in histograms_of(leaf, names.get(leaf.key, ()))),
        tuple(ranges_of(leaf, names.get(leaf.key, ())) for leaf in observations),
        tuple(timeline(reader, number) for number in _by_rank(returns, episodes))
        if REWARD in reader.step_leaves
        else (),
        coverage,
        tuple(left_out),
    )


def space_evenly(first: int, stop: int, most: int) -> NDArray[np.int64]:
    """Return up to `most` of the integers `[first, stop)`, evenly spaced, the ends among them."""
    found = np.linspace(first, stop - 1, min(most, stop - first))
    return np.unique(found.round().astype(np.int64))


def leaf_curves(
    reader: DatasetReader,
    key: Key,
    episode: int,
    names: tuple[str, ...] = (),
    steps: NDArray[np.int64] | None = None,
) -> Curves:
    """Read a leaf at some steps of an episode, by default up to `MOST_POINTS`, evenly spaced."""
    if steps is None:
        steps = space_evenly(0, int(reader.lengths[episode]), MOST_POINTS)
    values = np.asarray(reader.values_at(key, int(reader.starts[episode]) + steps))
    flat = values.reshape(len(steps), prod(values.shape[1:])).astype(np.float64).T
    return Curves(join_key(key), feature_labels(values.shape[1:], names), episode, steps, flat)


def drawable(pictures: DatasetPictures) -> list[tuple[str, str]]:
    """List leaf and kind of each picture that `select` can return."""
    pairs = [(one.label, "histogram") for one in (pictures.returns, pictures.lengths) if one]
    for leaf in pictures.stats.leaves:
        if leaf.features is not None and leaf.dtype != "bool" and prod(leaf.shape) > 0:
            pairs += [(leaf.key, kind) for kind in ("histogram", "range", "curve")]
    return pairs + ([("observation", "coverage")] if pictures.coverage else [])


def select(
    reader: DatasetReader,
    pictures: DatasetPictures,
    leaf: str | None = None,
    kind: str | None = None,
) -> DatasetPictures:
    """Return the pictures of a leaf, or a kind; None: of all. Raises `UsageError` without any."""
    every = drawable(pictures)
    wanted = {pair for pair in every if leaf in {None, pair[0]} and kind in {None, pair[1]}}
    if not wanted:
        asked = " and ".join(
            f"{name} {value!r}" for name, value in (("feature", leaf), ("kind", kind)) if value
        )
        raise UsageError(
            f"{pictures.id} has no picture of {asked}; it has "
            + ", ".join(f"{key} {what}" for key, what in every[:20])
            + ", …" * (len(every) > 20),
            hint=did_you_mean(leaf or "", [key for key, _ in every]) or "`plot ID --list`",
        )
    names, left_out = feature_names(reader), list[tuple[str, str]]()
    histograms, ranges, curves = list[Histogram](), list[Ranges](), list[Curves]()
    by_rank = _by_rank(np.asarray(reader.episodes[("return",)]), 3)
    for one in pictures.stats.leaves:
        named = names.get(one.key, ())
        if (one.key, "range") in wanted:
            ranges.append(ranges_of(one, named))
        if (one.key, "curve") in wanted and one.key != "next/reward":
            key = split_key(one.key)
            curves.append(leaf_curves(reader, key, by_rank[len(by_rank) // 2], named))
        if (one.key, "histogram") in wanted:
            found = list(histograms_of(one, named))
            histograms += found[:_MOST_SELECTED]
            if (more := len(found) - _MOST_SELECTED) > 0:
                left_out.append((one.key, plural(more, "more dimension")))
    of_episodes = (pictures.returns, pictures.lengths)
    returns, lengths = (
        one if one and (one.label, "histogram") in wanted else None for one in of_episodes
    )
    return replace(
        pictures,
        returns=returns,
        lengths=lengths,
        rewards=tuple(histograms),
        actions=(),
        ranges=tuple(ranges),
        timelines=pictures.timelines if ("next/reward", "curve") in wanted else (),
        coverage=pictures.coverage if ("observation", "coverage") in wanted else None,
        left_out=tuple(left_out),
        curves=tuple(curves),
    )


def _root(key: str) -> str:
    return key.partition("/")[0]


def _why_not_measured(leaf: LeafStats) -> str:
    many = f"more than {MOST_FEATURES:,} numbers a row"
    return f"{leaf.kind}, {'complex numbers' if 'complex' in leaf.dtype else many}"


def histograms_of(leaf: LeafStats, names: tuple[str, ...] = ()) -> Iterator[Histogram]:
    """Yield the histogram of each number of a row, of a leaf with `features`, by its `names`."""
    features = leaf.features
    assert features is not None  # noqa: S101 - leaves without are excluded before
    integers = "float" not in leaf.dtype
    columns = (
        features.histogram.counts.reshape(-1, HISTOGRAM_BINS),
        features.histogram.edges.reshape(-1, HISTOGRAM_BINS + 1),
        features.count.ravel(),
        features.min.ravel(),
        features.max.ravel(),
    )
    labels = feature_labels(leaf.shape, names)
    for name, counts, edges, finite, low, high in zip(labels, *columns, strict=True):
        kind = (leaf.key + name, "transitions", integers, leaf.rows - int(finite))
        yield _histogram(counts, edges, (float(low), float(high)), *kind)


def histogram_of(label: str, values: NDArray[Any]) -> Histogram:
    """Count one number of each episode, `[E]`, in fewer bins if there are few."""
    finite = values[np.isfinite(values)]
    seen = Histograms(1, values.dtype)
    seen.add(finite[None], finite.min(keepdims=True), finite.max(keepdims=True))
    bins = int(np.clip(3 * np.sqrt(len(finite)), 8, HISTOGRAM_BINS))
    found = seen.histogram((), bins)
    kind = (label, "episodes", values.dtype.kind != "f", len(values) - len(finite))
    return _histogram(found.counts, found.edges, (float(finite.min()), float(finite.max())), *kind)


def _histogram(
    counts: NDArray[np.int64],
    edges: NDArray[np.float64],
    ends: tuple[float, float],
    label: str,
    unit: str,
    integers: bool,
    not_finite: int,
) -> Histogram:
    """Cut off what lies beyond the least and the greatest value, except of integers one by one."""
    filled = np.flatnonzero(counts)
    begin, stop = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
    counts, edges = counts[begin:stop].copy(), edges[begin : stop + 1]
    discrete = integers and bool(len(edges) > 1 and edges[1] - edges[0] == 1)
    if len(edges) > 2 and not discrete:
        if edges[-2] >= ends[1]:  # the greatest value alone in a bin, which would have no width
            counts[-2] += counts[-1]
            counts, edges = counts[:-1], edges[:-1]
        edges = np.clip(edges, *ends)
    return Histogram(label, unit, counts, edges, discrete, not_finite)


def ranges_of(leaf: LeafStats, names: tuple[str, ...] = ()) -> Ranges:
    """Return the range of each number of a row, of a leaf with `features`, by its `names`."""
    features = leaf.features
    assert features is not None  # noqa: S101 - leaves without are excluded before
    quantiles = features.quantiles.reshape(-1, len(QUANTILES))
    labels = feature_labels(leaf.shape, names)
    return Ranges(leaf.key, labels, quantiles, features.mean.ravel(), features.std.ravel())


def _by_rank(returns: NDArray[Any], count: int) -> list[int]:
    """Return different episodes, evenly spread by the rank of their returns, least first."""
    order = np.argsort(returns, kind="stable")  # NaN is last
    order = order[: np.isfinite(returns).sum() or None]
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return [int(number) for number in order[np.unique(places)]]


def timeline(reader: DatasetReader, episode: int, points: int = TIMELINE_POINTS) -> Timeline:
    """Read the rewards and flags of an episode, some rows at a time."""
    begin, length = int(reader.starts[episode]), int(reader.lengths[episode])
    every = -(-length // points)
    rows = max(_CHUNK_ITEMS // every, 1) * every
    sums, marks = [], {TERMINATED: [np.zeros(0, np.int64)], TRUNCATED: [np.zeros(0, np.int64)]}
    for first in range(0, length, rows):
        here = slice(begin + first, begin + min(first + rows, length))
        rewards = np.asarray(reader.step(REWARD)[here], np.float64).ravel()
        with np.errstate(invalid="ignore", over="ignore"):
            sums.append(np.add.reduceat(rewards, np.arange(0, len(rewards), every)))
        for key, found in marks.items():
            found.append(first + np.flatnonzero(reader.step(key)[here])[:_MOST_MARKS])
    total = np.concatenate(sums)
    step = np.minimum(np.arange(1, len(total) + 1) * every, length) - 1
    with np.errstate(invalid="ignore", over="ignore"):
        return Timeline(
            episode,
            length,
            every,
            step,
            total / np.diff(step, prepend=-1),
            np.cumsum(total),
            *(np.concatenate(found)[:_MOST_MARKS] for found in marks.values()),
        )


def _coverage(reader: DatasetReader, leaves: list[LeafStats]) -> tuple[Coverage | None, str]:
    """Project observations on their principal components; or say why not."""
    fitting = [leaf for leaf in leaves if prod(leaf.shape) <= COVERAGE_FEATURES]
    count = sum(prod(leaf.shape) for leaf in fitting)
    if not 0 < count <= COVERAGE_FEATURES:
        limit = f"more than {COVERAGE_FEATURES} numbers an observation"
        return None, limit if leaves else "no observation of numbers, other than images"
    mean, std = (
        np.concatenate([np.ravel(getattr(leaf.features, name)) for leaf in fitting])
        for name in ("mean", "std")
    )
    kept = np.flatnonzero((std > 1e-12 * np.abs(mean)) & np.isfinite(std))
    if not len(kept):
        return None, "every observation is the same"
    names = [leaf.key + name for leaf in fitting for name in feature_labels(leaf.shape)]
    rows = np.unique(
        np.linspace(0, reader.transitions - 1, min(COVERAGE_ROWS, reader.transitions)).astype(int)
    )
    step = max(_CHUNK_ITEMS // count, 1)

    def read_standardized_rows() -> Iterator[NDArray[np.float64]]:
        for begin in range(0, len(rows), step):
            some = rows[begin : begin + step]
            columns = [
                np.asarray(reader.values_at(split_key(leaf.key), some)).reshape(len(some), -1)
                for leaf in fitting
            ]
            numbers = np.concatenate(columns, axis=1).astype(np.float64)[:, kept]
            whole = numbers[np.isfinite(numbers).all(axis=1)]
            yield (whole - mean[kept]) / std[kept]

    used, total, products = 0, np.zeros(len(kept)), np.zeros((len(kept), len(kept)))
    for chunk in read_standardized_rows():
        used, total, products = used + len(chunk), total + chunk.sum(0), products + chunk.T @ chunk
    if not used:
        return None, "every observation has a number that is not finite"
    center = total / used
    variances, vectors = np.linalg.eigh(products / used - np.outer(center, center))
    variances = np.maximum(variances[::-1], 0)
    if not variances[0] > 0:
        return None, "every observation is the same"
    variances[variances < _ROUNDING * variances[0]] = 0
    components = np.zeros((2, len(kept)))
    varying = np.count_nonzero(variances[:2])
    components[:varying] = vectors.T[::-1][:varying]
    largest = np.take_along_axis(components, np.abs(components).argmax(1)[:, None], 1)
    components *= np.where(largest < 0, -1, 1)  # LAPACK gives either sign
    points = np.concatenate([(chunk - center) @ components.T for chunk in read_standardized_rows()])
    low, high = points.min(0), points.max(0)
    high = np.where(high > low, high, low + 1)
    edges = tuple(np.linspace(low[i], high[i], COVERAGE_BINS + 1) for i in (0, 1))
    counts, _, _ = np.histogram2d(points[:, 0], points[:, 1], bins=edges)
    shares = (*(variances[:2] / variances.sum()), 0.0)
    return Coverage(
        counts.astype(np.int64),
        (edges[0], edges[1]),
        (float(shares[0]), float(shares[1])),
        components,
        tuple(names[place] for place in kept),
        used,
    ), ""
