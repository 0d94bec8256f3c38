"""Facts from the name of a dataset: its family, the quality of its policy, its split."""

from __future__ import annotations

import re
from typing import Any

from offline_data.store.manifest import Manifest

_QUALITIES = frozenset(
    {
        *("random", "simple", "medium", "expert", "optimal", "human", "cloned", "replay", "mixed"),
        *("full", "complete", "partial", "suboptimal", "beginner", "longhorizon"),
    }
)
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "val"),
    **dict.fromkeys(("test", "eval", "holdout"), "test"),
}
_VERSION = re.compile(r"v\d+\Z")


def family(name: str) -> str:
    """Return a name without version, split and the quality of the policy.

    Example:
        >>> family("hopper-medium-replay-v2"), family("D4RL/door/human-v2"), family("cube-v0-val")
        ('hopper', 'D4RL/door/', 'cube')
    """
    above, slash, last = name.rpartition("/")
    words = (word for word in re.split(r"[-_]", last) if not _VERSION.match(word))
    kept = (word for word in words if word.lower() not in {*_QUALITIES, *_SPLITS})
    return above + slash + "-".join(kept)


def qualities(name: str) -> frozenset[str]:
    """Return the words in the last part of a name that say how good the policy was.

    Example:
        >>> sorted(qualities("hopper-medium-expert-v2"))
        ['expert', 'medium']
    """
    return frozenset(re.split(r"[-_]", name.lower().rpartition("/")[2])) & _QUALITIES


def split(manifest: Manifest) -> str | None:
    """Return the split that a dataset is, by its name, the hub's or the step that made it, or None.

    Splits are `train`, `val`, `test`, or the name of the part that `preprocess` kept.
    """
    for word in reversed(re.split(r"[-_/]", manifest.name.lower())):
        if word in _SPLITS:
            return _SPLITS[word]
    text = options(manifest).get("text")
    if manifest.source == "hf" and isinstance(text, dict) and isinstance(text.get("split"), str):
        return _SPLITS.get(text["split"], text["split"])
    recipe = options(manifest).get("recipe")
    steps = recipe if isinstance(recipe, list) else []
    parts = (step.get("part") for step in steps if step.get("step") == "split")
    return next((part for part in parts if isinstance(part, str)), None)


def options(manifest: Manifest) -> dict[str, Any]:
    """Return the options of the conversion or of `preprocess`."""
    found = manifest.converter.get("options")
    return found if isinstance(found, dict) else {}


def are_related(first: Manifest, second: Manifest) -> bool:
    """Return True for two datasets of one source and family, or made from the same dataset."""
    one_family = first.source == second.source and family(first.name) == family(second.name)
    return one_family or bool({*first.parents} & {*second.parents})


def is_derived(first: Manifest, second: Manifest) -> bool:
    """Return True if one of two datasets was made from the other."""
    return first.id in second.parents or second.id in first.parents


def without_revision(dataset: str) -> str:
    """Return an id without its revision."""
    return dataset.partition("@")[0]
