"""Small tables of HTML for notebooks. Texts come from downloads: every one is escaped, and cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from offline_data.episode.fields import join_key

if TYPE_CHECKING:
    from tensordict import TensorDictBase

ROWS = 10  # rows of a long table that are shown

_LEAVES = 30  # features that are shown
_LONGEST = 160  # longest text in characters


def fields_html(title: str, fields: Mapping[str, Any]) -> str:
    """Return a title and a table of names and values; those that are None or empty are left out."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{_text(name)}</th>"
        f"<td style='text-align:left'>{_text(value)}</td></tr>"
        for name, value in fields.items()
        if value is not None and value != ""
    )
    return f"<b>{_text(title)}</b><table>{rows}</table>"


def table_html(header: Sequence[str], rows: Iterable[Sequence[Any]], more: int = 0) -> str:
    """Return a table, with a line on how many rows more there are."""
    head = "".join(f"<th>{_text(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{_text(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    rest = f"<div>and {more:,} more</div>" if more else ""
    return f"<table><tr>{head}</tr>{body}</table>{rest}"


def leaves_html(leaves: Iterable[tuple[str, str, Any]]) -> str:
    """Return a table of features: name, type and shape."""
    listed = list(leaves)
    rows = [(name, kind, list(shape)) for name, kind, shape in listed[:_LEAVES]]
    return table_html(("leaf", "type", "shape"), rows, len(listed) - len(rows))


def leaves_of(data: TensorDictBase) -> Iterable[tuple[str, str, Any]]:
    """List the features of a TensorDict of rows, with the shape of all rows."""
    for key in data.keys(include_nested=True, leaves_only=True):
        leaf: Any = data.get(key)
        kind = str(getattr(leaf, "dtype", None) or "text").removeprefix("torch.")
        name = key if isinstance(key, str) else join_key(key)
        yield name, kind, getattr(leaf, "shape", ())


def _text(value: Any) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return escape(shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…")
