"""One figure of a dataset by matplotlib; the only file that imports it.

Drawing functions return a `matplotlib.figure.Figure`; they raise `MissingDependencyError` without
matplotlib.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import MissingDependencyError, UsageError
from offline_data.base.files import write_user_file
from offline_data.base.plurals import plural

if TYPE_CHECKING:
    from offline_data.analysis.alignment.find import Alignment
    from offline_data.analysis.episodes import EpisodeQuality
    from offline_data.analysis.replay import Replay
    from offline_data.reports.pictures import (
        Coverage,
        Curves,
        DatasetPictures,
        Histogram,
        Ranges,
        Timeline,
    )

FORMATS = ("png", "svg", "pdf")  # formats of figures, by the suffix of the file

MOST_PANELS = 12  # action dimensions with a histogram each; the others are counted in the title
MOST_DIMENSIONS = 64  # dimensions of an observation leaf whose range is drawn
_MOST_LEAVES = 4
_LONGEST = 48
_COLUMNS = 4
_BLUE, _PALE, _ORANGE, _RED, _GREY = "#2b6cb0", "#a9c6e6", "#dd7a1f", "#c0392b", "#777777"
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.limits": (-4, 5),
    "legend.frameon": False,
    "svg.hashsalt": "offline-data",
    "text.usetex": False,
}


def check_format(path: Path) -> str:
    """Return the format of a figure's file; raises `UsageError`."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise UsageError(
            f"A figure cannot be written as {path.name!r}: expected a name that ends in "
            f"{', '.join(f'.{one}' for one in FORMATS)}",
            hint="--out FILE.png",
        )
    return suffix


def require_matplotlib() -> None:
    """Raise `MissingDependencyError` without matplotlib, before data are read."""
    _matplotlib()


def draw(pictures: DatasetPictures) -> Any:
    """Return the figure of a dataset; it needs no display.

    Panels: returns, lengths and rewards; actions; ranges of observations; a few episodes and the
    coverage of the first two principal components. At the bottom is what could not be drawn.
    """
    matplotlib = _matplotlib()
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}):
        figure = _figure(matplotlib, pictures)
    figure._repr_png_ = lambda: encode(figure, "png")  # IPython shows it without pyplot
    return figure


def draw_lags(found: Alignment) -> Any:
    """Return a panel of the error at each lag for each comparison; a line marks a decided lag.

    Raises `UsageError` if no lag could be compared.
    """
    matplotlib = _matplotlib()
    leaves = [leaf for leaf in found.leaves if leaf.errors]
    if not leaves:
        reasons = ", ".join(sorted({str(leaf.reason) for leaf in found.leaves}))
        raise UsageError(f"{found.id} has no errors to draw" + (f": {reasons}" if reasons else ""))
    columns = min(len(leaves), _COLUMNS)
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}):
        size = 3.4 * columns, 2.6 * -(-len(leaves) // columns)
        figure = matplotlib.figure.Figure(size, layout="constrained")
        for axes, leaf in zip(_grid(figure, len(leaves), columns), leaves, strict=True):
            axes.plot(
                [*leaf.errors], [*leaf.errors.values()], color=_BLUE, marker="o", markersize=3
            )
            if leaf.lag is not None:
                axes.axvline(leaf.lag, color=_ORANGE, linewidth=1, zorder=0)
            verdict = (
                "undecided" if leaf.lag is None else f"lag {leaf.lag:+d}" if leaf.lag else "lag 0"
            )
            axes.set_title(f"{_text(leaf.leaf)}: {verdict}")
            axes.set_xlabel(f"lag in rows, against {_text(leaf.against)}")
            axes.set_ylim(bottom=0)
        figure.supylabel("error, as a share of that without the feature", fontsize=8)
    return figure


def draw_quality(name: str, quality: EpisodeQuality) -> Any:
    """Return a figure of each column by episode; outliers are orange."""
    matplotlib = _matplotlib()
    columns = {key: column for key, column in quality.items() if key in quality.marked}
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}):
        size = 2.9 * _COLUMNS, 1.9 * -(-len(columns) // _COLUMNS) + 0.3
        figure = matplotlib.figure.Figure(size, layout="constrained")
        panels = _grid(figure, len(columns), _COLUMNS)
        for axes, (key, column) in zip(panels, columns.items(), strict=True):
            for chosen, color in ((~quality.marked[key], _BLUE), (quality.marked[key], _ORANGE)):
                places = np.flatnonzero(chosen)
                axes.plot(places, column[places], ".", color=color, rasterized=len(column) > 2000)
            axes.set_title(key)
        title = f"{_text(name.partition('@')[0], 90)}: quality by episode; orange: outliers"
        figure.suptitle(title, fontsize=9)
    return figure


def draw_replay(found: Replay) -> Any:
    """Return a figure of the reproduced steps of each episode; raises `UsageError` without any."""
    matplotlib = _matplotlib()
    if not found.episodes:
        raise UsageError(f"{found.id} has no episode that was played: there is nothing to draw")
    steps, equal = np.zeros((2, 1 + max(one.episode for one in found.episodes)), int)
    for one in found.episodes:
        steps[one.episode] = one.steps
        played = one.steps if one.beyond is None else max(one.beyond, 0)
        equal[one.episode] = 0 if one.outcome == "failed" else played
    edges = np.arange(len(steps) + 1) - 0.5
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, **_STYLE}):
        figure = matplotlib.figure.Figure((7.2, 2.6), layout="constrained")
        axes = figure.subplots()
        axes.stairs(steps, edges, fill=True, color=_ORANGE, label="from the first difference on")
        axes.stairs(equal, edges, fill=True, color=_BLUE, label="equal or within rounding")
        axes.set(xlabel="episode", ylabel="step", title=_text(found.summary, 120))
        figure.legend(loc="outside right upper")
    return figure


