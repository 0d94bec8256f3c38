"""The charts and tables of a dataset's values."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from offline_data.episodes.fields import REWARD, join_key
from offline_data.pages import charts
from offline_data.pages.histograms import quantile
from offline_data.pages.page import Html, element, joined, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from offline_data.episodes.fields import Key
    from offline_data.pages.histograms import Bins, Distributions
    from offline_data.reports.stats import LeafStats

_FIRST = 8
"""Histograms of a leaf that are shown at once; the others are folded."""


def distribution_parts(found: Distributions) -> Html:
    """Return the histograms of returns, lengths and each feature, and tables of statistics."""
    described = {leaf.key: leaf for leaf in found.stats.leaves}
    leaves = (
        _leaf(key, bins, described[join_key(key)])
        for key, bins in found.features.items()
        if key != REWARD
    )
    numbers = [
        (element("code", leaf.key), leaf.kind, *map(_figure, _figures(leaf)))
        for leaf in found.stats.leaves
    ]
    titles = ("Leaf", "Type", "Min", "Max", "Mean", "Std", "NaN", "Inf")
    texts = [
        (
            element("code", one.key),
            _common(one.most_common),
            f"{one.distinct:,}",
            f"{one.missing:,}",
        )
        for one in found.stats.texts
    ]
    left_out = ", ".join(found.left_out)
    return joined(
        (
            element("div", whole_histograms({"": found}), class_="grid wide"),
            leaves,
            element("p", f"Without histograms: {left_out}", class_="soft") if left_out else None,
            element("h3", "Figures of each leaf"),
            table(titles, numbers, numbers=6),
            [
                element("h3", "Texts"),
                table(("Leaf", "Most common", "Distinct", "Missing"), texts, 2),
            ]
            if texts
            else None,
        )
    )


def whole_histograms(found: Mapping[str, Distributions]) -> list[Html]:
    """Return the histograms of returns, lengths and rewards, of several datasets by name."""
    quantities: tuple[tuple[str, str, str, dict[str, Bins | None]], ...] = (
        ("Return of episodes", "return", "episodes", {n: one.returns for n, one in found.items()}),
        ("Length of episodes", "steps", "episodes", {n: one.lengths for n, one in found.items()}),
        ("Reward", "reward", "transitions", {n: _reward(one) for n, one in found.items()}),
    )
    return [
        histogram(title, {name: bins for name, bins in of.items() if bins is not None}, x, y)
        for title, x, y, of in quantities
        if any(bins is not None for bins in of.values())
    ]


def histogram(title: str, bins: Mapping[str, Bins], x: str, y: str) -> Html:
    """Return the histogram of a quantity in one dataset, or those of several over each other.

    Several are given as shares, since datasets differ in size.
    """
    first, several = next(iter(bins.values())), len(bins) > 1
    values = {name: one.shares if several else one.counts for name, one in bins.items()}
    note = "ends: and beyond" if any(one.clipped for one in bins.values()) else ""
    if first.integers:
        labels = (first.edges[:-1] + 0.5).astype(np.int64).tolist()
        return charts.categories(title, labels, values, x=x, y=y, note=note, share=several)
    return charts.bars(title, first.edges, values, x=x, y=y, note=note, share=several)


def feature_names(key: Key, shape: Sequence[int], count: int) -> list[str]:
    """Return the names of the first features of a leaf, `action[0]`."""
    name = join_key(key)
    if prod(shape) == 1:
        return [name]
    places = (np.unravel_index(i, tuple(shape)) for i in range(count))
    return [f"{name}{[int(i) for i in place]}" for place in places]


def _leaf(key: Key, bins: Sequence[Bins], leaf: LeafStats) -> Html:
    names = feature_names(key, leaf.shape, len(bins))
    each = [
        histogram(name, {name: one}, "value", "rows") for name, one in zip(names, bins, strict=True)
    ]
    boxes = None
    if len(bins) > 1 and leaf.features is not None:
        levels: dict[str, ArrayLike] = {
            "least": leaf.features.min.ravel()[: len(bins)],
            "5 %": [quantile(one, 0.05) for one in bins],
            "median": [quantile(one, 0.5) for one in bins],
            "95 %": [quantile(one, 0.95) for one in bins],
            "greatest": leaf.features.max.ravel()[: len(bins)],
        }
        short = [name.removeprefix(join_key(key)) for name in names]
        boxes = charts.ranges(f"{join_key(key)}: ranges", short, levels, note="5 % to 95 %, median")
    hidden = prod(leaf.shape) - len(bins)
    title = f"{leaf.key}, {leaf.kind}" + (f": the first {len(bins)} features" if hidden else "")
    more = each[_FIRST:]
    return joined(
        (
            element("h3", title),
            element("div", boxes, class_="full") if boxes else None,
            element("div", each[:_FIRST], class_="grid"),
            element(
                "details",
                element("summary", f"{len(more)} more features"),
                element("div", more, class_="grid"),
            )
            if more
            else None,
        )
    )


def _reward(found: Distributions) -> Bins | None:
    bins = found.features.get(REWARD)
    return bins[0] if bins else None


def _figures(leaf: LeafStats) -> tuple[float | None, ...]:
    return (leaf.min, leaf.max, leaf.mean, leaf.std, leaf.nan, leaf.inf)


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) and abs(value) < 1_000_000 else f"{value:.4g}"


def _common(words: Sequence[tuple[str, int]]) -> Html:
    return element("ul", (element("li", f"{word} ({count:,})") for word, count in words))
