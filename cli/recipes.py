"""Recipes for people: how each function was run, and which steps there are."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from offline_data_cli.cells import nested
from offline_data_cli.result import Field, Fields, Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LONGEST = 60
"""Characters of a value; statistics of many numbers are in `--json`."""


def recipe_field(recipe: Iterable[Mapping[str, Any]]) -> Field:
    """Lay out how the functions of a recipe are run; steps always take many rows at once."""
    return Field("functions", [line for step in recipe for line in _lines(step)])


def recipe_block(recipe: Iterable[Mapping[str, Any]]) -> tuple[Fields, ...]:
    """Lay the same out as a block of its own; none where there is no function."""
    field = recipe_field(recipe)
    return (Fields((field,)),) if field.value else ()


def recipe_lines(recipe: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write a line for each step: its parameters, or how its function was run.

    Example:
        >>> recipe_lines([{"step": "clip", "keys": ["action"], "low": -1, "high": None}])
        ['clip: keys: [action], low: -1']
    """
    return [_line(step) for step in recipe]


def _line(step: Mapping[str, Any]) -> str:
    name = str(step["step"])
    if name == "fn":
        return f"{step.get('name', 'function')}: {_how(step)}"
    given = {k: v for k, v in step.items() if k != "step" and v not in (None, [], {}, "")}
    shown = {k: v for k, v in given.items() if len(nested(v)) <= _LONGEST}
    return f"{name}: {nested(shown)}" if shown else name


def _lines(step: Mapping[str, Any]) -> list[str]:
    if step["step"] != "fn":
        return []
    name = step.get("name", "function")
    lines = [f"{name}: {_how(step)}"]
    if step.get("two_copies"):
        lines.append(f"{name}: {', '.join(step['two_copies'])} stored twice, with its own `next`")
    if step.get("unsteady"):
        lines.append(f"{name}: {step['unsteady']}; values may depend on the order of calls")
    if step.get("unknown"):
        lines.append(
            f"{name}: neither used again nor resumed, for it cannot be told apart: {step['unknown']}"
        )
    if step.get("kept"):
        lines.append(f"{name}: {', '.join(step['kept'])} kept, it does not return them")
    return lines


def _how(step: Mapping[str, Any]) -> str:
    if step.get("by") == "episode":
        return "episode by episode"
    if step["run"] == "vectorised":
        return f"vectorised{_but_for(step)}"
    if step["run"] == "blocks":
        return f"blocks of {step['batched']} rows"
    if not step["vectorize"]:
        return "row by row, as asked for"
    return f"row by row, {step['why']}; --batched N hands it blocks"


def _but_for(step: Mapping[str, Any]) -> str:
    """Say how many rows were run one at a time after all."""
    left = step.get("by_rows")
    return f", but for {left['rows']:,} rows, run row by row: {left['why']}" if left else ""


def step_list() -> Result:
    """List all steps: what each does, in a sentence, and an example."""
    from offline_data.preprocess.steps.registry import step_class, step_names

    steps = [(name, step_class(name)) for name in step_names()]
    data = [
        {
            "name": name,
            "does": (step.__doc__ or "").strip().partition("\n")[0],
            "example": getattr(step, "example", name),
        }
        for name, step in steps
    ]
    fields = tuple(
        Field(one["name"], (one["does"], f"--step {shlex.quote(one['example'])}")) for one in data
    )
    note = "a function is a step as well: --step fn:FILE.py:FN"
    return Result(data, (Fields(fields),), tuple(one["name"] for one in data), (note,))