def write(figure: Any, path: Path) -> None:
    """Write a figure in the format of its suffix; raises `UsageError`, `AccessError`, `NoSpaceError`."""
    write_user_file(path, encode(figure, check_format(path)))


def encode(figure: Any, form: str) -> bytes:
    """Return a figure as the bytes of a `png`, `svg` or `pdf` file, the same ones each time."""
    matplotlib, file = _matplotlib(), io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)
    with warnings.catch_warnings(), matplotlib.rc_context(_STYLE):
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in another script
        figure.savefig(file, format=form, dpi=120, metadata=dates)
    return file.getvalue()


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise MissingDependencyError(
            "Figures need matplotlib", hint="pip install 'offline-data[plots]'"
        ) from error
    return matplotlib


def _figure(matplotlib: Any, pictures: DatasetPictures) -> Any:
    """Draw every row of panels, each as high as it needs."""
    tops = [one for one in (pictures.returns, pictures.lengths) if one] + [*pictures.rewards]
    actions, ranges = pictures.actions[:MOST_PANELS], pictures.ranges[:_MOST_LEAVES]
    rows: list[tuple[float, str, Callable[[Any], None]]] = []
    if tops:
        height = 2.1 * -(-len(tops) // 3)
        rows.append((height, "", lambda part: _histograms(part, tops, min(3, len(tops)))))
    if actions:
        more = len(pictures.actions) - len(actions)
        title = "Actions" + (f" (first {len(actions)}; {more} more)" if more else "")
        height = 1.75 * -(-len(actions) // _COLUMNS) + 0.3
        rows.append((height, title, lambda part: _histograms(part, actions, _COLUMNS)))
    if ranges:
        more = len(pictures.ranges) - len(ranges)
        title = "Ranges: minimum to maximum, 5 to 95 %, 25 to 75 %, median" + (
            f" (first {plural(len(ranges), 'feature')}; {more} more)" if more else ""
        )
        rows.append(
            (2.5 * -(-len(ranges) // 2) + 0.2, title, lambda part: _all_ranges(part, ranges))
        )
    for leaf in pictures.curves:
        count = min(len(leaf.names), MOST_PANELS)
        title = f"{_text(leaf.key)} in episode {leaf.episode}"
        title += f" (first {count} of {len(leaf.names)})" * (count < len(leaf.names))
        height = 1.75 * -(-count // _COLUMNS) + 0.3
        rows.append((height, title, partial(_curves, leaf=leaf, count=count)))
    if pictures.timelines or pictures.coverage or "coverage" in dict(pictures.left_out):
        title = "Episodes" if pictures.timelines else ""
        rows.append((3.4, title, lambda part: _episodes(part, pictures)))
    missing = [f"{what}: {why}" for what, why in pictures.left_out]
    note = "Not drawn: " + "; ".join(missing[:6]) if missing else ""
    if len(missing) > 6:
        note += f"; and {len(missing) - 6} more"
    height = sum(row[0] for row in rows) + 0.4 + 0.5 * bool(note)
    figure = matplotlib.figure.Figure(figsize=(11, height), layout="constrained")
    figure.suptitle(
        _text(pictures.id, 90) + f"   {plural(pictures.transitions, 'step')} in "
        f"{plural(pictures.episodes, 'episode')}",
        fontsize=11,
    )
    if note:
        lines = textwrap.wrap(_text(note, 480), 160)
        figure.supxlabel("\n".join(lines), fontsize=8, color=_GREY)
    parts = figure.subfigures(len(rows), 1, height_ratios=[row[0] for row in rows], squeeze=False)
    for part, (_, title, fill) in zip(parts[:, 0], rows, strict=True):
        if title:
            part.suptitle(title, fontsize=9, fontweight="bold")
        fill(part)
    return figure


def _text(text: str, longest: int = _LONGEST) -> str:
    """Return a text that matplotlib draws verbatim: no formula, no control characters, cut."""
    plain = "".join(one if one.isprintable() else "\ufffd" for one in text[: longest + 1])
    cut = plain if len(plain) <= longest else f"{plain[: longest - 1]}…"
    return cut.replace("$", r"\$")


def _grid(part: Any, count: int, columns: int) -> list[Any]:
    """Return `count` axes in rows of `columns`."""
    rows = -(-count // columns)
    axes = part.subplots(rows, columns, squeeze=False).ravel()
    for unused in axes[count:]:
        unused.set_axis_off()
    return list(axes[:count])


def _histograms(part: Any, histograms: Sequence[Histogram], columns: int) -> None:
    for axes, histogram in zip(_grid(part, len(histograms), columns), histograms, strict=True):
        _histogram(axes, histogram)


def _histogram(axes: Any, histogram: Histogram) -> None:
    counts, edges = histogram.counts, histogram.edges
    label = {"return": "return (undiscounted)", "length": "length (steps)"}.get(
        histogram.label, histogram.label
    )
    if not len(counts):
        axes.text(0.5, 0.5, "no finite value", ha="center", va="center", color=_GREY)
        axes.set(xticks=[], yticks=[])
    elif histogram.constant:
        axes.bar([0], counts, width=0.2, color=_BLUE)
        axes.set(xticks=[0], xticklabels=[f"always {edges[0]:.6g}"], xlim=(-1, 1))
    elif histogram.discrete:
        axes.bar(edges[:-1], counts, width=0.8, color=_BLUE)
        axes.locator_params(axis="x", integer=True)
    else:
        axes.stairs(counts, edges, fill=True, color=_BLUE)
    if len(counts):
        axes.set_ylim(0, 1.05 * counts.max())
        axes.locator_params(axis="y", nbins=4)
    more = f", {histogram.not_finite:,} not finite" if histogram.not_finite else ""
    axes.set_title(_text(label) + more)
    axes.set_ylabel(histogram.counted)


def _all_ranges(part: Any, ranges: Sequence[Ranges]) -> None:
    columns = min(2, len(ranges))
    for axes, leaf in zip(_grid(part, len(ranges), columns), ranges, strict=True):
        _range(axes, leaf, 150 // columns)


def _range(axes: Any, leaf: Ranges, room: int) -> None:
    """Draw each dimension as a vertical line with two boxes, and its median as a mark.

    `room` is the number of characters that fit below. Dimensions of very different spans are drawn
    on a logarithmic scale.
    """
    shown = leaf.quantiles[:MOST_DIMENSIONS]
    places = np.arange(len(shown))
    low, _, five, _, quarter, median, three, _, most, _, high = shown.T
    axes.vlines(places, low, high, color=_PALE, linewidth=1, zorder=1)
    for bottom, top, width, color in ((five, most, 0.5, _PALE), (quarter, three, 0.7, _BLUE)):
        axes.bar(places, top - bottom, width, bottom=bottom, color=color, zorder=2)
    axes.plot(places, median, linestyle="none", marker="_", color=_ORANGE, markersize=7, zorder=3)
    names = [name or "value" for name in leaf.names[: len(shown)]]
    step = -(-len(shown) * (2 + max(map(len, names))) // room)
    axes.set_xticks(places[::step], names[::step])
    axes.set_xlim(-0.8, max(len(shown) - 0.2, 0.8))
    spans = (high - low)[high > low]
    if len(spans) and spans.max() > 100 * np.median(spans):
        axes.set_yscale("symlog", linthresh=float(np.median(spans)))
    more = len(leaf.quantiles) - len(shown)
    axes.set_title(
        _text(leaf.label) + (f" (first {len(shown)} of {len(leaf.quantiles)})" if more else "")
    )


def _curves(part: Any, leaf: Curves, count: int) -> None:
    """Draw the first `count` features of a leaf over an episode."""
    shown = zip(_grid(part, count, min(count, _COLUMNS)), leaf.names, leaf.values, strict=False)
    for axes, name, values in shown:
        axes.plot(leaf.steps, values, color=_BLUE, linewidth=1, marker="." * (len(values) == 1))
        axes.set_title(_text(name))
        axes.set_xlabel("step")


def _episodes(part: Any, pictures: DatasetPictures) -> None:
    curves = 2 if pictures.timelines else 0
    planes = int(bool(pictures.coverage or "coverage" in dict(pictures.left_out)))
    axes = part.subplots(1, curves + planes, squeeze=False)[0]
    if planes:
        _coverage(axes[-1], pictures.coverage)
    if not curves:
        return
    total, each = axes[:2]
    for line, color in zip(pictures.timelines, (_RED, _ORANGE, "#6b8e23", _BLUE) * 8, strict=False):
        _timeline(total, each, line, color)
    averaged = any(line.every > 1 for line in pictures.timelines)
    total.set(title="cumulative reward", xlabel="step")
    each.set(title="reward" + (" (mean of several steps)" if averaged else ""), xlabel="step")
    total.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.17))


def _timeline(total: Any, each: Any, line: Timeline, color: str) -> None:
    """Draw one episode; a dot marks terminated, a cross truncated."""
    ends = ((line.terminated, "o", "terminated"), (line.truncated, "x", "truncated"))
    said = [name for steps, _, name in ends if len(steps)]
    label = f"episode {line.episode}, {' and '.join(said) or 'no end flag'}"
    alone = "." if len(line.step) == 1 else None
    total.plot(line.step, line.cumulated, color=color, linewidth=1, label=label, marker=alone)
    each.plot(line.step, line.reward, color=color, linewidth=0.7, alpha=0.8, marker=alone)
    for steps, marker, _ in ends:
        points = np.minimum(np.searchsorted(line.step, steps), len(line.step) - 1)
        total.plot(line.step[points], line.cumulated[points], marker, color=color, markersize=5)


def _coverage(axes: Any, coverage: Coverage | None) -> None:
    axes.set_title("coverage of observations")
    if coverage is None:
        axes.text(0.5, 0.5, "not drawn: see below", ha="center", va="center", color=_GREY)
        axes.set(xticks=[], yticks=[])
        return
    counts = np.where(coverage.counts > 0, coverage.counts, np.nan).T
    mesh = axes.pcolormesh(*coverage.edges, np.log10(counts), vmin=0, rasterized=True)
    mesh.set_clim(vmax=max(1.0, np.log10(coverage.counts.max())))
    bar = axes.figure.colorbar(mesh, ax=axes, shrink=0.9)
    bar.set_label("log10 of observations")
    for axis, share, name in zip(
        (axes.xaxis, axes.yaxis), coverage.explained, ("1st", "2nd"), strict=True
    ):
        axis.set_label_text(f"{name} principal component, {100 * share:.3g} % of variance")
