"""A comparison: one self-contained HTML file about several datasets, side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.registry import select_rules
from offline_data.analysis.checks.run import run_checks
from offline_data.analysis.figures import DatasetStats
from offline_data.analysis.info import DatasetInfo, entry_info
from offline_data.analysis.statistics import dataset_stats
from offline_data.base.files import human_bytes
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.document.html import Html, element, table_of
from offline_data.reports.pages import charts, sections
from offline_data.reports.pages.distributions import (
    REWARD,
    drawn_features,
    drawn_leaves,
    of_episodes,
)
from offline_data.reports.pages.page import page, section
from offline_data.reports.pictures import Histogram, histogram_of
from offline_data.store.library import Entry
from offline_data.store.names import feature_names
from offline_data.store.reader import DatasetReader, open_reader

_BINS = 32  # bins that datasets share: fewer than those of a histogram, so that these seldom split
_MOST_DRAWN = 12
_ABOUT = (
    "Largest distance first: Wasserstein-1, divided by the range over all datasets; 0 is equal, 1 is "
    "opposite ends. With more than two datasets, the largest over pairs."
)


def compare_page(
    entries: Sequence[Entry], *, workers: int = 1, progress: Progress = SILENT
) -> bytes:
    """Return a page that shows two or more different datasets side by side.

    Reads each twice, in bounded memory. Raises `ManifestError` or `FormatError` if a file is
    missing or damaged.
    """
    readers = [open_reader(entry.path) for entry in entries]
    infos = [entry_info(entry) for entry in entries]
    names = _unique([info.id for info in infos])
    found = {name: dataset_stats(one, progress) for name, one in zip(names, readers, strict=True)}
    report = run_checks(
        [entry.path for entry in entries], select_rules(), workers=workers, progress=progress
    )
    titles = {
        "datasets": "Datasets",
        "distributions": "Differences",
        "schema": "Schema",
        "findings": "Findings",
    }
    content = {
        "datasets": _counts(infos, found),
        "schema": _schemas(infos, names),
        "distributions": _distributions(readers, found),
        "findings": sections.findings(report),
    }
    return page(
        ", ".join(info.name for info in infos),
        (section(name, title, content[name]) for name, title in titles.items()),
        links=[(f"#{name}", title) for name, title in titles.items()],
    )


def _unique(ids: Sequence[str]) -> list[str]:
    """Return ids, those of further copies of a dataset with the number of the copy."""
    copies = [ids[:place].count(one) for place, one in enumerate(ids)]
    return [f"{one} ({n + 1})" if n else one for one, n in zip(ids, copies, strict=True)]


def _counts(infos: Sequence[DatasetInfo], found: dict[str, DatasetStats]) -> Html:
    rows = []
    for info, (name, stats) in zip(infos, found.items(), strict=True):
        spreads = stats.per_episode
        means = [f"{one.mean:.4g}" if one else "–" for one in (spreads.returns, spreads.length)]
        rows.append(
            (
                sections.dataset_name(name),
                info.licence or "not stated",
                f"{info.transitions:,}",
                f"{info.episodes:,}",
                human_bytes(info.bytes),
                *means,
                f"{100 * spreads.terminated:.3g} %",
            )
        )
    titles = ("Dataset", "Licence", "Steps", "Episodes", "Size")
    return table_of((*titles, "Mean return", "Mean length", "Terminated"), rows, numbers=6)


def _schemas(infos: Sequence[DatasetInfo], names: Sequence[str]) -> Html:
    """Return the type of every leaf in each dataset; differences stand out."""
    rows = []
    for key in sorted({key for info in infos for key in info.schema}):
        kinds = [_kind(info, key) for info in infos]
        same = len(set(kinds)) == 1
        cells = (
            kinds if same else [element("b", kind or "absent", class_="warning") for kind in kinds]
        )
        rows.append((element("code", key), *cells))
    return table_of(("Feature", *map(sections.dataset_name, names)), rows)


def _kind(info: DatasetInfo, key: str) -> str:
    leaf = info.schema.get(key)
    if leaf is None:
        return ""
    encoding = f" {leaf['encoding']}" if "encoding" in leaf else ""
    return f"{'text' if leaf['text'] else leaf['dtype']}{encoding} {list(leaf['shape'])}"


def common_bins(
    histograms: Sequence[Histogram],
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """Return edges of bins for several histograms, and the share of the values in each bin of each.

    Integers that span at most `_BINS` have a bin each, exact. Otherwise the values of a bin of a
    histogram are taken to be spread evenly over it, so that a share is exact to within that bin.

    Example:
        >>> from offline_data.reports.pictures import histogram_of
        >>> edges, shares = common_bins(
        ...     [histogram_of("a", np.array([1, 2])), histogram_of("b", np.array([2, 2, 4]))]
        ... )
        >>> edges.tolist(), [one.round(2).tolist() for one in shares]
        ([1.0, 2.0, 3.0, 4.0, 5.0], [[0.5, 0.5, 0.0, 0.0], [0.0, 0.67, 0.0, 0.33]])
    """
    low = min(float(one.edges[0]) for one in histograms)
    high = max(float(one.edges[-1]) for one in histograms)
    whole = all(one.discrete for one in histograms) and high - low <= _BINS
    edges = np.arange(low, high + 1) if whole else np.linspace(low, high, _BINS + 1)
    shares = []
    for one in histograms:
        sums = np.concatenate([[0.0], np.cumsum(one.counts)])
        shares.append(np.diff(np.interp(edges, one.edges, sums)) / sums[-1])
    return edges, shares


def distance(first: Histogram, second: Histogram) -> float:
    """Return how far two histograms of one quantity are apart: 0 for equal ones, 1 for opposite ends.

    The Wasserstein-1 distance between the distributions `F` and `G`, divided by the range of both,

        W = ∫ |F(x) - G(x)| dx / (max - min),

    where the values of a bin are taken to be spread evenly over it, and a constant is a step: exact
    to within a bin of the histograms.

    Example:
        >>> from offline_data.reports.pictures import histogram_of
        >>> a, b = (histogram_of("x", np.array(v, float)) for v in ([0, 1], [1, 2]))
        >>> round(distance(a, a), 2), round(distance(a, b), 2)
        (0.0, 0.5)
    """
    parts = [_steps(one) for one in (first, second)]
    points = np.unique(np.concatenate([edges for edges, _ in parts]))
    if len(points) < 2 or not np.isfinite(points / 2).all():
        return 0.0
    scaled = (points / 2 - points[0] / 2) / (points[-1] / 2 - points[0] / 2)
    # Linear between edges, with jumps at constants: so the limits on both sides of each interval.
    low, high = np.zeros(len(points) - 1), np.zeros(len(points) - 1)
    for sign, (edges, shares) in zip((1, -1), parts, strict=True):
        if len(edges) == 1:
            at = (points[:-1] >= edges[0]).astype(float)
            low, high = low + sign * at, high + sign * at
        else:
            at = np.interp(points, edges, shares)
            low, high = low + sign * at[:-1], high + sign * at[1:]
    same = low * high >= 0
    with np.errstate(invalid="ignore", divide="ignore"):
        crossing = (low**2 + high**2) / (2 * (np.abs(low) + np.abs(high)))
    area = np.where(same, (np.abs(low) + np.abs(high)) / 2, crossing)
    return float((area * np.diff(scaled)).sum())


def _steps(one: Histogram) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return edges and the share of values below each; one edge for a constant."""
    if one.constant:
        return one.edges[:1], np.ones(1)
    shares = np.concatenate([[0.0], np.cumsum(one.counts)]) / one.counts.sum()
    return one.edges, shares


