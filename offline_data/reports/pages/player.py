"""A player of episodes: images and curves under one time, which the script of the page moves.

The script makes a list of `a` elements that lead to `#episode=N`, and shows the article of the
episode that the address names. An article is in the page, or its server sends it.
"""

from __future__ import annotations

import base64
from collections.abc import Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.document.html import Html, element, table_of
from offline_data.episode.fields import REWARD, split_key
from offline_data.reports.pages import sections
from offline_data.reports.pages.page import data_block, data_uri
from offline_data.reports.pictures import speeds, timeline
from offline_data.reports.video import FASTEST
from offline_data.store.reader import DatasetReader

if TYPE_CHECKING:
    from offline_data.analysis.episodes import EpisodeQuality
    from offline_data.reports.pages.episodes import ExampleEpisode

_RATE = 30.0  # steps a second where a dataset does not state them
_POINTS, _WIDTH, _HEIGHT = 40, 88, 20  # points of an episode's small curve, and its size in pixels


def player(
    reader: DatasetReader, listed: Html, articles: Iterable[Html] = (), address: str | None = None
) -> Html:
    """Return the player of `listed`: an `episode_list`, or the place where it will be.

    `articles` are episodes in the page; see `article`. `address` is where a server sends the
    article of an episode, without its number.
    """
    stated = reader.manifest.about.get("fps")
    known = isinstance(stated, (int, float)) and 0 < stated <= FASTEST
    said = "" if known else f"Rate not stated: {_RATE:g} steps/s"
    keys = "Space plays; ← → steps; j and k: next and previous episode."
    controls = element(
        "div",
        element("button", "Play", type="button", class_="play"),
        element("input", type="range", min=0, max=0, value=0, aria_label="Step"),
        element("output", class_="time"),
        class_="controls",
    )
    return element(
        "div",
        element("div", listed, class_="episodes"),
        element(
            "div",
            controls,
            element("p", " ".join(filter(None, (keys, said))), class_="soft"),
            element("div", articles, class_="stage"),
        ),
        class_="player",
        data_fps=stated if known else _RATE,
        data_address=address,
    )


def article(shown: ExampleEpisode, why: str = "") -> Html:
    """Return an episode: its cameras in a row, then curves and texts; hidden until it is chosen."""
    cameras = []
    for one in shown.frames:
        files = [base64.b64encode(content).decode() for _, content in one.files]
        data = {"kind": one.files[0][0], "steps": one.steps, "files": files}
        name = element(
            "figcaption",
            one.key.rpartition("/")[2],
            element("small", one.note) if one.note else None,
        )
        first, alt = data_uri(*one.files[0]), f"{one.key}, episode {shown.number}"
        picture = element("img", src=first, alt=alt)
        cameras.append(element("figure", picture, name, data_block(data), class_="camera"))
    title = f"Episode {shown.number}" + (f": {why}" if why else "")
    return element(
        "article",
        element("h3", title),
        element("p", sections.episode_summary(shown), class_="soft"),
        element("div", cameras, class_="cameras") if cameras else None,
        sections.episode_parts(shown),
        data_episode=shown.number,
        data_length=shown.length,
        hidden=True,
    )


def episode_list(
    reader: DatasetReader,
    numbers: Iterable[int],
    quality: EpisodeQuality | None = None,
    playable: Container[int] | None = None,
) -> Html:
    """Return a table of episodes, each with a small curve and the columns of `quality`.

    The curve is the return so far; without rewards, the speed of the leaf that `quality` is of.
    Episodes in `playable` (None: all), which the player has, are links.
    """
    columns = ("length", "return", "terminated", "truncated")
    values: Mapping[str, Any] = {name: np.asarray(reader.episodes[(name,)]) for name in columns}
    names = [name for name in quality or () if name not in {"length", "return", "outliers"}]
    rewarded, leaf = REWARD in reader.step_leaves, quality.leaf if quality else None
    curve = "Return so far" if rewarded else "Speed" if leaf else None
    rows = []
    for number in numbers:
        name, link = f"Episode {number}", f"#episode={number}"
        ends = [name for name in columns[2:] if values[name][number]]
        (found,) = quality.rows(np.array([number])) if quality else ({},)
        outliers = (", ".join(found["outliers"]).replace("_", " "),) if quality else ()
        if rewarded:
            points = timeline(reader, number, _POINTS).cumulated
        elif leaf:
            points = speeds(reader, split_key(leaf), number, _POINTS)
        rows.append(
            (
                element("a", name, href=link) if playable is None or number in playable else name,
                " and ".join(ends),
                *outliers,
                *((_small_curve(points),) if curve else ()),
                f"{int(values['length'][number]):,}",
                f"{float(values['return'][number]):.6g}",
                *("" if found[name] is None else f"{found[name]:.4g}" for name in names),
            )
        )
    titles = ("Outlier in" if quality else None, curve, "Steps", "Return")
    measured = (name.replace("_", " ").capitalize() for name in names)
    return table_of(
        ("Episode", "Ends", *filter(None, titles), *measured), rows, numbers=2 + len(names)
    )


def _small_curve(values: NDArray[np.float64]) -> Html | None:
    """Return a curve without axes; None if a value is not finite, or there is none."""
    with np.errstate(invalid="ignore", over="ignore"):
        part = values / 2 - values.min(initial=np.inf) / 2
        part = part / part.max() if part.max(initial=0) > 0 else part + 0.5
    if not len(part) or not np.isfinite(part).all():
        return None
    x = np.linspace(1, _WIDTH - 1, len(part))
    y = _HEIGHT - 2 - part * (_HEIGHT - 4)
    path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    line = element("path", d=path, class_="line l1")
    return element(
        "svg",
        line,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        width=_WIDTH,
        height=_HEIGHT,
        aria_hidden="true",
    )
