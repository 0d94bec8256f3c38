"""Values as people read them: counts, bytes, numbers, shares, booleans and nested values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_data.base.files import human_bytes
from offline_data.document.blocks import Kind

UNKNOWN = "–"  # an unknown value

_REPEATED = 3  # maximum length of a list of equal items that is written out


def human(value: Any, kind: Kind) -> str:
    """Format a value of a kind for people."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return format_nested(value)
    if kind == "count":
        return f"{value:,}"
    if kind == "bytes":
        return human_bytes(value)
    if kind == "share":
        return f"{100 * value:.3g} %"
    return number(value) if kind == "number" else str(value)


def capitalize(label: str) -> str:
    """Return a label with its first letter in upper case, and the others as they are: `NaN`."""
    return label[:1].upper() + label[1:]


def number(value: float) -> str:
    """Format a number with four significant digits, thousands apart; whole ones below a million exactly.

    Pages format numbers alike, see `brief` in `reports/pages/page.js`.

    Example:
        >>> [number(value) for value in (1234, 1234.5, 0.123456, 1234567.0, 0.000012345)]
        ['1,234', '1,234', '0.1235', '1.235e+06', '1.234e-05']
    """
    size = abs(value)
    if size < 1_000_000 and (size >= 1000 or float(value).is_integer()):
        return f"{value or 0:,.0f}"
    return f"{value:.4g}"


def format_nested(value: Any) -> str:
    """Format nested values on one line, without empty ones; a list of equal items as `N × item`."""
    if isinstance(value, Mapping):
        return ", ".join(
            f"{key}: {_in_brackets(item)}" for key, item in value.items() if not is_empty(item)
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (list, tuple)):
        return "none" if value is None else str(value)
    if len(value) > _REPEATED and all(item == value[0] for item in value):
        return f"{len(value)} × {_in_brackets(value[0])}"
    return f"[{', '.join(map(_in_brackets, value))}]"


def is_empty(value: Any) -> bool:
    """Return True for None, and texts and collections without content."""
    return value is None or (isinstance(value, (str, Mapping, list, tuple)) and not value)


def _in_brackets(value: Any) -> str:
    return f"({format_nested(value)})" if isinstance(value, Mapping) else format_nested(value)
