"""The table of steps by name, imported on use, including those of other packages and scripts."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from dataclasses import MISSING
from functools import cache
from importlib.metadata import entry_points
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from offline_data.base.errors import MissingDependencyError, NotFoundError, UsageError
from offline_data.base.ids import unknown
from offline_data.pipeline.preprocess.steps.parse import parameters

if TYPE_CHECKING:
    from offline_data.pipeline.preprocess.steps.base import Step

ENTRY_POINT_GROUP = "offline_data.steps"
"""Entry point group for steps of other packages, by step name."""

_FAMILIES = {
    "columns": "cast clip concat exclude flatten rename select",
    "encoded": "decode encode",
    "episodes": "dedupe filter split subsample",
    "images": "crop grayscale resize to_chw",
    "label": "label",
    "normalize": "normalize normalize_return",
    "rows": "resample shift trim",
    "rewards": "return_to_go reward_clip reward_scale reward_shift",
}
"""Steps of each module in this package; the class of `to_chw` is `ToChw`."""
_BUILT_IN = {name: module for module, names in _FAMILIES.items() for name in names.split()}

_registered: dict[str, type[Step]] = {}


def register_step(step: type[Step]) -> type[Step]:
    """Register a custom step by its name in this process; usable as a decorator.

    A class that is defined again at the same place, as in a notebook, replaces the old one. For the
    command line, add the class to the entry point group `offline_data.steps`.

    Raises:
        UsageError: The name already exists or is invalid.
    """
    name = getattr(step, "name", None)
    if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
        raise UsageError(
            f"A step is called {name!r}; its name must be a word that can stand before ':'",
            hint=f'class {step.__name__}(Step, name="…")',
        )
    old = _registered.get(name, step)
    same = (old.__module__, old.__qualname__) == (step.__module__, step.__qualname__)
    if name in _BUILT_IN or not same:
        raise UsageError(f"There is a step called {name!r} already")
    _registered[name] = step
    return step


def step_names() -> list[str]:
    """Return the names of all steps, sorted, without importing any."""
    points = (point.name for point in entry_points(group=ENTRY_POINT_GROUP))
    return sorted({*_BUILT_IN, *_registered, *points})


def step_class(name: str) -> type[Step]:
    """Import the step named `name`.

    Raises:
        NotFoundError: No such step; the hint offers the nearest names.
        MissingDependencyError: Its module needs a package that is not installed.
    """
    if name in _BUILT_IN:
        module = importlib.import_module(
            f"offline_data.pipeline.preprocess.steps.{_BUILT_IN[name]}"
        )
        return cast("type[Step]", getattr(module, name.title().replace("_", "")))
    if name in _registered:
        return _registered[name]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            return cast("type[Step]", point.load())
        except (ImportError, AttributeError) as error:
            raise MissingDependencyError(f"Step {name!r} cannot be imported: {error}") from error
    hint = "a step is written NAME or NAME:ARGUMENTS"
    raise unknown(NotFoundError, "No step is called", name, step_names(), hint=hint, shown=repr)


def parse_step(text: str) -> Step:
    """Parse `NAME` or `NAME:ARGUMENTS`; raises like `step_class` and `Step.parse`.

    Example:
        >>> parse_step("clip:action,low=-1")
        Clip(keys=('action',), low=-1, high=None)
    """
    name, _, arguments = text.strip().partition(":")
    return step_class(name.strip()).parse(arguments)


def describe_step(name: str) -> dict[str, Any]:
    """Describe one step as JSON values, from its class; raises like `step_class`.

    `name`, `does` (a sentence), `details` (the rest of the docstring), `example` (of `--step`), and
    `arguments`: for each `name`, `type` in words, `required`, `default` (None also if there is
    none) and `text`, its documentation.

    Example:
        >>> [(one["name"], one["default"]) for one in describe_step("return_to_go")["arguments"]]
        [('gamma', 1.0), ('key', 'return_to_go')]
    """
    step = step_class(name)
    does, _, details = inspect.cleandoc(step.__doc__ or "").partition("\n")
    texts: dict[str, str] = {}
    for parent in reversed(step.__mro__):
        texts |= _texts_of(parent)
    arguments = [
        {
            "name": name,
            "type": parameter.words(),
            "required": parameter.required,
            "default": None if parameter.field.default is MISSING else parameter.field.default,
            "text": texts.get(name, ""),
        }
        for name, parameter in parameters(step).items()
    ]
    return {
        "name": name,
        "does": does,
        "details": re.split(r"\n(?:Raises|Example):", details)[0].strip(),
        "example": getattr(step, "example", name),
        "arguments": arguments,
    }


@cache
def _texts_of(step: type[Any]) -> dict[str, str]:
    """Return the docstrings of a class's fields, one line each; empty without source code."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(step))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    return {
        before.target.id: " ".join(str(after.value.value).split())
        for before, after in pairwise(getattr(tree, "body", ()))
        if isinstance(before, ast.AnnAssign)
        and isinstance(before.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }
