"""Errors of earlier versions, and the command that makes a dataset again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from offline_data.checks.names import options, without_revision
from offline_data.episodes.fields import Key, next_of, split_key
from offline_data.errors import OfflineDataError
from offline_data.store.manifest import NEXT_TOO, Manifest
from offline_data.store.reader import DatasetReader

_CHANGING = {
    "cast", "clip", "crop", "flatten", "grayscale", "normalize", "rename", "resize", "to_chw",
}  # fmt: skip
"""Steps that once changed a root leaf alone where `next` is stored apart."""


def forgotten(manifest: Manifest, key: Key) -> str:
    """Return how to make a dataset again whose recipe changed a root leaf without its `next` leaf.

    Empty unless a step of an earlier version did: half a sentence that names it and a command.
    """
    for step in _old_recipe(manifest):
        if step.get("step") in _CHANGING and _selects(step, key):
            return (
                f"; step {step['step']!r} of an earlier version changed the root leaf and not `next`: "
                f"make the dataset again with `{command_of(manifest)}`"
            )
    return ""


def orphans(reader: DatasetReader) -> Iterator[tuple[Key, Key]]:
    """Yield root leaves that an earlier version renamed, and the `next` leaves of their old names."""
    known = reader.step_leaves
    for step in _old_recipe(reader.manifest):
        pairs = step.get("names") if step.get("step") == "rename" else ()
        for pair in pairs if isinstance(pairs, list) else ():
            if isinstance(pair, list) and len(pair) == 2 and all(type(one) is str for one in pair):
                old, new = map(_key, pair)
                if next_of(old) in known and new in known and next_of(new) not in known:
                    yield new, next_of(old)


def _old_recipe(manifest: Manifest) -> list[dict[str, Any]]:
    """Return the steps of a recipe that was applied before steps knew of `next`, if there is one."""
    recorded = options(manifest)
    recipe = recorded.get("recipe")
    if recorded.get(NEXT_TOO) or not isinstance(recipe, list):
        return []
    return [step for step in recipe if isinstance(step, dict)]


def _selects(step: dict[str, Any], key: Key) -> bool:
    """Return True if a step names a leaf or a part of its key, and not its `next` leaf."""
    lists = [value for value in step.values() if isinstance(value, list)]
    words = [one[0] if isinstance(one, list) and one else one for part in lists for one in part]
    names = [_key(word) for word in words if isinstance(word, str)]
    names = names or [("observation",)]  # the default of steps without names
    new = {next_of(key)[: len(name)] for name in names if name[:1] == ("next",)} & {*names}
    return not new and any(key[: len(name)] == name for name in names)


def _key(name: str) -> Key:
    key = split_key(name)
    return ("observation", *key[1:]) if key[:1] == ("obs",) else key


def command_of(manifest: Manifest) -> str:
    """Return the command that makes a dataset again; `…` and capitals stand for unknown parts."""
    if manifest.converter.get("adapter") == "merge":
        words = ["merge", *manifest.parents, "--out", manifest.name]
        words += ["--common-leaves"] * bool(options(manifest).get("common_leaves"))
        words += ["--cast"] * bool(options(manifest).get("cast"))
        return shlex.join(["offline-data", *words, "--force"])
    if "recipe" not in options(manifest):
        words = ["download", without_revision(manifest.id)]
        if manifest.source == "local":
            words = ["convert", "PATH", manifest.name]
            words += ["--mapping", "FILE"] * bool(options(manifest).get("mapping"))
        return shlex.join(["offline-data", *words, "--force"])
    words = ["offline-data", "preprocess", *(manifest.parents[:1] or ("PARENT",))]
    for step in options(manifest)["recipe"]:
        text = _as_text(step) if isinstance(step, dict) else None
        words += ["--step", text] if text else ["…"]
    return shlex.join([*words, "--out", manifest.name, "--force"])


def _as_text(step: dict[str, Any]) -> str | None:
    """Return a recorded step as the command line takes it; None if it cannot."""
    from offline_data.preprocess.steps.registry import parse_step, step_class

    words = []
    try:
        for field in fields(step_class(str(step.get("step")))):  # type: ignore[arg-type]
            value, default = step.get(field.name), field.default
            if field.name not in step or (
                default is not MISSING and value == json.loads(json.dumps(default))
            ):
                continue
            if isinstance(value, list):
                words += [
                    "=".join(map(str, one)) if isinstance(one, list) else one for one in value
                ]
            else:
                words.append(f"{field.name}={json.dumps(value).strip(chr(34))}")
        text = f"{step['step']}:{','.join(map(str, words))}".rstrip(":")
        described = parse_step(text).describe()
    except (OfflineDataError, TypeError, ValueError):
        return None
    # A field that is younger than the recipe has its default.
    recorded = {name: step.get(name, value) for name, value in described.items()}
    return text if described == recorded else None
