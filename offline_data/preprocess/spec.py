"""From what a user writes to a recipe: functions, steps, texts of steps, torchrl transforms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from offline_data.errors import UsageError
from offline_data.preprocess.recipe import Recipe
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.registry import parse_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from offline_data.preprocess.functions.ted import On

Stage: TypeAlias = "Step | str | Callable[[Any], Any]"
"""A step, the text of one (`cast:obs=float32`, `fn:FILE.py:NAME`), or a function."""


_APART = 1_000_003
"""Between the seeds of two functions of one recipe, which must not draw the same numbers."""


@dataclass(frozen=True)
class Calling:
    """How functions of a recipe are called."""

    batched: int | None = None
    """Most rows of a block, for functions that take blocks."""
    by: Literal["row", "episode"] = "row"
    """What a function gets: a row, or a whole episode."""
    on: On = "transitions"
    """What a row is."""
    vectorize: Literal["auto"] | bool = "auto"
    """Whether to run functions of rows by `torch.vmap` where it can; True is the same as "auto"."""
    seed: int = 0
    """What random numbers depend on, beside the row."""

    def __post_init__(self) -> None:
        if self.vectorize not in ("auto", True, False):
            raise UsageError(f"vectorize is {self.vectorize!r}; expected 'auto' or False")
        object.__setattr__(self, "vectorize", "auto" if self.vectorize else False)
        if self.by not in ("row", "episode"):
            raise UsageError(f"by is {self.by!r}; expected 'row' or 'episode'")
        if self.on not in ("transitions", "observations"):
            raise UsageError(f"on is {self.on!r}; expected 'transitions' or 'observations'")
        if self.by == "episode" and (self.batched is not None or self.on != "transitions"):
            raise UsageError(
                "by='episode' hands over whole episodes: neither batched nor on= fit it"
            )


def recipe_of(stages: Iterable[Stage], calling: Calling | None = None) -> Recipe:
    """Build a recipe.

    Raises:
        UsageError: No stage, or something that is none.
        NotFoundError: No step of that name.

    Example:
        >>> recipe_of(["clip:action,low=-1", "clip:action,high=1"]).describe()[1]["high"]
        1
    """
    given = calling or Calling()
    steps = tuple(
        _step(stage, replace(given, seed=given.seed + number * _APART))
        for number, stage in enumerate(stages)
    )
    if not steps:
        raise UsageError(
            "Nothing is to be done",
            hint="give a function or steps: --fn FILE.py:NAME, --step cast:obs=float32",
        )
    return Recipe(steps)


def _step(stage: Stage, calling: Calling) -> Step:
    if isinstance(stage, Step):
        return stage
    if isinstance(stage, str):
        name, _, rest = stage.partition(":")
        if name.strip() == "fn":
            return _named(rest.strip(), calling)
        return parse_step(stage)
    if callable(stage):
        return function_step(stage, calling)
    raise UsageError(f"{stage!r} is neither a function nor a step")


def _named(reference: str, calling: Calling) -> Step:
    from offline_data.preprocess.functions.reference import load_function

    return function_step(load_function(reference), calling)


def function_step(fn: Callable[[Any], Any], calling: Calling) -> Step:
    """Return the step that calls `fn`."""
    from offline_data.preprocess.functions.episodes import EpisodeStep
    from offline_data.preprocess.functions.step import FunctionStep

    if calling.by == "episode":
        return EpisodeStep(fn, seed=calling.seed)
    return FunctionStep(
        fn,
        on=calling.on,
        batched=calling.batched,
        vectorize=calling.vectorize,
        seed=calling.seed,
    )
