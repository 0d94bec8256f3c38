"""Pictures of a dataset as lines of block characters, for a terminal without a display."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from offline_data.base.plurals import plural

if TYPE_CHECKING:
    from offline_data.reports.pictures import (
        Coverage,
        Curves,
        DatasetPictures,
        Histogram,
        Ranges,
        Timeline,
    )

_BARS = " ▁▂▃▄▅▆▇█"
_SHADES = " ░▒▓█"
_HEIGHT = 4
_CHART = 36  # least width of a histogram; those that fit stand side by side
_NARROWEST = 24
_MOST_ACTIONS, _MOST_DIMENSIONS = 12, 24


def chart_lines(pictures: DatasetPictures, width: int) -> list[str]:
    """Draw a dataset in `width` columns, 24 at least.

    Histograms, a line for each number of an observation and for some episodes, and the coverage of
    two principal components in shades.
    """
    width = max(width, _NARROWEST)
    first = [*filter(None, (pictures.returns, pictures.lengths)), *pictures.rewards]
    counts = f"{plural(pictures.transitions, 'step')} in {plural(pictures.episodes, 'episode')}"
    actions = pictures.actions[:_MOST_ACTIONS]
    shown = [*first, *actions]
    lines = [pictures.id, counts, ""]
    for one in (each for each in shown if each.constant):
        said = f", {one.not_finite:,} not finite" * bool(one.not_finite)
        text = f"{one.label}: always {one.edges[0]:.6g} in {plural(one.counts[0], one.counted.removesuffix('s'))}{said}"
        lines += wrap(text, width)
    varying = [each for each in shown if not each.constant]
    lines += [*([""] if len(varying) < len(shown) else []), *_side_by_side(varying, width)]
    lines += _more(len(pictures.actions) - len(actions), "numbers of the action")
    for leaf in pictures.ranges:
        lines += [*_range_lines(leaf, width), ""]
    for curves in pictures.curves:
        lines += _curve_lines(curves, width)
    for timeline in pictures.timelines:
        lines += _timeline_lines(timeline, width)
    if pictures.coverage:
        lines += ["", *_coverage_lines(pictures.coverage, width)]
    lines += [f"not drawn: {what}: {why}" for what, why in pictures.left_out]
    return [line.rstrip() for line in lines]


def _more(count: int, what: str) -> list[str]:
    return [f"… and {count} more {what}", ""] if count > 0 else []


def _side_by_side(histograms: Sequence[Histogram], width: int) -> Iterator[str]:
    """Yield the lines of histograms, as many side by side as fit."""
    columns = max(width // _CHART, 1)
    each = width // columns - 2
    for begin in range(0, len(histograms), columns):
        parts = [_histogram_lines(shown, each) for shown in histograms[begin : begin + columns]]
        tall = max(len(title) for title, _ in parts)
        charts = [title + [""] * (tall - len(title)) + body for title, body in parts]
        for row in zip_longest(*charts, fillvalue=""):
            yield "  ".join(cell.ljust(each) for cell in row)
        yield ""


def _histogram_lines(histogram: Histogram, width: int) -> tuple[list[str], list[str]]:
    """Return the lines of a title and those of the drawing below."""
    counts, edges = histogram.counts, histogram.edges
    missing = f", {histogram.not_finite:,} not finite" if histogram.not_finite else ""
    title = f"{histogram.label} ({histogram.counted}{missing})"
    if not len(counts):
        return wrap(title, width), ["no finite value"]
    if histogram.discrete and len(counts) <= _HEIGHT + 2:
        return wrap(title, width), _bars(edges[:-1], counts, width)
    merged = -(-len(counts) // width)
    counts = np.add.reduceat(counts, np.arange(0, len(counts), merged))
    title = f"{title[:-1]}, up to {counts.max():,} a column)"
    counts = np.repeat(counts, width // len(counts))
    low, high = f"{edges[0]:.4g}", f"{edges[-1] - histogram.discrete:.4g}"
    axis = low + high.rjust(max(len(counts) - len(low), len(high) + 1))
    return wrap(title, width), [*_columns(counts), axis]


def _bars(values: NDArray[np.float64], counts: NDArray[np.int64], width: int) -> list[str]:
    names, numbers = [f"{value:.0f}" for value in values], [f"{count:,}" for count in counts]
    wide, most = max(map(len, names)), max(map(len, numbers))
    longest = max(width - wide - most - 2, 1)
    return [
        f"{name:>{wide}} {number:>{most}} {chr(0x2588) * round(longest * count / counts.max())}"
        for name, number, count in zip(names, numbers, counts.tolist(), strict=True)
    ]


def _columns(heights: NDArray[np.generic], rows: int = _HEIGHT) -> list[str]:
    """Draw columns of eighths of a character; one that is not 0 has at least one."""
    eighths = np.ceil(8 * rows * heights / heights.max()).astype(int)
    levels = (np.clip(eighths - 8 * row, 0, 8).tolist() for row in reversed(range(rows)))
    return ["".join(_BARS[level] for level in row) for row in levels]


def _range_lines(leaf: Ranges, width: int) -> list[str]:
    """Draw each number from its minimum to its maximum: 5 to 95 % shaded, 25 to 75 % filled."""
    shown = leaf.quantiles[:_MOST_DIMENSIONS]
    names = [_cut(name, width // 3) for name in leaf.names[:_MOST_DIMENSIONS]]
    wide = max(map(len, names))
    lines = wrap(f"{leaf.label}: minimum, 5 ▒ 25 █ 75 ▒ 95 %, maximum", width)
    for name, (low, _, five, _, quarter, median, three, _, most, _, high) in zip(
        names, shown.tolist(), strict=True
    ):
        if not low < high:
            text = "no finite value" if np.isnan(low) else f"always {low:.6g}"
            lines.append(f"{name:<{wide}} {text}")
            continue
        cells = max(width - wide - 22, 4)
        scale = (cells - 1) / (high / 2 - low / 2) / 2  # the difference may not be finite
        at = [round((level - low) * scale) for level in (five, quarter, median, three, most)]
        bar = ["─"] * cells
        bar[at[0] : at[4] + 1] = "▒" * (at[4] - at[0] + 1)
        bar[at[1] : at[3] + 1] = "█" * (at[3] - at[1] + 1)
        bar[at[2]] = "│"
        lines.append(f"{name:<{wide}} {low:>9.3g} {''.join(bar)} {high:<9.3g}")
    return lines + _more(len(leaf.names) - len(shown), f"numbers of {leaf.label}")[:1]


def _curve_lines(curves: Curves, width: int) -> Iterator[str]:
    """Yield the lines of each feature of a leaf over an episode."""
    yield from wrap(f"{curves.key} in episode {curves.episode}", width)
    for name, values in zip(curves.names[:_MOST_DIMENSIONS], curves.values, strict=False):
        points = values[np.linspace(0, len(values) - 1, width - 1).round().astype(int)]
        low, high = np.fmin.reduce(values), np.fmax.reduce(values)
        yield from wrap(f"{name or curves.key}: {low:.4g} to {high:.4g}", width)
        if np.isfinite(points).all() and points.max() > points.min():
            heights = points / 2 - low / 2
            yield from _columns(heights + heights.max() * 1e-9, 2)
    yield from _more(len(curves.names) - _MOST_DIMENSIONS, f"numbers of {curves.key}") or [""]


def _timeline_lines(line: Timeline, width: int) -> list[str]:
    ends = (("terminated", line.terminated), ("truncated", line.truncated))
    said = " and ".join(name for name, steps in ends if len(steps)) or "no end flag"
    title = f"episode {line.episode}: cumulative reward {line.cumulated[-1]:.4g}, "
    title += f"{plural(line.length, 'step')}, {said}"
    points = line.cumulated[np.linspace(0, len(line.step) - 1, width - 1).round().astype(int)]
    low = np.fmin.reduce(points)
    if not np.isfinite(points).all() or not points.max() > low:
        return wrap(title, width)
    heights = points / 2 - low / 2
    return [*wrap(title, width), *_columns(heights + heights.max() * 1e-9, 2)]


def _coverage_lines(coverage: Coverage, width: int) -> list[str]:
    """Draw the density of observations, the first component from left to right."""
    across = 1 if len(coverage.counts) <= width else 2
    cells = coverage.counts.reshape(len(coverage.counts) // across, across, -1, 4).sum((1, 3)).T
    shades = np.zeros(cells.shape, int)
    filled = cells > 0
    top = max(float(np.log(cells.max())), 1e-9)
    shades[filled] = 1 + np.round(3 * np.log(cells[filled]) / top).astype(int)
    first, second = (f"{100 * share:.3g}" for share in coverage.explained)
    title = f"coverage: components of {first} % (across) and {second} % of variance"
    return [
        *wrap(title, width),
        *("".join(_SHADES[shade] for shade in row) for row in shades[::-1]),
    ]


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
