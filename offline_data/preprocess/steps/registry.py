"""The table of steps: names and where each lives, imported on use; other people's among them."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, cast

from offline_data.errors import MissingDependencyError, NotFoundError, UsageError
from offline_data.ids import nearest

if TYPE_CHECKING:
    from offline_data.preprocess.steps.base import Step

ENTRY_POINT_GROUP = "offline_data.steps"
"""Other people's steps: an entry point of this group, named like the step."""

_BUILT_IN = {
    "cast": "Cast",
    "clip": "Clip",
    "concat": "Concat",
    "crop": "Crop",
    "dedupe": "Dedupe",
    "exclude": "Exclude",
    "filter": "Filter",
    "flatten": "Flatten",
    "grayscale": "Grayscale",
    "normalize": "Normalize",
    "normalize_return": "NormalizeReturn",
    "rename": "Rename",
    "resize": "Resize",
    "return_to_go": "ReturnToGo",
    "reward_clip": "RewardClip",
    "reward_scale": "RewardScale",
    "reward_shift": "RewardShift",
    "select": "Select",
    "split": "Split",
    "subsample": "Subsample",
    "to_chw": "ToChw",
}
"""Class of each step; its module is called like the step."""

_registered: dict[str, type[Step]] = {}


def register_step(step: type[Step]) -> type[Step]:
    """Make a step of one's own known by its name in this process; may be used as a decorator.

    A class that is defined anew at the same place, as in a notebook, replaces the old one. For the
    command line, name the class in an entry point of the group `offline_data.steps`.

    Raises:
        UsageError: The name is taken by another step, or cannot be one.
    """
    name = getattr(step, "name", None)
    if not isinstance(name, str) or not name.replace("-", "_").isidentifier():
        raise UsageError(
            f"A step is called {name!r}; its name must be a word that can stand before ':'",
            hint=f'name: ClassVar[str] = "…" in class {step.__name__}',
        )
    if name in _BUILT_IN or _place(_registered.get(name, step)) != _place(step):
        raise UsageError(f"There is a step called {name!r} already")
    _registered[name] = step
    return step


def step_names() -> list[str]:
    """Return the names of all steps, sorted, without importing any."""
    points = (point.name for point in entry_points(group=ENTRY_POINT_GROUP))
    return sorted({*_BUILT_IN, *_registered, *points})


def step_class(name: str) -> type[Step]:
    """Import the step called `name`.

    Raises:
        NotFoundError: No such step; the hint offers the nearest names.
        MissingDependencyError: Its module needs a package that is not installed.

    Example:
        >>> step_class("clip").name
        'clip'
    """
    if name in _BUILT_IN:
        module = importlib.import_module(f"offline_data.preprocess.steps.{name}")
        return cast("type[Step]", getattr(module, _BUILT_IN[name]))
    if name in _registered:
        return _registered[name]
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            return cast("type[Step]", point.load())
        except (ImportError, AttributeError) as error:
            raise MissingDependencyError(f"Step {name!r} cannot be imported: {error}") from error
    near = nearest(name, step_names())
    raise NotFoundError(
        f"No step is called {name!r}; there are {', '.join(step_names())}",
        hint=f"did you mean {near[0]!r}?" if near else "a step is written NAME or NAME:ARGUMENTS",
    )


def parse_step(text: str) -> Step:
    """Read `NAME` or `NAME:ARGUMENTS`.

    Raises:
        NotFoundError: See `step_class`.
        UsageError: See `Step.parse`.

    Example:
        >>> parse_step("clip:action,low=-1")
        Clip(keys=('action',), low=-1, high=None)
    """
    name, _, arguments = text.strip().partition(":")
    return step_class(name.strip()).parse(arguments)


def _place(step: type[Step]) -> tuple[str, str]:
    return step.__module__, step.__qualname__
