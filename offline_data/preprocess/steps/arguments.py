"""Arguments of a step from the command line: `NAME:a,b,k=v` into the fields of its class."""

from __future__ import annotations

import json
import math
import shlex
import sys
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from offline_data.errors import UsageError
from offline_data.ids import nearest

if TYPE_CHECKING:
    from dataclasses import Field

    from offline_data.preprocess.steps.base import Step

_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "float": ((int, float), "a number"),
    "int": ((int,), "a whole number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "text"),
    "None": ((type(None),), "null"),
}
"""Annotations whose values are checked: the types of a value, and what a message calls it."""


def read_arguments(step: type[Step], text: str) -> dict[str, Any]:
    """Read `k=v` by name and other values in the order of the fields.

    A value is a JSON scalar where it reads as one (`0.1`, `true`, `null`), else text, and must go
    with a field annotated as `float`, `int`, `bool`, `str` or `None`, or a union of these. A field
    whose metadata have `"many"` takes all values without a name that are left when it is its turn,
    as a tuple of texts.

    Raises:
        UsageError: Too many values, an unknown name, a value of another type, or a field without
            a value; the hint shows an example.

    Example:
        >>> from offline_data.preprocess.steps.clip import Clip
        >>> read_arguments(Clip, "action,low=-1,high=1")
        {'keys': ('action',), 'low': -1, 'high': 1}
    """
    known = [one for one in fields(step) if not one.metadata.get("state")]  # type: ignore[arg-type]
    names = [one.name for one in known if not one.metadata.get("many")]
    many = {one.name for one in known} - set(names)
    values: dict[str, Any] = {}
    unnamed: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals or name in many:
            unnamed.append(value if equals else part)
        elif name in names and name not in values:
            values[name] = _value(step, known, name, value)
        else:
            raise _unknown(step, name, [*names, *many])
    found = {**_in_order(step, unnamed, [one for one in known if one.name not in values]), **values}
    for one in known:
        if one.name not in found and one.default is MISSING and one.default_factory is MISSING:
            raise usage_error(step, f"needs {one.name}")
    return found


def read_pairs(step: type[Step], text: str) -> tuple[tuple[str, str], ...]:
    """Read `k=v,k=v` where the names are the user's own.

    Raises:
        UsageError: Nothing, or a part that is not a pair.

    Example:
        >>> from offline_data.preprocess.steps.rename import Rename
        >>> read_pairs(Rename, "a=b, c=d")
        (('a', 'b'), ('c', 'd'))
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    pairs = [tuple(word.strip() for word in part.split("=")) for part in parts]
    for part, pair in zip(parts, pairs, strict=True):
        if len(pair) != 2 or not all(pair):
            raise usage_error(step, f"takes pairs like a=b, and {part!r} is none")
    if not pairs:
        raise usage_error(step, "needs a pair like a=b")
    return tuple((pair[0], pair[1]) for pair in pairs)


def scalar(text: str) -> Any:
    """Read a finite JSON number, `true`, `false` or `null`, else return the text.

    Example:
        >>> scalar("0.5"), scalar("true"), scalar("float32"), scalar("NaN")
        (0.5, True, 'float32', 'NaN')
    """
    try:
        value = json.loads(text)
    except ValueError:
        return text
    if isinstance(value, float) and not math.isfinite(value):
        return text
    return text if isinstance(value, (str, list, dict)) else value


def usage_error(step: type[Step], what: str) -> UsageError:
    """Return an error that says what is wrong with the arguments of a step.

    The hint shows its example, quoted where a shell would read something else.

    Example:
        >>> from offline_data.preprocess.steps.clip import Clip
        >>> error = usage_error(Clip, "has no bound")
        >>> error.message, error.hint
        ("Step 'clip' has no bound", 'for example --step clip:action,low=-1,high=1')
    """
    example = getattr(step, "example", None)
    hint = f"for example --step {shlex.quote(example)}" if example else None
    return UsageError(f"Step {step.name!r} {what}", hint=hint)


def check_finite(step: type[Step], name: str, value: Any) -> None:
    """Raise `UsageError` unless a parameter is a finite number."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not abs(value) <= sys.float_info.max:
        raise usage_error(step, f"has {name}={value!r}; expected a finite number")


def check_whole(step: type[Step], name: str, value: Any, least: int) -> None:
    """Raise `UsageError` unless a parameter is a whole number from `least` on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise usage_error(step, f"has {name}={value}; expected a whole number, {least} or more")


def _value(step: type[Step], known: list[Field[Any]], name: str, text: str) -> Any:
    """Read the value of a field, as a type that its annotation names."""
    annotation = next(one.type for one in known if one.name == name)
    kinds = [kind.strip() for kind in _written(annotation).split("|")]
    value = scalar(text)
    if not _KINDS.keys() >= set(kinds) or any(_is(value, kind) for kind in kinds):
        return value
    if "str" in kinds:
        return text
    expected = " or ".join(_KINDS[kind][1] for kind in kinds)
    raise usage_error(step, f"has {name}={text}; expected {expected}")


def _written(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, _KINDS[kind][0]) and (kind == "bool" or not isinstance(value, bool))


def _in_order(step: type[Step], values: list[str], free: list[Field[Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for place, one in enumerate(free):
        if place >= len(values):
            return found
        if one.metadata.get("many"):
            return {**found, one.name: tuple(values[place:])}
        found[one.name] = _value(step, free, one.name, values[place])
    if len(values) > len(free):
        raise usage_error(step, f"has no use for {', '.join(map(repr, values[len(free) :]))}")
    return found


def _unknown(step: type[Step], name: str, names: list[str]) -> UsageError:
    if name in names:
        return usage_error(step, f"is given {name} twice")
    near = nearest(name, names)
    guess = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(names)}"
    return usage_error(step, f"has no {name!r}; {guess}" if names else f"has no {name!r}")
