"""The charts and tables of a dataset's values."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from offline_data.analysis.figures import DatasetStats, LeafStats, leaf_table, text_table
from offline_data.analysis.frames import image_layout
from offline_data.base.plurals import plural
from offline_data.document.html import Html, as_html, element, render
from offline_data.episode.fields import split_key
from offline_data.reports.pages import charts
from offline_data.reports.pages.curves import (
    WIDE,
    constants_sentence,
    curves_parts,
)
from offline_data.reports.pictures import (
    Histogram,
    histogram_of,
    histograms_of,
    leaf_curves,
    ranges_of,
)
from offline_data.store.names import feature_names
from offline_data.store.quantiles import QUANTILES
from offline_data.store.reader import DatasetReader

REWARD = "next/reward"

_MOST_DRAWN = 256  # histograms of all leaves; leaves that come later have none
_FIRST = 8  # histograms of a leaf that are shown at once; the others are folded

_LEVELS = {"least": 0.0, "5 %": 0.05, "median": 0.5, "95 %": 0.95, "greatest": 1.0}


def leaf_parts(reader: DatasetReader, stats: DatasetStats, episode: int) -> Html:
    """Return charts of each leaf, those of many features over an episode, and tables of figures."""
    drawn, left_out = drawn_leaves(stats)
    skipped = f"Without histograms: {', '.join(left_out)}" if left_out else None
    names = feature_names(reader)
    return as_html(
        (
            (
                _wide_leaf(reader, leaf, names.get(leaf.key, ()), episode)
                if prod(leaf.shape) >= WIDE
                else _leaf(leaf, names.get(leaf.key, ()))
                for leaf in drawn
                if leaf.key != REWARD
            ),
            element("p", skipped, class_="soft") if skipped else None,
            element("h3", "Statistics of each feature"),
            render(leaf_table(stats.leaves)),
            (element("h3", "Texts"), render(text_table(stats))) if stats.texts else None,
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
        width = prod(leaf.shape) if prod(leaf.shape) < WIDE else 1
        if leaf.features is None or image_layout(leaf.dtype, leaf.shape) or width > room:
            left_out.append(leaf.key)
            continue
        drawn.append(leaf)
        room -= width
    return drawn, left_out


def drawn_features(leaf: LeafStats, names: tuple[str, ...] = ()) -> list[Histogram]:
    """Return the histograms of the features of a leaf that have a finite value."""
    return [one for one in histograms_of(leaf, names) if len(one.counts)]


def _leaf(leaf: LeafStats, names: tuple[str, ...]) -> Html:
    """Return a sentence on constant features, and the ranges and histograms of the others."""
    found = drawn_features(leaf, names)
    varying = [one for one in found if not one.constant]
    each, boxes = list(map(chart_of, varying)), None
    if len(varying) > 1:
        ranges = ranges_of(leaf, names)
        shown = np.isin([leaf.key + name for name in ranges.names], [one.label for one in varying])
        labels = [name for name, so in zip(ranges.names, shown, strict=True) if so]
        levels: dict[str, ArrayLike] = {
            name: ranges.quantiles[shown, QUANTILES.index(level)] for name, level in _LEVELS.items()
        }
        boxes = charts.ranges(f"{leaf.key}: ranges", labels, levels, note="5 % to 95 %, median")
    constant = {
        one.label.removeprefix(leaf.key): float(one.edges[0])
        for one in found
        if one.constant and not one.not_finite
    }
    each += [chart_of(one) for one in found if one.constant and one.not_finite]
    folded = (
        element("summary", plural(len(each) - _FIRST, "more dimension")),
        element("div", each[_FIRST:], class_="grid"),
    )
    return as_html(
        (
            element("h3", f"{leaf.key}, {leaf.kind}"),
            element("p", constants_sentence(constant, len(found))) if constant else None,
            element("div", boxes, class_="full") if boxes else None,
            element("div", each[:_FIRST], class_="grid") if each else None,
            element("details", folded) if each[_FIRST:] else None,
        )
    )


def _wide_leaf(
    reader: DatasetReader, leaf: LeafStats, names: tuple[str, ...], episode: int
) -> Html:
    curves = leaf_curves(reader, split_key(leaf.key), episode, names)
    note = f"episode {episode}"
    return as_html(
        (
            element("h3", f"{leaf.key}, {leaf.kind}"),
            element("div", curves_parts(curves, (), note), class_="grid pair"),
        )
    )


def chart_of(one: Histogram) -> Html:
    """Return a histogram as a chart, with a labelled bar for each integer; a constant as a sentence."""
    note = f"{one.not_finite:,} not finite" if one.not_finite else ""
    if one.constant:
        unit = one.counted.removesuffix("s")
        always = "Always " if one.counts[0] > 1 else ""
        said = f"{always}{one.edges[0]:,.6g}, in {plural(one.counts[0], unit)}."
        caption = element("figcaption", element("b", one.label), element("small", note))
        return element("figure", caption, element("p", said), class_="sentence")
    named, x = {one.label: one.counts}, "steps" if one.label == "length" else "value"
    if one.discrete:
        labels = one.edges[:-1].astype(np.int64).tolist()
        return charts.categories(one.label, labels, named, x=x, y=one.counted, note=note)
    return charts.bars(one.label, one.edges, named, x=x, y=one.counted, note=note)
