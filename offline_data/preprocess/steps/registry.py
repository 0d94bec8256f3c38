"""The table of steps by name, imported on use, including those of other packages and scripts."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, cast

from offline_data.errors import MissingDependencyError, NotFoundError, UsageError
from offline_data.preprocess.steps.parse import did_you_mean

if TYPE_CHECKING:
    from offline_data.preprocess.steps.base import Step

ENTRY_POINT_GROUP = "offline_data.steps"
"""Entry point group for steps of other packages, by step name."""

_FAMILIES = {
    "columns": "cast clip concat exclude flatten rename select",
    "encoded": "decode encode",
    "episodes": "dedupe filter split subsample",
    "images": "crop grayscale resize to_chw",
    "normalize": "normalize normalize_return",
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
        module = importlib.import_module(f"offline_data.preprocess.steps.{_BUILT_IN[name]}")
        return cast("type[Step]", getattr(module, name.title().replace("_", "")))
    if name in _registered:
        return _registered[name]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            return cast("type[Step]", point.load())
        except (ImportError, AttributeError) as error:
            raise MissingDependencyError(f"Step {name!r} cannot be imported: {error}") from error
    names = step_names()
    raise NotFoundError(
        f"No step is called {name!r}; there are {', '.join(names)}",
        hint=did_you_mean(name, names) or "a step is written NAME or NAME:ARGUMENTS",
    )


def parse_step(text: str) -> Step:
    """Parse `NAME` or `NAME:ARGUMENTS`; raises like `step_class` and `Step.parse`.

    Example:
        >>> parse_step("clip:action,low=-1")
        Clip(keys=('action',), low=-1, high=None)
    """
    name, _, arguments = text.strip().partition(":")
    return step_class(name.strip()).parse(arguments)
