"""Gymnasium spaces as Minari writes them in JSON: which leaves they declare, and their shapes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from offline_data.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def parse_space(value: object, where: str) -> Mapping[str, Any] | None:
    """Parse a space, JSON text inside JSON; None where the source gives none.

    Bare `Infinity` and `NaN` become Python floats.

    Raises:
        FormatError: Not a JSON object with a `type`.

    Example:
        >>> parse_space('{"type": "Discrete", "n": 3, "start": 0}', "here")["n"]
        3
    """
    if value is None:
        return None
    try:
        space = json.loads(value) if isinstance(value, (str, bytes)) else value
    except ValueError as error:
        raise FormatError(f"{where} is not JSON: {error}") from error
    if not isinstance(space, dict) or not isinstance(space.get("type"), str):
        raise FormatError(f"{where} is not a space: it has no 'type'")
    return space


def space_leaves(
    space: Mapping[str, Any] | None, where: str
) -> dict[tuple[str, ...], tuple[int, ...] | None]:
    """Return the shape of one row of every leaf that a space declares, by its names.

    Parts of a `Tuple` are called `"0"`, `"1"`, …; a name with `/` is several parts. The shape is
    None for a kind of space this package does not know. No space declares nothing.

    Raises:
        FormatError: A part of the space is missing or of the wrong type.

    Example:
        >>> pose = {"type": "Box", "shape": [2], "dtype": "float32"}
        >>> both = {"type": "Tuple", "subspaces": [pose, {"type": "Discrete", "n": 3}]}
        >>> space_leaves({"type": "Dict", "subspaces": {"a": both}}, "here")
        {('a', '0'): (2,), ('a', '1'): ()}
    """
    if space is None:
        return {}
    try:
        return dict(_leaves(space, ()))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FormatError(
            f"{where} is not a space that can be read: {type(error).__name__} {error}"
        ) from error


def _leaves(
    space: Mapping[str, Any], names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], tuple[int, ...] | None]]:
    kind = space["type"]
    if kind == "Dict":
        for name, part in space["subspaces"].items():
            yield from _leaves(part, (*names, *name.split("/")))
    elif kind == "Tuple":
        for number, part in enumerate(space["subspaces"]):
            yield from _leaves(part, (*names, str(number)))
    else:
        yield names, _shape(kind, space)


def _shape(kind: str, space: Mapping[str, Any]) -> tuple[int, ...] | None:
    if kind == "Box":
        return tuple(int(length) for length in space["shape"])
    if kind in {"Discrete", "Text"}:
        return ()
    if kind == "MultiDiscrete":
        return _nested_shape(space["nvec"])
    if kind == "MultiBinary":
        n = space["n"]
        return tuple(int(length) for length in n) if isinstance(n, list) else (int(n),)
    return None


def _nested_shape(value: Any) -> tuple[int, ...]:
    return (len(value), *_nested_shape(value[0])) if isinstance(value, list) else ()
