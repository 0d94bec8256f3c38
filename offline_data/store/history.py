"""Steps from the sources to a dataset, from its manifest.

A dataset made from others records their steps, so that its history can be read without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from offline_data.base.errors import OfflineDataError
from offline_data.base.ids import parse_id
from offline_data.store.library import find
from offline_data.store.manifest import HistoryStep, Manifest

UNKNOWN = "unknown"  # action of a step of which only the dataset is known

_NOT_OPTIONS = frozenset({"recipe", "fingerprint", "next_too"})
"""Options of a converter that are not options of a step of the history."""


def history_of(manifest: Manifest, root: Path | None = None) -> tuple[HistoryStep, ...]:
    """Return the steps from the sources to a dataset, each after those of its parents.

    The last one made the dataset. Older versions recorded only the ids of parents: these are looked for
    under `root`, and the step of one that is not there is `unknown`.

    Example:
        >>> from offline_data.store.manifest import Manifest
        >>> made = Manifest(
        ...     "local:a@1", "local", "a", "1", "compact", {}, {}, parents=("minari:b@2",)
        ... )
        >>> [(step.action, step.id) for step in history_of(made)]
        [('unknown', 'minari:b@2'), ('convert', 'local:a@1')]
    """
    return _unite([_steps_of(manifest, root, set())])


def extend_history(parents: Iterable[Manifest], step: HistoryStep) -> tuple[HistoryStep, ...]:
    """Return the history, for its manifest, of a dataset that `step` makes from `parents`."""
    return (*_unite(map(history_of, parents)), step)


def _steps_of(manifest: Manifest, root: Path | None, seen: set[str]) -> Iterator[HistoryStep]:
    """Yield the steps; `seen` are the datasets whose steps are known, which are not searched again."""
    *before, last = manifest.history or _derive_steps(manifest)
    seen.add(manifest.id)
    for step in before:
        if step.action != UNKNOWN or root is None:
            yield step
        elif step.id not in seen:
            seen.add(step.id)
            try:
                entry = find(root, parse_id(step.id))
            except OfflineDataError:  # damaged, or the id in a stranger's manifest is invalid
                entry = None
            yield from [step] if entry is None else _steps_of(entry.manifest, root, seen)
    yield replace(last, created=manifest.created, sha256=manifest.sha256)


def _derive_steps(manifest: Manifest) -> list[HistoryStep]:
    """Return the step of a dataset that records none, after those of its parents."""
    converter = manifest.converter
    adapter, options = converter.get("adapter"), converter.get("options") or {}
    made_here = "convert" if manifest.source == "local" else "download"
    step = HistoryStep(
        {"preprocess": "preprocess", "recorder": "record"}.get(str(adapter), made_here),
        manifest.id,
        manifest.parents,
        version=str(converter.get("version", "")),
        recipe=tuple(options.get("recipe", ())),
        options={name: value for name, value in options.items() if name not in _NOT_OPTIONS},
    )
    return [*(HistoryStep(UNKNOWN, parent) for parent in manifest.parents), step]


def _unite(histories: Iterable[Iterable[HistoryStep]]) -> tuple[HistoryStep, ...]:
    steps: dict[tuple[str, ...], HistoryStep] = {}
    for step in (step for history in histories for step in history):
        steps.setdefault((step.action, step.id, step.created), step)
    return tuple(steps.values())
