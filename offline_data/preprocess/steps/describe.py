"""Descriptions of steps from their classes: arguments, types, defaults and documentation."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from offline_data.preprocess.steps.registry import step_class, step_names

if TYPE_CHECKING:
    from offline_data.preprocess.steps.base import Step

_KINDS = {
    "float": "number",
    "int": "whole number",
    "bool": "true or false",
    "str": "text",
    "tuple[str, ...]": "leaves",
    "tuple[tuple[str, str], ...]": "pairs a=b",
    "tuple[tuple[str, float], ...]": "pairs part=share",
}


@dataclass(frozen=True)
class StepArgument:
    """One argument of a step."""

    name: str
    type: str
    """Its type in words: `number`, `whole number`, `leaves`, `png or jpeg`, …"""
    required: bool
    default: Any
    """None also if there is no default."""
    text: str
    """Documentation of the field, including units; may be empty."""


@dataclass(frozen=True)
class StepDescription:
    """One step."""

    name: str
    does: str
    """Summary, one sentence."""
    details: str
    """The rest of the class's docstring."""
    example: str
    """Example argument of `--step`."""
    arguments: tuple[StepArgument, ...]


def describe_steps() -> list[StepDescription]:
    """Describe all steps, by name."""
    return list(map(describe_step, step_names()))


def describe_step(name: str) -> StepDescription:
    """Describe one step; raises like `step_class`.

    Example:
        >>> [(one.name, one.type, one.default) for one in describe_step("return_to_go").arguments]
        [('gamma', 'number', 1.0), ('key', 'text', 'return_to_go')]
    """
    step = step_class(name)
    does, _, details = inspect.cleandoc(step.__doc__ or "").partition("\n")
    details = re.split(r"\n(?:Raises|Example):", details)[0].strip()
    texts: dict[str, str] = {}
    for parent in reversed(step.__mro__):
        texts |= _texts_of(parent)
    arguments = tuple(
        _argument(one, step, texts.get(one.name, ""))
        for one in fields(step)  # type: ignore[arg-type]
        if not one.metadata.get("state")
    )
    return StepDescription(name, does, details, getattr(step, "example", name), arguments)


def _argument(one: Field[Any], step: type[Step], text: str) -> StepArgument:
    required = one.default is MISSING and one.default_factory is MISSING
    default = None if one.default is MISSING else one.default
    return StepArgument(one.name, _type_of(one, step), required, default, text)


def _type_of(one: Field[Any], step: type[Step]) -> str:
    """Return a field's annotation in words, with literal choices listed."""
    words: list[str] = []
    for kind in str(one.type).removesuffix(" | None").split(" | "):
        try:
            choices = get_args(get_type_hints(step)[one.name])
        except NameError:  # a name imported for typing only
            choices = ()
        named = [str(choice) for choice in _flat(choices) if isinstance(choice, str)]
        words += [_KINDS[kind]] if kind in _KINDS else named or [kind]
    return " or ".join(words)


def _flat(choices: tuple[Any, ...]) -> list[Any]:
    return [leaf for one in choices for leaf in (_flat(get_args(one)) if get_args(one) else [one])]


@cache
def _texts_of(step: type[Any]) -> dict[str, str]:
    """Return the docstrings of a class's fields, one line each; empty without source code."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(step)))
    except (OSError, TypeError, SyntaxError):
        return {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    return {
        before.target.id: " ".join(str(after.value.value).split())
        for before, after in pairwise(body)
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }
