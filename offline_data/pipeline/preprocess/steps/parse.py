"""Parameters of a step: annotated fields, read from `NAME:a,b,k=v`, checked, and put in words.

A field `height: Annotated[int, at_least(1)] = 64` says all that is known of a parameter: the text of its
values, and the `Check` that they meet, also when a program constructs the step. None meets the check
where the type has it. A plain annotation checks the text alone.
"""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from offline_data.base.decode import Check
from offline_data.base.errors import UsageError
from offline_data.base.ids import did_you_mean

_WORDS: dict[Any, str] = {
    float: "number",
    int: "whole number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
    tuple[str, ...]: "features",
    tuple[tuple[str, str], ...]: "pairs a=b",
    tuple[tuple[str, float], ...]: "pairs part=share",
}
"""Annotations in words."""
_SCALARS = {float, int, bool, str, NoneType}
_PAIRS = tuple[tuple[str, str], ...]


def is_finite(value: object) -> bool:
    """Return True if a value is an int or a float that float64 holds, and not a bool."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def is_whole(value: object, least: int) -> bool:
    """Return True if a value is an int, not a bool, and `least` or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


FINITE = Check("a finite number", is_finite)
FLAG = Check("true or false", lambda value: isinstance(value, bool))
NAMES = Check("a tuple of names", lambda value: isinstance(value, tuple))


def at_least(least: int) -> Check:
    """Return the check for a whole number from `least` on."""
    return Check(f"a whole number, {least} or more", lambda value: is_whole(value, least))


def number(expected: str, fits: Callable[[Any], bool]) -> Check:
    """Return the check for a finite number that `fits`."""
    return Check(expected, lambda value: is_finite(value) and fits(value))


def one_of(choices: Sequence[str], between: str = " or ") -> Check:
    """Return the check for one of some texts."""
    return Check(between.join(choices), lambda value: value in choices)


class Parameter(NamedTuple):
    """A field of a step that users set."""

    field: Field[Any]
    kinds: tuple[Any, ...]
    """Alternatives of its annotation: types, or its text where names of it are not known."""
    check: Check | None

    @property
    def required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    def words(self) -> str:
        """Return the annotation in words, literal choices listed, without None."""
        words: list[str] = []
        for kind in self.kinds:
            if get_origin(kind) is Literal:
                words += map(str, get_args(kind))
            elif isinstance(kind, type) and not get_args(kind):
                words.append(_WORDS.get(kind, kind.__name__))
            else:
                words.append(_WORDS.get(kind) or str(kind).removeprefix("typing."))
        return " or ".join(words).removesuffix(" or null").removesuffix(" | None")

    def parse(self, step: type[Any], text: str) -> Any:
        """Parse a value; raises `UsageError` if it is a scalar of another type."""
        value = scalar(text)
        if not _SCALARS.issuperset(self.kinds) or any(_is_a(value, kind) for kind in self.kinds):
            return value
        if str in self.kinds:
            return text
        words = [_WORDS[kind] for kind in self.kinds]
        expected = " or ".join(f"a {word}" if "number" in word else word for word in words)
        raise usage_error(step, f"has {self.field.name}={text}; expected {expected}")


def _parameters(step: type[Any]) -> dict[str, Parameter]:
    found = {}
    for field in (one for one in fields(step) if not one.metadata.get("state")):
        hint = _evaluate(step, field)
        about, plain = getattr(hint, "__metadata__", ()), _plain(hint)
        check = next((one for one in about if isinstance(one, Check)), None)
        kinds = get_args(plain) if get_origin(plain) in {Union, UnionType} else (plain,)
        found[field.name] = Parameter(field, tuple(map(_plain, kinds)), check)
    return found


parameters: Callable[[Any], dict[str, Parameter]] = cache(_parameters)
"""Returns the parameters of a step's class by name: its fields without `"state"` metadata."""


def _evaluate(step: type[Any], field: Field[Any]) -> Any:
    """Return the annotation of a field where all its names are known, else its text."""
    alone = type("Alone", (), {"__annotations__": {field.name: field.type}})
    for owner in step.__mro__:
        with suppress(Exception):  # a name for type checkers only, or anything else
            names = vars(sys.modules[owner.__module__])
            return get_type_hints(alone, names, include_extras=True)[field.name]
    return field.type


def _plain(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _is_a(value: Any, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def read_arguments(step: type[Any], text: str) -> dict[str, Any]:
    """Parse `k=v` by name and other values in the order of the fields.

    A value is a JSON scalar if it parses as one (`0.1`, `true`, `null`), else text, and must match
    a field annotated as `float`, `int`, `bool`, `str` or `None`, or a union of these. A field with
    `"many"` in its metadata takes all remaining unnamed values, as a tuple of strings; one annotated
    as pairs takes all `k=v` whose name is not that of another field.

    Raises:
        UsageError: Too many or too few values, an unknown name, a value of another type.

    Example:
        >>> from offline_data.pipeline.preprocess.steps.columns import Clip, Rename
        >>> read_arguments(Clip, "action,low=-1,high=1")
        {'low': -1, 'high': 1, 'keys': ('action',)}
        >>> read_arguments(Rename, "a=b,c=d")
        {'names': (('a', 'b'), ('c', 'd'))}
    """
    known = dict(parameters(step))
    many = [name for name, parameter in known.items() if parameter.field.metadata.get("many")]
    pairs = next((name for name, parameter in known.items() if parameter.kinds == (_PAIRS,)), None)
    found: dict[str, Any] = {}
    unnamed: list[str] = []
    paired: list[str] = []
    for part in split_parts(text):
        name, equals, value = (word.strip() for word in part.partition("="))
        if pairs and (len(known) == 1 or (equals and (name == pairs or name not in known))):
            paired.append(part)
        elif not equals or name in many:
            unnamed.append(value if equals else part)
        elif name in found:
            raise usage_error(step, f"is given {name} twice")
        elif name in known:
            found[name] = known[name].parse(step, value)
        else:
            listed = f"there are {', '.join(known)}" if known else "it takes none"
            near = did_you_mean(name, known, shown=repr)
            raise usage_error(step, f"has no {name!r}; {near or listed}")
    if pairs and (paired or known[pairs].required):
        found[pairs] = read_pairs(step, paired) if paired or len(known) == 1 else ()
    for name in [name for name in known if name not in found]:
        if unnamed and name in many:
            found[name], unnamed = tuple(unnamed), []
        elif unnamed:
            found[name] = known[name].parse(step, unnamed.pop(0))
        elif known[name].required:
            raise usage_error(step, f"needs {name}")
    if unnamed:
        raise usage_error(step, f"has no use for {', '.join(map(repr, unnamed))}")
    return found


def read_pairs(step: type[Any], parts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Parse each `k=v`, with arbitrary names; raises `UsageError` if there is none."""
    pairs = []
    for part in parts:
        name, _, value = (word.strip() for word in part.partition("="))
        if not name or not value or "=" in value:
            raise usage_error(step, f"takes pairs like a=b, and {part!r} is none")
        pairs.append((name, value))
    if not pairs:
        raise usage_error(step, "needs a pair like a=b")
    return tuple(pairs)


def split_parts(text: str) -> list[str]:
    """Return what stands between commas, without spaces around it and without empty parts."""
    return [part for part in map(str.strip, text.split(",")) if part]


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
