"""Plans on disk, so that an interrupted run can be resumed, here or elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.errors import ManifestError, OfflineDataError
from offline_data.ingest.build import package_version
from offline_data.preprocess.checked import read_checked
from offline_data.preprocess.plan import Plan, identity_of, schema_of_piece
from offline_data.preprocess.probing import probe
from offline_data.preprocess.reading import Chosen

if TYPE_CHECKING:
    from offline_data.preprocess.recipe import Recipe
    from offline_data.preprocess.work import Work
    from offline_data.store.reader import DatasetReader

_ARRAYS = (("episodes",), ("lengths",), ("steps",), ("groups",), ("tasks",))


def save_plan(work: Work, plan: Plan, fingerprint: str, more: dict[str, Any] | None = None) -> None:
    """Write a plan into its work folder; where that fails, nothing of the folder is left.

    Args:
        work: The folder.
        plan: What is being made.
        fingerprint: What tells it apart from other plans.
        more: What else is to be kept with it, as JSON values.
    """
    chosen = plan.chosen
    arrays = (chosen.episodes, chosen.lengths, chosen.steps, plan.groups, plan.tasks)
    about = {
        "version": package_version(),
        "fingerprint": fingerprint,
        "parent": str(plan.parent),
        "layout": plan.layout,
        "in_place": plan.in_place,
        "states": plan.recipe.states(),
        **(more or {}),
    }
    try:
        work.write_plan(about, dict(zip(_ARRAYS, arrays, strict=True)))
    except OfflineDataError:
        work.clear()
        raise


def load_plan(work: Work, recipe: Recipe, reader: DatasetReader) -> Plan:
    """Read a plan back.

    Args:
        work: The folder.
        recipe: The recipe as it was asked for.
        reader: The parent.

    Raises:
        ManifestError: It is damaged, or another version of this package made it.
    """
    found = read_checked(work.plan)
    if found is None:
        raise _unusable(work, "its plan is damaged")
    value, arrays = found
    if value["version"] != package_version():
        raise _unusable(work, f"offline-data {value['version']} made it, not {package_version()}")
    ready = recipe.with_states(value["states"])
    *taken, groups, tasks = (arrays[key] for key in _ARRAYS)
    chosen = Chosen(*taken)
    made = ready.apply(probe(reader, chosen, ready))
    return Plan(
        reader.path,
        identity_of(reader),
        ready,
        chosen,
        groups,
        tasks,
        value["layout"],
        schema_of_piece(made),
        made.words,
        value["in_place"],
    )


def _unusable(work: Work, why: str) -> ManifestError:
    return ManifestError(
        f"What a stopped run left in {work.path} cannot be used: {why}", hint="--force begins anew"
    )
