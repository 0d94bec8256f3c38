"""Datasets that `preprocess` made, would make or planned, laid out."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from offline_data_cli.commands.download import stored_result
from offline_data_cli.recipes import recipe_block, recipe_field
from offline_data_cli.result import Field, Fields, Result

if TYPE_CHECKING:
    from offline_data.ingest.options import Result as Stored
    from offline_data.preprocess.outlook import Outlook
    from offline_data.preprocess.outlook import Work as Outstanding
    from offline_data.preprocess.shared import SharedPlan


def made_result(stored: Stored) -> Result:
    """Lay out a dataset that was made, and how."""
    from offline_data.reports.info import entry_info
    from offline_data.store.library import Entry

    shown = stored_result(stored)
    (counts,) = shown.data
    recipe = stored.manifest.converter["options"]["recipe"]
    info = vars(entry_info(Entry(stored.id, stored.path, stored.manifest)))
    return Result(
        data={**info, **counts, "recipe": recipe},
        blocks=(*shown.blocks, *recipe_block(recipe)),
        ids=shown.ids,
        notes=shown.notes,
    )


def foreseen_result(found: Outlook) -> Result:
    """Lay out what would be made, and how."""
    data = {
        "id": str(found.id),
        "parent": str(found.parent),
        "destination": found.destination,
        "existed": found.existed,
        "replaces": [str(one) for one in found.replaces],
        "free_bytes": found.free_bytes,
        **(_outstanding(found.work) if found.work else {}),
        "dry_run": True,
    }
    return Result(data, (_outlook(found, data),), (str(found.id),))


def _outstanding(work: Outstanding) -> dict[str, Any]:
    plan = work.plan
    return {
        "layout": plan.layout,
        "recipe": work.recipe,
        "transitions": plan.chosen.transitions,
        "episodes": len(plan.chosen.episodes),
        "same_lengths": plan.recipe.keeps_rows,
        "tasks": plan.count,
        "finished": work.finished,
        "bytes": plan.bytes,
        "estimated_seconds": round(work.seconds, 1),
        "executor": work.executor,
    }


def _outlook(found: Outlook, data: dict[str, Any]) -> Fields:
    seconds = data.get("estimated_seconds")
    most = "" if data.get("same_lengths", True) else ", or fewer"
    return Fields(
        (
            Field("id", data["id"]),
            Field("made from", data["parent"]),
            Field("destination", found.destination),
            Field("here already", "yes: nothing is to be done" if found.existed else None),
            Field("replaces", data["replaces"]),
            recipe_field(data.get("recipe", ())),
            Field("transitions", _count(data.get("transitions"), most)),
            Field("episodes", _count(data.get("episodes"), most)),
            Field("tasks", data.get("tasks"), "count"),
            Field("finished before", data.get("finished") or None, "count"),
            Field("size", data.get("bytes"), "bytes"),
            Field("free", found.free_bytes, "bytes"),
            Field("estimated time", None if seconds is None else _time(seconds)),
            Field("run by", data.get("executor")),
        )
    )


def _count(number: int | None, more: str) -> str | None:
    return None if number is None else f"{number:,}{more}"


def _time(seconds: float) -> str:
    """Say about how long a process computes.

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
    """Lay out a plan that other programs are to follow."""
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
            Field("here already", "yes: nothing is to be done" if shared.published else None),
            recipe_field(shared.recipe),
            Field("tasks", shared.tasks, "count"),
        )
    )
    run = f"offline-data worker --plan {shlex.quote(str(shared.file))} --rank I --world N"
    note = f"to run it, for each I from 0 to N - 1: {run}"
    return Result(data, (fields,), (shared.id,), () if shared.published else (note,))
