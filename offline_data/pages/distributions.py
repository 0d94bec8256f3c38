"""The charts and tables of a dataset's values."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from offline_data.pages import charts
from offline_data.pages.page import Html, as_html, element, table
from offline_data.reports.frames import image_layout
from offline_data.reports.histograms import QUANTILES
from offline_data.reports.pictures import Histogram, histogram_of, histograms_of
from offline_data.reports.stats import DatasetStats, LeafStats
from offline_data.store.reader import DatasetReader

REWARD = "next/reward"

MOST_FEATURES = 48
"""Features of a leaf that are drawn: the first ones."""
_MOST_DRAWN = 256
"""Features of all leaves that are drawn; leaves that come later are not."""
_FIRST = 8
"""Histograms of a leaf that are shown at once; the others are folded."""
_MOST_LABELS = 40
"""Integers that have a labelled bar each."""

_LEVELS = {"least": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "greatest": 1.0}


def distribution_parts(reader: DatasetReader, stats: DatasetStats) -> Html:
    """Return the histograms of returns, lengths and each feature, and tables of statistics."""
    drawn, left_out = drawn_leaves(stats)
    numbers = [
        (element("code", leaf.key), leaf.kind, *map(_figure, _figures(leaf)))
        for leaf in stats.leaves
    ]
    texts = [
        (
            element("code", one.key),
            _common(one.most_common),
            f"{one.distinct:,}",
            f"{one.missing:,}",
        )
        for one in stats.texts
    ]
    text_titles = ("Leaf", "Most common", "Distinct", "Missing")
    skipped = f"Without histograms: {', '.join(left_out)}" if left_out else None
    return as_html(
        (
            element("div", map(_chart, of_episodes(reader, stats)), class_="grid wide"),
            (_leaf(leaf) for leaf in drawn if leaf.key != REWARD),
            element("p", skipped, class_="soft") if skipped else None,
            element("h3", "Figures of each leaf"),
            table(("Leaf", "Type", "Min", "Max", "Mean", "Std", "NaN", "Inf"), numbers, numbers=6),
            (element("h3", "Texts"), table(text_titles, texts, numbers=2)) if texts else None,
        )
    )


def of_episodes(reader: DatasetReader, stats: DatasetStats) -> Iterator[Histogram]:
    """Yield the histograms of returns, lengths and rewards; none of one without a finite value."""
    returns = np.asarray(reader.episodes[("return",)])
    if np.isfinite(returns).any():
        yield histogram_of("return", returns)
    yield histogram_of("length", reader.lengths)
    yield from (one for leaf in stats.leaves if leaf.key == REWARD for one in drawn_features(leaf))


def drawn_leaves(stats: DatasetStats) -> tuple[list[LeafStats], list[str]]:
    """Return leaves whose features are drawn, rewards and actions first, and the keys of others.

    Flags are not drawn, and not among the others.
    """
    leaves = [leaf for leaf in stats.leaves if leaf.dtype != "bool" and prod(leaf.shape) > 0]
    leaves.sort(
        key=lambda leaf: (
            leaf.key != REWARD,
            not leaf.key.startswith("action"),
            not leaf.key.startswith("observation"),
            leaf.key,
        )
    )
    drawn, left_out, room = list[LeafStats](), list[str](), _MOST_DRAWN
    for leaf in leaves:
        width = min(prod(leaf.shape), MOST_FEATURES)
        if leaf.features is None or image_layout(leaf.dtype, leaf.shape) or width > room:
            left_out.append(leaf.key)
            continue
        drawn.append(leaf)
        room -= width
    return drawn, left_out


def drawn_features(leaf: LeafStats) -> list[Histogram]:
    """Return the histograms of the first features of a leaf that have a finite value."""
    return [one for one in islice(histograms_of(leaf), MOST_FEATURES) if len(one.counts)]


def _leaf(leaf: LeafStats) -> Html:
    found = drawn_features(leaf)
    shown = min(prod(leaf.shape), MOST_FEATURES)
    more = f": the first {shown} features" if shown < prod(leaf.shape) else ""
    boxes = None
    if shown > 1 and leaf.features is not None:
        quantiles = leaf.features.quantiles.reshape(-1, len(QUANTILES))[:shown]
        levels: dict[str, ArrayLike] = {
            name: quantiles[:, QUANTILES.index(level)] for name, level in _LEVELS.items()
        }
        names = [str(list(place)) for place in islice(np.ndindex(*leaf.shape), shown)]
        boxes = charts.ranges(f"{leaf.key}: ranges", names, levels, note="5 % to 95 %, median")
    each = [_chart(one) for one in found]
    folded = (
        element("summary", f"{len(each) - _FIRST} more features"),
        element("div", each[_FIRST:], class_="grid"),
    )
    return as_html(
        (
            element("h3", f"{leaf.key}, {leaf.kind}{more}"),
            element("div", boxes, class_="full") if boxes else None,
            element("div", each[:_FIRST], class_="grid"),
            element("details", folded) if each[_FIRST:] else None,
        )
    )


def _chart(one: Histogram) -> Html:
    """Return a histogram as a chart, with a labelled bar for each of a few integers."""
    note = f"{one.not_finite:,} not finite" if one.not_finite else ""
    named, x = {one.label: one.counts}, "steps" if one.label == "length" else "value"
    if one.discrete and len(one.counts) <= _MOST_LABELS:
        labels = one.edges[:-1].astype(np.int64).tolist()
        return charts.categories(one.label, labels, named, x=x, y=one.unit, note=note)
    return charts.bars(one.label, one.edges, named, x=x, y=one.unit, note=note)


def _figures(leaf: LeafStats) -> tuple[float | None, ...]:
    return (leaf.min, leaf.max, leaf.mean, leaf.std, leaf.nan, leaf.inf)


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) and abs(value) < 1_000_000 else f"{value:.4g}"


def _common(words: tuple[tuple[str, int], ...]) -> Html:
    return element("ul", (element("li", f"{word} ({count:,})") for word, count in words))
