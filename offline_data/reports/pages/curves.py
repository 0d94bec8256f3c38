"""Values of a feature over an episode: curves of a few dimensions, a heat map of many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from offline_data.document.html import Html, element
from offline_data.reports.pages import charts
from offline_data.reports.pictures import Curves

WIDE = 64  # features of a leaf from which on it is a heat map and a norm
_TOGETHER, _APART = 4, 12  # curves in one chart, and charts of one curve each; more are a heat map


def curves_parts(
    curves: Curves,
    marks: Sequence[tuple[int, str]] = (),
    note: str = "",
) -> Iterator[Html]:
    """Yield the charts of a feature over an episode, and a sentence on dimensions that do not change."""
    values, key, steps = curves.values, curves.key, curves.steps
    constant = (values == values[:, :1]).all(1) & (len(steps) > 1) & np.isfinite(values[:, 0])
    if len(values) >= WIDE and not constant.all():
        yield charts.heat(key, steps, curves.names, values, note=note)
        with np.errstate(over="ignore", invalid="ignore"):
            norm = np.linalg.norm(values, axis=0)
        yield charts.lines(f"{key}: norm", steps, {"norm": norm}, marks=marks, note=note)
        return
    if constant.any():
        same = {n: float(v) for n, v in zip(curves.names, values[:, 0], strict=True)}
        same = {n: v for (n, v), so in zip(same.items(), constant, strict=True) if so}
        caption = element("figcaption", element("b", key), element("small", note))
        said = element("p", constants_sentence(same, len(values)))
        yield element("figure", caption, said, class_="sentence")
    named = {n: v for n, v, so in zip(curves.names, values, constant, strict=True) if not so}
    if 0 < len(named) <= _TOGETHER:
        yield charts.lines(
            key, steps, {n or key: v for n, v in named.items()}, marks=marks, note=note
        )
    elif 0 < len(named) <= _APART:
        each = (charts.lines(f"{key}{n}", steps, {n: v}, marks=marks) for n, v in named.items())
        yield element("div", each, class_="grid multiples")
    elif named:
        yield charts.heat(key, steps, list(named), np.array(list(named.values())), note=note)


def constants_sentence(values: dict[str, float], features: int) -> str:
    """Return that dimensions never change, by their names; `features` is the number of all.

    Example:
        >>> constants_sentence({"[0]": 0.0, "[2]": 0.0, "[3]": 1.0}, 5)
        '[0] and [2] are always 0; [3] is always 1.'
        >>> constants_sentence({"[0]": 0.0, "[1]": 0.0}, 2)
        'Always 0.'
    """
    by_value: dict[float, list[str]] = {}
    for name, value in values.items():
        by_value.setdefault(value, []).append(name)
    if len(values) == features and len(by_value) == 1:
        return f"Always {next(iter(by_value)):.6g}."
    if len(values) >= WIDE:
        return f"{len(values):,} of {features:,} dimensions never change."
    parts = []
    for value, names in by_value.items():
        *before, last = names
        words = f"{', '.join(before)} and {last}" if before else last
        parts.append(f"{words} {'are' if before else 'is'} always {value:.6g}")
    return "; ".join(parts) + "."
