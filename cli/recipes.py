"""Recipes and the datasets that `preprocess` makes, would make or plans, laid out."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from offline_data_cli.commands.download import stored_result
from offline_data_cli.render import nested
from offline_data_cli.result import Field, Fields, Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from offline_data.ingest.options import Result as Stored
    from offline_data.preprocess.outlook import Outlook
    from offline_data.preprocess.shared import SharedPlan

_LONGEST = 60
"""Longest value of a parameter in characters; statistics of many numbers are in `--json`."""

_EXISTS = "yes; nothing to do"


def made_result(stored: Stored) -> Result:
    """Lay out a dataset that was made, and how its functions were run."""
    from offline_data.reports.info import entry_info
    from offline_data.store.library import Entry

    shown = stored_result(stored)
    (counts,) = shown.data
    recipe = stored.manifest.converter["options"]["recipe"]
    info = vars(entry_info(Entry(stored.id, stored.path, stored.manifest)))
    functions = _functions(recipe)
    blocks = (*shown.blocks, Fields((functions,))) if functions.value else shown.blocks
    return Result({**info, **counts, "recipe": recipe}, blocks, shown.ids, shown.notes)


def outlook_result(found: Outlook) -> Result:
    """Lay out the dataset that would be made, its size and how long that takes."""
    data: dict[str, Any] = {
        "id": str(found.id),
        "parent": str(found.parent),
        "destination": found.destination,
        "existed": found.existed,
        "replaces": [str(one) for one in found.replaces],
        "free_bytes": found.free_bytes,
    }
    if found.work:
        plan = found.work.plan
        data |= {
            "layout": plan.layout,
            "recipe": found.work.recipe,
            "transitions": plan.chosen.transitions,
            "episodes": len(plan.chosen.episodes),
            "same_lengths": plan.recipe.keeps_rows,
            "tasks": plan.count,
            "finished": found.work.finished,
            "bytes": plan.bytes,
            "estimated_seconds": round(found.work.seconds, 1),
            "executor": found.work.executor,
        }
    data["dry_run"] = True
    counts = {name: f"{data[name]:,}" for name in ("transitions", "episodes") if name in data}
    if not data.get("same_lengths", True):
        counts = {name: f"{count} at most" for name, count in counts.items()}
    seconds = data.get("estimated_seconds")
    fields = Fields(
        (
            Field("id", data["id"]),
            Field("made from", data["parent"]),
            Field("destination", found.destination),
            Field("already exists", _EXISTS if found.existed else None),
            Field("replaces", data["replaces"]),
            _functions(data.get("recipe", ())),
            Field("transitions", counts.get("transitions")),
            Field("episodes", counts.get("episodes")),
            Field("tasks", data.get("tasks"), "count"),
            Field("tasks finished", data.get("finished") or None, "count"),
            Field("size", data.get("bytes"), "bytes"),
            Field("free disk space", found.free_bytes, "bytes"),
            Field("estimated time", None if seconds is None else _time(seconds)),
            Field("executor", data.get("executor")),
        )
    )
    return Result(data, (fields,), (data["id"],))


def _time(seconds: float) -> str:
    """Write an estimate of computing time.

    Example:
        >>> _time(0.2), _time(75), _time(9000)
        ('under a second in one process', 'about 75 s in one process', 'about 2.5 h in one process')
    """
    if seconds < 1:
        return "under a second in one process"
    for size, unit, most in ((1, "s", 100), (60, "min", 100), (3600, "h", math.inf)):
        if seconds < most * size:
            return f"about {seconds / size:.{0 if size == 1 else 1}f} {unit} in one process"
    raise AssertionError


def planned_result(shared: SharedPlan) -> Result:
    """Lay out a plan for workers."""
    data = {
        "id": shared.id,
        "plan": shared.file,
        "parent": str(shared.order.parent),
        "destination": shared.destination,
        "existed": shared.published,
        "recipe": shared.recipe,
        "tasks": shared.tasks,
    }
    fields = Fields(
        (
            Field("id", shared.id),
            Field("plan", shared.file),
            Field("destination", shared.destination),
            Field("already exists", _EXISTS if shared.published else None),
            _functions(shared.recipe),
            Field("tasks", shared.tasks, "count"),
        )
    )
    run = f"offline-data worker --plan {shlex.quote(str(shared.file))} --rank I --world N"
    notes = () if shared.published else (f"run this for every I from 0 to N - 1: {run}",)
    return Result(data, (fields,), (shared.id,), notes)


def recipe_lines(recipe: Iterable[Mapping[str, Any]]) -> list[str]:
    """Write a line for each step: its parameters, or how its function was run.

    Example:
        >>> recipe_lines([{"step": "clip", "keys": ["action"], "low": -1, "high": None}])
        ['clip: keys: [action], low: -1']
    """
    lines = []
    for step in recipe:
        name = str(step["step"])
        if name == "fn":
            lines.append(f"{step.get('name', 'function')}: {_how(step)}")
            continue
        given = {k: v for k, v in step.items() if k != "step" and v not in (None, [], {}, "")}
        shown = {k: v for k, v in given.items() if len(nested(v)) <= _LONGEST}
        lines.append(f"{name}: {nested(shown)}" if shown else name)
    return lines


def _functions(recipe: Iterable[Mapping[str, Any]]) -> Field:
    """Lay out how the functions of a recipe are run; built-in steps always take many rows."""
    lines = []
    for step in recipe:
        if step["step"] != "fn":
            continue
        said = [_how(step)]
        if step.get("two_copies"):
            said.append(f"{', '.join(step['two_copies'])} stored twice, with their own `next`")
        if step.get("unsteady"):
            said.append(f"{step['unsteady']}; values may depend on the order of calls")
        if step.get("unknown"):
            said.append(
                f"its results cannot be reused or resumed, because it cannot be identified: "
                f"{step['unknown']}"
            )
        if step.get("kept"):
            said.append(f"{', '.join(step['kept'])} kept as stored (not returned)")
        lines += [f"{step.get('name', 'function')}: {text}" for text in said]
    return Field("functions", lines)


def _how(step: Mapping[str, Any]) -> str:
    """Return how a function is run."""
    if step.get("by") == "episode":
        return "episode by episode"
    if step["run"] == "vectorised":
        left = step.get("by_rows")
        apart = f", except {left['rows']:,} rows, run row by row: {left['why']}" if left else ""
        return f"vectorised{apart}"
    if step["run"] == "blocks":
        return f"blocks of {step['batched']} rows"
    if not step["vectorize"]:
        return "row by row, as requested"
    return f"row by row, {step['why']}; use --batched N to pass blocks of rows"


def step_list() -> Result:
    """List all steps, each with a one-sentence description and an example."""
    from offline_data.preprocess.steps.registry import step_class, step_names

    data = []
    for name in step_names():
        step = step_class(name)
        does = (step.__doc__ or "").strip().partition("\n")[0]
        data.append({"name": name, "does": does, "example": getattr(step, "example", name)})
    fields = tuple(
        Field(one["name"], (one["does"], f"--step {shlex.quote(one['example'])}")) for one in data
    )
    note = "functions are steps too: --step fn:FILE.py:FN"
    return Result(data, (Fields(fields),), tuple(one["name"] for one in data), (note,))
