"""A comparison: one self-contained HTML file about several datasets, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.checks.registry import select_rules
from offline_data.checks.run import run_checks
from offline_data.files import human_bytes
from offline_data.pages import charts, sections
from offline_data.pages.distributions import REWARD, drawn_features, drawn_leaves
from offline_data.pages.page import Html, element, page, section, table
from offline_data.progress import SILENT, Progress
from offline_data.reports.info import DatasetInfo, entry_info
from offline_data.reports.pictures import Histogram
from offline_data.reports.stats import DatasetStats, dataset_stats
from offline_data.store.library import Entry
from offline_data.store.reader import DatasetReader, open_reader

_BINS = 32
"""Bins that several datasets share: fewer than those of a histogram, so that these seldom split."""


def compare_page(
    entries: Sequence[Entry], *, workers: int = 1, progress: Progress = SILENT
) -> bytes:
    """Return a page that shows datasets side by side; reads each twice, in bounded memory.

    Args:
        entries: The datasets, two at least; each once.
        workers: Threads that check them.

    Raises:
        ManifestError, FormatError: A file is missing or damaged.
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
        "schema": "Schema",
        "distributions": "Distributions",
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
                element("code", name),
                info.licence or "not stated",
                f"{info.transitions:,}",
                f"{info.episodes:,}",
                human_bytes(info.bytes),
                *means,
                f"{100 * spreads.terminated:.3g} %",
            )
        )
    titles = ("Dataset", "Licence", "Transitions", "Episodes", "Size")
    return table((*titles, "Mean return", "Mean length", "Terminated"), rows, numbers=6)


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
    return table(("Leaf", *names), rows)


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


def _distributions(readers: Sequence[DatasetReader], found: dict[str, DatasetStats]) -> list[Html]:
    returns, lengths = (
        {
            name: np.asarray(one.episodes[(column,)])
            for name, one in zip(found, readers, strict=True)
        }
        for column in ("return", "length")
    )
    rewards = {
        name: one
        for name, stats in found.items()
        for leaf in stats.leaves
        if leaf.key == REWARD
        for one in drawn_features(leaf)
    }
    whole = (
        _of_episodes("return", returns, "return"),
        _of_episodes("length", lengths, "steps"),
        _overlaid(rewards) if len(rewards) == len(found) else None,
    )
    parts = [charts.legend(list(found)), element("div", whole, class_="grid wide")]
    first, *others = found.values()
    for leaf in drawn_leaves(first)[0]:
        same = [other for one in others for other in one.leaves if other.key == leaf.key]
        if len(same) < len(others) or any(
            one.features is None or one.shape != leaf.shape for one in same
        ):
            continue
        features: dict[str, dict[str, Histogram]] = {}
        for name, of_dataset in zip(found, (leaf, *same), strict=True):
            for histogram in drawn_features(of_dataset):
                features.setdefault(histogram.label, {})[name] = histogram
        if leaf.key != REWARD:
            each = [_overlaid(one) for one in features.values() if len(one) == len(found)]
            parts += [
                element("h3", f"{leaf.key}, {leaf.kind}"),
                element("div", each, class_="grid"),
            ]
    return parts


def _of_episodes(title: str, values: dict[str, NDArray[Any]], x: str) -> Html | None:
    """Return exact histograms of a number per episode; None where a dataset has no finite one."""
    finite = {name: column[np.isfinite(column)] for name, column in values.items()}
    if not all(map(len, finite.values())):
        return None
    edges = np.histogram_bin_edges(np.concatenate(list(finite.values())), _BINS)
    shares = {name: np.histogram(one, edges)[0] / len(one) for name, one in finite.items()}
    return charts.bars(title, edges, shares, x=x, y="episodes", share=True)


def _overlaid(histograms: dict[str, Histogram]) -> Html:
    """Return histograms of one quantity, by dataset, over each other as shares."""
    first = next(iter(histograms.values()))
    edges, shares = common_bins(list(histograms.values()))
    named = dict(zip(histograms, shares, strict=True))
    return charts.bars(first.label, edges, named, x="value", y=first.unit, share=True)
