"""Values as text: for a terminal with units and separators, for a pipe as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from offline_data.disk import human_bytes

if TYPE_CHECKING:
    from offline_data_cli.result import Kind

UNKNOWN = "–"
"""Stands in a terminal for a value that is not known; a pipe gets an empty cell."""

_REPEATED = 3
"""Items of a list up to which equal ones are written out."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def human(value: Any, kind: Kind) -> str:
    """Write a value for a terminal.

    Example:
        >>> human(1234567, "count"), human(2048, "bytes"), human(0.5, "share"), human(None, "text")
        ('1,234,567', '2.0 KiB', '50 %', '–')
    """
    if value is None:
        return UNKNOWN
    if kind == "count":
        return f"{value:,}"
    if kind == "bytes":
        return human_bytes(value)
    if kind == "share":
        return f"{100 * value:.3g} %"
    if kind == "number":
        return number(value)
    return clean(str(value))


def piped(value: Any) -> str:
    r"""Write a value for another program: nothing rounded, one cell on one line.

    Example:
        >>> piped(1234567), piped(None), piped("two\nlines")
        ('1234567', '', 'two lines')
    """
    return "" if value is None else re.sub(r"[\t\n]", " ", clean(str(value)))


def number(value: float) -> str:
    """Write a number in about four digits, whole ones as they are up to a million.

    Example:
        >>> number(3), number(0.123456), number(1.0), number(12345678.9)
        ('3', '0.1235', '1', '1.235e+07')
    """
    if isinstance(value, int) and abs(value) < 1_000_000:
        return str(value)
    return f"{value:.4g}"


def nested(value: Any) -> str:
    """Write nested values on one line; equal items of a list once.

    Example:
        >>> nested({"type": "Box", "low": [0.0] * 39, "shape": [39]})
        'type: Box, low: 39 × 0.0, shape: [39]'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_inner(item)}" for key, item in value.items())
    return _inner(value)


def _inner(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{nested(value)}}}"
    if not isinstance(value, (list, tuple)):
        return str(value)
    if len(value) > _REPEATED and all(item == value[0] for item in value):
        return f"{len(value)} × {_inner(value[0])}"
    return f"[{', '.join(map(_inner, value))}]"


def clean(text: str) -> str:
    r"""Replace control characters, which could steer a terminal; texts come from downloads.

    Example:
        >>> clean("a\x1b[31mb")
        'a�[31mb'
    """
    return _CONTROL.sub("\ufffd", text)
