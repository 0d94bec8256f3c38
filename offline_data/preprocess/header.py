"""What the manifest of a new dataset says before its rows are known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.ingest.build import package_version
from offline_data.preprocess.plan import digest_of_rows
from offline_data.preprocess.steps.base import Selection
from offline_data.store.layout import EPISODE
from offline_data.store.manifest import Manifest

if TYPE_CHECKING:
    from offline_data.ids import DatasetId
    from offline_data.preprocess.options import Options
    from offline_data.preprocess.plan import Plan
    from offline_data.preprocess.reading import Chosen
    from offline_data.preprocess.recipe import Recipe
    from offline_data.store.reader import DatasetReader

ADAPTER = "preprocess"
"""What `converter` names as the adapter of datasets that were made here."""


def header_of(
    target: DatasetId, plan: Plan, reader: DatasetReader, fingerprint: str, options: Options
) -> Manifest:
    """Return the manifest without tables, counts and digests.

    What the source said stays; a space goes whose leaves have another type or shape now.
    """
    parent = reader.manifest
    changed = [name for name in parent.spaces if _changed(name, plan, reader)]
    notes = [*parent.notes, *plan.recipe.notes()]
    if changed:
        notes.append(f"Spaces of {' and '.join(changed)} are left out: these leaves have changed")
    if _tells_rewards(parent) and not all(isinstance(s, Selection) for s in plan.recipe.steps):
        notes.append(f"Reference scores and reward thresholds are those of {parent.id}")
    if options.view is not None:
        notes.append(_view_note(options.view, reader))
    if options.num_frames is not None:
        notes.append(_cut(plan, reader))
    return Manifest(
        id=str(target),
        source=target.source,
        name=target.name,
        revision=target.revision or "",
        layout=plan.layout,
        tables={},
        counts={},
        converter={
            "name": "offline-data",
            "version": package_version(),
            "adapter": ADAPTER,
            "options": {
                "recipe": recipe_json(plan.recipe),
                "num_frames": options.num_frames,
                "fingerprint": fingerprint,
                **({} if options.view is None else {"view": _view_json(options.view, reader)}),
            },
        },
        spaces={name: space for name, space in parent.spaces.items() if name not in changed},
        environment=parent.environment,
        about=parent.about,
        licence=parent.licence,
        citation=parent.citation,
        notes=tuple(dict.fromkeys(note for note in notes if note)),
        dropped=parent.dropped,
        parents=(parent.id,),
    )


def _tells_rewards(parent: Manifest) -> bool:
    """Return True if the source says which rewards are good, which other rewards make wrong."""
    said = {**parent.about, **parent.environment}
    names = ("ref_min_score", "ref_max_score", "reward_threshold")
    return any(said.get(name) is not None for name in names)


def recipe_json(recipe: Recipe) -> list[dict[str, Any]]:
    """Return what was done: every step's parameters and what it learnt, but for schemas."""
    return [
        {**step.describe(), **{k: v for k, v in step.state().items() if k != "schema"}}
        for step in recipe.steps
    ]


def _changed(space: str, plan: Plan, reader: DatasetReader) -> bool:
    """Return True if the leaves that a space is of have other names, types or shapes now."""
    before = {
        key: (leaf.dtype, leaf.shape)
        for key, leaf in {**reader.step_leaves, **reader.observation_leaves}.items()
        if key[0] == space and key != EPISODE
    }
    columns = {**plan.schema.steps, **plan.schema.observations}
    after = {
        key: (column.dtype.name, column.shape) for key, column in columns.items() if key[0] == space
    }
    return before != after


def _view_json(view: Chosen, reader: DatasetReader) -> dict[str, Any]:
    """Describe the view that was preprocessed; `cut`: pieces that are not whole episodes."""
    whole = view.lengths == reader.lengths[view.episodes]
    return {
        "transitions": view.transitions,
        "episodes": len(view.episodes),
        "cut": int((~whole).sum()),
        "sha256": digest_of_rows(view),
    }


def _view_note(view: Chosen, reader: DatasetReader) -> str:
    said = _view_json(view, reader)
    note = f"Made of a view of {reader.manifest.id}: {said['transitions']} of {reader.transitions} transitions"
    if not said["cut"]:
        return note
    return (
        f"{note}. {said['cut']} of its {said['episodes']} episodes are pieces, which are truncated "
        "where they end before the parent's episode does"
    )


def _cut(plan: Plan, reader: DatasetReader) -> str:
    chosen = plan.chosen
    if not chosen.ends_early(reader)[-1]:
        return ""
    last, stop = int(chosen.episodes[-1]), int(chosen.steps[-1] + chosen.lengths[-1])
    of = int(reader.lengths[last])
    return (
        f"Episode {last} of {reader.manifest.id} is cut after {stop} of {of} steps: truncated there"
    )
