"""Making the plan that programs on several machines follow, and making it anew."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from offline_data.config import user_path
from offline_data.disk import disk_errors, require_bytes
from offline_data.errors import UsageError
from offline_data.preprocess.existing import is_there, older, refuse_itself
from offline_data.preprocess.header import recipe_json
from offline_data.preprocess.saved import save_plan
from offline_data.preprocess.settling import revised, settled
from offline_data.preprocess.shared import (
    SharedPlan,
    digest_of,
    plan_lock,
    read_shared,
    write_shared,
)
from offline_data.progress import SILENT
from offline_data.store.library import entry_at
from offline_data.store.writer import with_margin

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.config import Settings
    from offline_data.preprocess.engine import Run
    from offline_data.preprocess.order import Order
    from offline_data.preprocess.recipe import Revised
    from offline_data.progress import Progress


def plan_shared(
    order: Order, file: Path, settings: Settings, progress: Progress = SILENT
) -> SharedPlan:
    """Settle a recipe, first passes over the data included, and write its plan to a file.

    Args:
        order: What is to be made. `options.resume` takes the plan that is there, if it is of the
            same recipe and data; `options.force` plans anew.
        file: On a filesystem that all machines see under the same path, with room for the rows.
        settings: The root, and processes for first passes.
        progress: Where to tell of them.

    Returns:
        The plan; `published` where the dataset is there already.

    Raises:
        UsageError: There is a plan, or the dataset's place is taken; what `Order.run` raises.
        StepError: A step does not fit the data.
        ManifestError, NewerFormatError: The file is there and is no plan.
        NoSpaceError, AccessError: The disk of the file.
    """
    if order.options.view is not None:
        raise UsageError("A view cannot be planned for other programs", hint="preprocess it here")
    order, file = order.absolute(), user_path(file, "the plan")
    run = order.run(settings, progress)
    if run.recipe.unknown:
        raise UsageError(
            f"{run.recipe.unknown}, and other programs cannot follow this plan",
            hint="close over arrays or paths instead, and open files inside the function",
        )
    shared = _unplanned(order, file, run)
    refuse_itself(entry_at(run.reader.path), run.target)
    with plan_lock(file, progress):
        before = read_shared(file) if file.exists() else None
        if before is not None and not run.options.force:
            return _same(before, shared)
        if not run.options.force and is_there(run.target, run.fingerprint, run.options.layout):
            shared = replace(shared, published=True)
            write_shared(shared)
            return shared
        older(run.target, settings.root, force=run.options.force)
        return _planned(shared, run)


def plan_otherwise(shared: SharedPlan, run: Run, found: Revised) -> SharedPlan:
    """Put a plan as the data ask for in the place of the one that is there.

    Returns:
        The new plan; another program's, where there is one already.

    Raises:
        StepError, NoSpaceError, AccessError: See `plan_shared`.
    """
    with plan_lock(shared.file, run.progress):
        now = read_shared(shared.file)
        if now.published or now.place != shared.place:
            return now
        return _planned(replace(shared, generation=shared.generation + 1), revised(run, found))


def _unplanned(order: Order, file: Path, run: Run) -> SharedPlan:
    return SharedPlan(
        file,
        order,
        run.settings.root.absolute(),
        str(run.target.id),
        run.target.destination,
        run.fingerprint,
        tuple(digest_of(step.describe()) for step in run.recipe.steps),
    )


def _same(before: SharedPlan, shared: SharedPlan) -> SharedPlan:
    """Return the plan that is there; raises `UsageError` where it is not what is asked for."""
    wanted, there = shared.order.options, before.order.options
    same = (shared.fingerprint, shared.destination, wanted.layout) == (
        before.fingerprint,
        before.destination,
        there.layout,
    )
    if not same or not wanted.resume:
        hint = "--force plans anew, and throws away what its tasks have made"
        raise UsageError(
            f"There is {'the same' if same else 'another'} plan in {shared.file}",
            hint=f"--resume keeps it, {hint}" if same else hint,
        )
    return before


def _planned(shared: SharedPlan, run: Run) -> SharedPlan:
    """Plan, and write the plan and its file; the caller holds the file's lock."""
    run, prepared = settled(run, in_place=False)
    plan = prepared.plan
    new = replace(
        shared,
        place=f"{shared.generation:03d}-{secrets.token_hex(4)}",
        states=tuple(run.recipe.states()),
        recipe=tuple(recipe_json(plan.recipe)),
        tasks=plan.count,
    )
    work = new.work(run)
    require_bytes(work.path, with_margin(plan.bytes), new.id)
    save_plan(work, plan, run.fingerprint)
    write_shared(new)
    with disk_errors(new.folder):
        for left in [path for path in new.folder.iterdir() if path.name != new.place]:
            shutil.rmtree(left, ignore_errors=True)
    return new
