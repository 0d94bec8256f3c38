"""The table of episodes of a viewer as columns of JSON, with all fields of `filter`."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.analysis.checks.tokens import is_packed
from offline_data.document.values import capitalize
from offline_data.episode.fields import REWARD, Key
from offline_data.store.layout import EPISODES
from offline_data.store.reader import DatasetReader

if TYPE_CHECKING:
    from offline_data.analysis.episodes import EpisodeQuality
    from offline_data.reports.pages.texts import Decode, ShownDocuments

INSTRUCTIONS = ("instruction", "language_instruction", "natural_language_instruction", "task")
"""Names of text that says what an episode is to do, the likeliest first."""

_STANDARD = ("length", "return", "terminated", "truncated", "final_observation")
_OWN = ("curve", "outliers")  # columns of the page itself, which hide those of the data
_POINTS = 32  # of the curve of an episode
_MOST_CURVES = 10_000  # episodes whose rewards are read for curves
_LONGEST = 200  # characters of a text in the table


def episode_table(reader: DatasetReader, listed: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return columns of the listed episodes that need no pass over the rows.

    Each has `key`, its name in expressions, `title`, `kind` (`number`, `flag`, `text`), and
    `values`; texts are numbers in `words`.
    """
    columns = []
    for name in _STANDARD:
        values = np.asarray(reader.episodes[(name,)])[listed]
        columns.append(_column(name, "Steps" if name == "length" else None, values))
    found = _instructions(reader, listed)
    if found is not None:
        columns.append(_words("instruction", found))
    for key, column in reader.episodes.items():
        name = ".".join(key)
        taken = (*_STANDARD, *_OWN, "instruction" if found is not None else "")
        if name in taken or column.ndim != 1:
            continue
        values = np.asarray(column[listed])
        if reader.words(key, EPISODES) is not None:
            columns.append(_words(name, reader.as_text(key, values, EPISODES)))
        elif values.dtype.kind in "biuf":
            columns.append(_column(name, None, values))
    if reader.episode_count <= _MOST_CURVES and REWARD in reader.step_leaves:
        columns.append({"key": "curve", "title": "Curve", **_curves(reader, listed)})
    return columns


def quality_table(quality: EpisodeQuality, listed: NDArray[np.int64]) -> list[dict[str, Any]]:
    """Return the columns of the quality of the listed episodes, see `episode_table`.

    `names` of the column `outliers` are those of the columns in which an episode is one: the bits of
    `marked`, the first the lowest.
    """
    shown = [name for name in quality if name not in {"length", "return", "outliers"}]
    columns = [_column(name, None, np.asarray(quality[name])[listed]) for name in shown]
    bits = sum(
        flags[listed].astype(np.int64) << place
        for place, flags in enumerate(quality.marked.values())
    )
    outliers = _column("outliers", "Outlier", np.asarray(quality["outliers"])[listed])
    names = [name.replace("_", " ") for name in quality.marked]
    return [*columns, {**outliers, "names": names, "marked": np.asarray(bits).tolist()}]


def document_table(
    documents: ShownDocuments, count: int, decode: Decode | None
) -> list[dict[str, Any]]:
    """Return the columns of the first documents of a text dataset, with their first words.

    Of pairs, whose two are episodes of their own, there are no others.
    """
    columns = [_column("length", "Tokens", documents.lengths[:count])]
    if documents.are_episodes and is_packed(documents.reader):
        table = episode_table(documents.reader, np.arange(count))
        columns += [one for one in table if one["key"] not in {"length", "curve"}]
    beginnings = documents.beginnings(decode, count)
    if beginnings is not None:
        words = {**_words("beginning", beginnings), "title": "Document", "shown_only": True}
        columns.append(words)
    return columns


def _instructions(reader: DatasetReader, listed: NDArray[np.int64]) -> Any:
    """Return the texts that say what the episodes are to do, or None."""
    stored = {key[-1]: key for key in reader.episodes if reader.words(key, EPISODES) is not None}
    leaves = {key[-1]: key for key, leaf in reader.step_leaves.items() if leaf.text}
    observed = {key[-1]: key for key, leaf in reader.observation_leaves.items() if leaf.text}
    for name in INSTRUCTIONS:
        if name in stored:
            return reader.as_text(
                stored[name], np.asarray(reader.episodes[stored[name]])[listed], EPISODES
            )
        key: Key | None = leaves.get(name) or observed.get(name)
        if key is not None:
            codes = np.asarray(reader.values_at(key, reader.starts[listed]))
            return reader.as_text(key, codes.reshape(len(listed), -1)[:, 0])
    return None


def _column(name: str, title: str | None, values: NDArray[Any]) -> dict[str, Any]:
    flags = values.dtype.kind == "b"
    return {
        "key": name,
        "title": title or capitalize(name.replace("_", " ")),
        "kind": "flag" if flags else "number",
        "values": values.astype(int).tolist() if flags else _exact(values),
    }


def _exact(values: NDArray[Any]) -> list[int | float | str | None]:
    """Return numbers with all their digits: expressions compare them as `filter` does.

    JSON has neither NaN, which is None, nor the infinite numbers, which are `Infinity` and `-Infinity`.
    """
    if values.dtype.kind != "f":
        return [int(value) for value in values]
    names = {np.inf: "Infinity", -np.inf: "-Infinity"}
    exact = (float(str(value)) for value in values)
    return [None if np.isnan(value) else names.get(value, value) for value in exact]


def _words(name: str, texts: Any) -> dict[str, Any]:
    words: dict[str | None, int] = {}
    codes = [
        words.setdefault(None if text is None else str(text)[:_LONGEST], len(words))
        for text in texts
    ]
    title = capitalize(name.replace("_", " "))
    return {"key": name, "title": title, "kind": "text", "words": [*words], "values": codes}


def _curves(reader: DatasetReader, listed: NDArray[np.int64]) -> dict[str, Any]:
    """Return the returns so far as levels from 0 to 99 of one scale, `_POINTS` for each episode."""
    rewards = np.asarray(reader.step(REWARD), np.float64).reshape(reader.transitions, -1)[:, 0]
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(rewards, posinf=0, neginf=0))])
    starts, lengths = reader.starts[listed], reader.lengths[listed]
    share = np.linspace(0, 1, _POINTS)
    at = starts[:, None] + np.rint(share * lengths[:, None]).astype(np.int64)
    curves = total[at] - total[starts][:, None]
    low, high = float(curves.min(initial=0)), float(curves.max(initial=0))
    levels = np.rint((curves - low) * (99 / ((high - low) or 1)))
    codes = base64.b64encode(levels.astype(np.uint8).tobytes()).decode()
    return {"kind": "curve", "points": _POINTS, "codes": codes}
