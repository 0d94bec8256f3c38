"""Charts as elements of a page: their numbers as JSON, which the page's own script draws.

Values that are not finite become `null`, and are not drawn; others have six significant digits.
`note` is a remark after the title, `series` are by name; `edges` and `steps` ascend.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from offline_data.document.html import Html, element
from offline_data.reports.pages.page import data_block

HEAT_CELLS = 1 << 16  # cells of a heat map at most


def bars(
    title: str,
    edges: ArrayLike,
    series: Mapping[str, ArrayLike],
    *,
    x: str,
    y: str,
    note: str = "",
    share: bool = False,
) -> Html:
    """Return a histogram, or several over each other: counts, or shares in [0, 1], `[bins]`.

    `edges` are `[bins + 1]`; `x` is the quantity and unit below the axis, `y` what is counted.
    """
    data = {"x": x, "y": y, "share": share, "edges": numbers(edges), "series": _series(series)}
    return _chart("bars", title, note, data)


def categories(
    title: str,
    labels: Sequence[object],
    series: Mapping[str, ArrayLike],
    *,
    x: str,
    y: str,
    note: str = "",
    share: bool = False,
) -> Html:
    """Return a bar for each of several values, such as discrete actions; see `bars`."""
    data = {"labels": list(map(str, labels)), "series": _series(series)}
    return _chart("bars", title, note, {"x": x, "y": y, "share": share, **data})


def lines(
    title: str,
    steps: ArrayLike,
    series: Mapping[str, ArrayLike],
    *,
    marks: Sequence[tuple[int, str]] = (),
    note: str = "",
) -> Html:
    """Return curves, values `[n]` at `steps` `[n]` of an episode, each with its name at its end.

    `marks` are steps with a vertical line, and its label.
    """
    data = {"steps": numbers(steps), "series": _series(series), "marks": list(marks)}
    return _chart("lines", title, note, {"x": "step", **data})


def heat(
    title: str, steps: ArrayLike, labels: Sequence[str], values: ArrayLike, *, note: str = ""
) -> Html:
    """Return a row of colours for each of `values` `[features, n]` over `steps` of an episode.

    The colours of a row go from its least to its greatest value, in 254 levels; where there are
    more than `HEAT_CELLS`, every other step, or fewer, is drawn.
    """
    array = np.asarray(values, np.float64)
    every = -(-array.size // HEAT_CELLS)
    array, steps = array[:, ::every], np.asarray(steps)[::every]
    low, high, codes = byte_levels(array)
    data = {
        "x": "step",
        "steps": numbers(steps),
        "labels": list(labels),
        "low": numbers(low),
        "high": numbers(high),
        "codes": codes,
    }
    return _chart("heat", title, note or "each row from its least to its greatest value", data)


def byte_levels(values: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[Any], str]:
    """Return the least and greatest value of each row `[rows, n]`, and 254 levels between, in base64.

    The level 255 is a value that is not finite.
    """
    array = np.where(np.isfinite(values), values, np.nan)
    low = np.fmin.reduce(array, 1)[:, None]
    high = np.fmax.reduce(array, 1)[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        part = (array / 2 - low / 2) / np.where(high > low, high / 2 - low / 2, 1)
        codes = np.where(np.isnan(part), 255, np.rint(254 * np.nan_to_num(part))).astype(np.uint8)
    return low, high, base64.b64encode(codes.tobytes()).decode()


def ranges(
    title: str,
    labels: Sequence[str],
    levels: Mapping[str, ArrayLike],
    *,
    note: str = "",
) -> Html:
    """Return a box for each dimension: five levels `[features]` by name, the least first."""
    data = {"x": "dimension", "labels": list(labels), "levels": _series(levels)}
    return _chart("ranges", title, note, data)


def numbers(values: ArrayLike) -> list[int | float | None]:
    """Return numbers as JSON has them.

    Example:
        >>> numbers([1.0, np.nan, 1 / 3]), numbers(np.array([1 << 40, 2]))
        ([1.0, None, 0.333333], [1099511627776, 2])
    """
    array = np.asarray(values)
    if array.dtype.kind in "biu":
        return [int(value) for value in array.ravel().tolist()]
    found = (float(value) for value in array.ravel().tolist())
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in found]


def legend(names: Sequence[object]) -> Html:
    """Return the names of curves or histograms with their colours."""
    colours = (
        element(
            "svg",
            element("rect", width=11, height=11, rx=2, class_=f"f{place % 6 + 1}"),
            aria_hidden="true",
        )
        for place in range(len(names))
    )
    items = (element("li", colour, name) for colour, name in zip(colours, names, strict=True))
    return element("ul", items, class_="legend")


def _series(series: Mapping[str, ArrayLike]) -> list[dict[str, Any]]:
    return [{"name": name, "values": numbers(values)} for name, values in series.items()]


def _chart(kind: str, title: str, note: str, data: Mapping[str, Any]) -> Html:
    caption = element("figcaption", element("b", title, title=title), element("small", note))
    drawn = element("div", data_block({"kind": kind, "title": title, **data}), class_="plot")
    return element("figure", caption, drawn)
