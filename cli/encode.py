"""Any value of the library as strict JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import PurePath
from typing import Any


def to_json(value: Any, *, ascii_only: bool = False) -> str:
    r"""Write a value as indented JSON that every parser accepts.

    Dataclasses become objects, arrays and tuples lists, paths strings. JSON has no number for
    NaN and infinity: they become the strings "NaN", "Infinity" and "-Infinity".

    Example:
        >>> to_json([float("inf"), (1, None)])
        '[\n "Infinity",\n [\n  1,\n  null\n ]\n]'
    """
    return json.dumps(plain(value), indent=1, ensure_ascii=ascii_only, allow_nan=False)


def plain(value: Any) -> Any:
    """Turn a value into what `json` knows; raises `TypeError` for what has no such form."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _not_finite(value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    return _container(value)


def _container(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _not_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
