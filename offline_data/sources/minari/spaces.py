"""Gymnasium spaces as Minari writes them in JSON: which leaves they declare, and their shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from offline_data.errors import FormatError
from offline_data.strict_json import count_of, parse_json, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True)
class DeclaredLeaf:
    """What a space declares of one leaf."""

    shape: tuple[int, ...] | None
    """Of one row; None for a kind of space this package does not know."""
    dtype: str | None = None
    """As the source writes it; None where it does not."""
    text: bool = False


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
    space = parse_json(value, where) if isinstance(value, str) else value
    if not isinstance(space, dict) or not isinstance(space.get("type"), str):
        raise FormatError(f"{where} is not a space: it has no 'type'")
    return space


def space_leaves(
    space: Mapping[str, Any] | None, where: str
) -> dict[tuple[str, ...], DeclaredLeaf]:
    """Return what a space declares of every leaf, by its names.

    Parts of a `Tuple` are called `"0"`, `"1"`, …; a name with `/` is several parts. No space
    declares nothing.

    Raises:
        FormatError: A part of the space is missing or of the wrong type.

    Example:
        >>> pose = {"type": "Box", "shape": [2], "dtype": "float32"}
        >>> both = {"type": "Tuple", "subspaces": [pose, {"type": "Discrete", "n": 3}]}
        >>> found = space_leaves({"type": "Dict", "subspaces": {"a": both}}, "here")
        >>> {name: leaf.shape for name, leaf in found.items()}
        {('a', '0'): (2,), ('a', '1'): ()}
    """
    if space is None:
        return {}
    try:
        return dict(_leaves(space, ()))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, FormatError) as error:
        what = "" if isinstance(error, FormatError) else f"{type(error).__name__} "
        raise FormatError(f"{where} is not a space that can be read: {what}{error}") from error


def _leaves(
    space: Mapping[str, Any], names: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], DeclaredLeaf]]:
    kind = space["type"]
    if kind == "Dict":
        for name, part in space["subspaces"].items():
            yield from _leaves(part, (*names, *name.split("/")))
    elif kind == "Tuple":
        for number, part in enumerate(space["subspaces"]):
            yield from _leaves(part, (*names, str(number)))
    else:
        dtype = space.get("dtype")
        if not isinstance(dtype, (str, type(None))):
            raise TypeError(f"a dtype is {shown(dtype)}")
        yield names, DeclaredLeaf(_shape(kind, space), dtype, kind == "Text")


def _shape(kind: str, space: Mapping[str, Any]) -> tuple[int, ...] | None:
    if kind == "Box":
        return _lengths(space["shape"])
    if kind in {"Discrete", "Text"}:
        return ()
    if kind == "MultiDiscrete":
        return _nested_shape(space["nvec"])
    if kind == "MultiBinary":
        n = space["n"]
        return _lengths(n if isinstance(n, list) else [n])
    return None


def _lengths(shape: list[Any]) -> tuple[int, ...]:
    return tuple(count_of(length, "a length in its shape") for length in shape)


def _nested_shape(value: Any) -> tuple[int, ...]:
    return (len(value), *_nested_shape(value[0])) if isinstance(value, list) else ()
