"""Parsing of a step's arguments, `NAME:a,b,k=v`, into the fields of its class."""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import MISSING, Field, fields
from typing import Any

from offline_data.base.errors import UsageError
from offline_data.base.ids import did_you_mean

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "float": ((int, float), "a number"),
    "int": ((int,), "a whole number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "text"),
    "None": ((type(None),), "null"),
}
"""Checked annotations: Python types, and their names in messages."""


def read_arguments(step: type[Any], text: str) -> dict[str, Any]:
    """Parse `k=v` by name and other values in the order of the fields.

    A value is a JSON scalar if it parses as one (`0.1`, `true`, `null`), else text, and must match
    a field annotated as `float`, `int`, `bool`, `str` or `None`, or a union of these. A field with
    `"many"` in its metadata takes all remaining unnamed values, as a tuple of strings.

    Raises:
        UsageError: Too many or too few values, an unknown name, a value of another type.

    Example:
        >>> from offline_data.pipeline.preprocess.steps.columns import Clip
        >>> read_arguments(Clip, "action,low=-1,high=1")
        {'low': -1, 'high': 1, 'keys': ('action',)}
    """
    known = {field.name: field for field in fields(step) if not field.metadata.get("state")}
    many = [name for name, field in known.items() if field.metadata.get("many")]
    found: dict[str, Any] = {}
    unnamed: list[str] = []
    for part in _parts(text):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name in many:
            unnamed.append(value if equals else part)
        elif name in found:
            raise usage_error(step, f"is given {name} twice")
        elif name in known:
            found[name] = _value(step, known[name], value)
        else:
            listed = f"there are {', '.join(known)}" if known else "it takes none"
            near = did_you_mean(name, known, shown=repr)
            raise usage_error(step, f"has no {name!r}; {near or listed}")
    for name in [name for name in known if name not in found]:
        if unnamed and name in many:
            found[name], unnamed = tuple(unnamed), []
        elif unnamed:
            found[name] = _value(step, known[name], unnamed.pop(0))
        elif known[name].default is MISSING and known[name].default_factory is MISSING:
            raise usage_error(step, f"needs {name}")
    if unnamed:
        raise usage_error(step, f"has no use for {', '.join(map(repr, unnamed))}")
    return found


def read_pairs(step: type[Any], text: str) -> tuple[tuple[str, str], ...]:
    """Parse `k=v,k=v` with arbitrary names; raises `UsageError` if there is none."""
    pairs = []
    for part in _parts(text):
        name, _, value = (word.strip() for word in part.partition("="))
        if not name or not value or "=" in value:
            raise usage_error(step, f"takes pairs like a=b, and {part!r} is none")
        pairs.append((name, value))
    if not pairs:
        raise usage_error(step, "needs a pair like a=b")
    return tuple(pairs)


def scalar(text: str) -> Any:
    """Parse a finite JSON number, `true`, `false` or `null`, else return the text.

    Example:
        >>> scalar("0.5"), scalar("true"), scalar("float32"), scalar("NaN")
        (0.5, True, 'float32', 'NaN')
    """
    try:
        value = json.loads(text)
    except ValueError:
        return text
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    return text if is_infinite or isinstance(value, (str, list, dict)) else value


def usage_error(step: type[Any], problem: str) -> UsageError:
    """Return an error about a step's arguments; the hint is its example, quoted for the shell."""
    example = getattr(step, "example", None)
    hint = f"for example --step {shlex.quote(example)}" if example else None
    return UsageError(f"Step {step.name!r} {problem}", hint=hint)


def is_finite(value: object) -> bool:
    """Return True if a value is an int or a float that float64 holds, and not a bool."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def is_whole(value: object, least: int) -> bool:
    """Return True if a value is an int, not a bool, and `least` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _parts(text: str) -> list[str]:
    return [part for part in map(str.strip, text.split(",")) if part]


def _value(step: type[Any], field: Field[Any], text: str) -> Any:
    """Parse the value of a field as a type of its annotation."""
    written = field.type.__name__ if isinstance(field.type, type) else str(field.type)
    kinds = [kind.strip() for kind in written.split("|")]
    value = scalar(text)
    if not _KINDS.keys() >= set(kinds):
        return value
    for kind in kinds:
        if isinstance(value, _KINDS[kind][0]) and (kind == "bool" or not isinstance(value, bool)):
            return value
    if "str" in kinds:
        return text
    expected = " or ".join(_KINDS[kind][1] for kind in kinds)
    raise usage_error(step, f"has {field.name}={text}; expected {expected}")