def _distributions(
    readers: Sequence[DatasetReader], found: dict[str, DatasetStats]
) -> list[Html | None]:
    """Return the quantities by distance, the farthest first: the first ones drawn, all in a table."""
    exact = {name: _of_episodes(name, readers) for name in ("return", "length")}
    quantities = {
        name: dict(zip(found, parts, strict=True)) for name, parts in exact.items() if parts
    }
    for (name, stats), reader in zip(found.items(), readers, strict=True):
        named = feature_names(reader)
        each = [one for one in of_episodes(reader, stats) if not exact.get(one.label)]
        each += [
            one
            for leaf in drawn_leaves(stats)[0]
            if leaf.key != REWARD
            for one in drawn_features(leaf, named.get(leaf.key, ()))
        ]
        for one in each:
            quantities.setdefault(one.label, {})[name] = one
    common = {label: by for label, by in quantities.items() if len(by) == len(found)}
    far = {
        label: max(distance(a, b) for a, b in combinations(by.values(), 2))
        for label, by in common.items()
    }
    order = sorted(far, key=lambda label: -far[label])
    differing = [label for label in order if not _identical(common[label])]
    drawn = differing[:_MOST_DRAWN]
    same = len(order) - len(differing)
    rows = [(element("code", label), f"{far[label]:.3f}") for label in differing[_MOST_DRAWN:]]
    what = f"{plural(len(order), 'quantity', 'quantities')} in common, "
    what += "all identical." if same == len(order) else f"{same or 'none'} identical."
    lone = Counter(label.partition("[")[0] for label in quantities if label not in common)
    missing = [f"{key} ({plural(count, 'dimension')})" for key, count in lone.items()]
    return [
        element("p", what),
        element("p", f"Not in every dataset: {', '.join(missing)}.") if missing else None,
        element("p", _ABOUT, class_="soft") if drawn else None,
        charts.legend(list(found)) if drawn else None,
        element("div", (_overlaid(common[one], far[one]) for one in drawn), class_="grid wide"),
        table_of(("Quantity", "Distance"), rows, numbers=1) if rows else None,
    ]


def _of_episodes(label: str, readers: Sequence[DatasetReader]) -> list[Histogram]:
    """Return exact histograms of a number per episode, in the same bins; none if one has no value."""
    values = [np.asarray(one.episodes[(label,)], np.float64) for one in readers]
    finite = [column[np.isfinite(column)] for column in values]
    if not all(map(len, finite)):
        return []
    every = np.concatenate(finite)
    if every.min() == every.max():
        return [histogram_of(label, column) for column in values]
    edges = np.histogram_bin_edges(every, _BINS)
    return [
        Histogram(
            label, "episodes", np.histogram(some, edges)[0], edges, False, len(column) - len(some)
        )
        for some, column in zip(finite, values, strict=True)
    ]


def _identical(histograms: dict[str, Histogram]) -> bool:
    """Return True if all count the same values."""
    first, *others = histograms.values()
    return all(
        first.not_finite == other.not_finite
        and np.array_equal(first.counts, other.counts)
        and np.array_equal(first.edges, other.edges)
        for other in others
    )


def _overlaid(histograms: dict[str, Histogram], far: float) -> Html:
    """Return histograms of one quantity, by dataset, over each other as shares."""
    first = next(iter(histograms.values()))
    edges, shares = common_bins(list(histograms.values()))
    named = dict(zip(histograms, shares, strict=True))
    note = f"distance {far:.3f}"
    return charts.bars(first.label, edges, named, x="value", y=first.counted, share=True, note=note)
