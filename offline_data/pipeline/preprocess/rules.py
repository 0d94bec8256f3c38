"""Rules on errors of earlier versions; findings name the command that makes a dataset again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from offline_data.analysis.checks.block import RowBlock, RowPlace
from offline_data.analysis.checks.finding import Finding
from offline_data.analysis.checks.names import options, without_revision
from offline_data.analysis.checks.rule import Measured, Rule, Tally
from offline_data.base.errors import OfflineDataError
from offline_data.base.plurals import plural
from offline_data.episode.fields import Key, join_key, next_of, split_key
from offline_data.formats.corrections import defects_of
from offline_data.pipeline.preprocess.steps.registry import parse_step, step_class
from offline_data.store.layout import STEPS, TED
from offline_data.store.manifest import NEXT_TOO, Manifest
from offline_data.store.reader import DatasetReader

_CHANGING = {  # once changed a root feature alone where `next` is stored apart
    "cast", "clip", "crop", "flatten", "grayscale", "normalize", "rename", "resize", "to_chw",
}  # fmt: skip


class OutdatedConversion(Rule):
    """An earlier version of this package converted the dataset wrongly.

    How some files are read, merged or labelled was corrected since; the finding says what was wrong.
    Datasets on the disk are never changed: make the dataset again.
    """

    code = "RL009"
    name = "outdated-conversion"
    severity = "error"

    def findings(self, measured: Measured) -> Iterator[Finding]:
        manifest = measured.reader.manifest
        for problem in defects_of(manifest, measured.reader.path):
            yield self.finding(
                measured.reader,
                f"An earlier version {problem}: make the dataset again with "
                f"`{_command_of(manifest)}`",
                about=problem,
            )


class Discontinuity(Rule):
    """A row's next observation differs from the following row's observation.

    Both are stored (layout `ted`, or a source with both, converted with `--keep-episodes`), so a
    sampler of transitions and one of slices see different data. Steps of earlier versions
    (`normalize`, `clip`, `cast`, …) changed the observation but not the next one: the finding then
    names the step and the command that makes the dataset again.
    """

    code = "RL015"
    name = "discontinuity"
    severity = "warning"
    hint = "convert without --keep-episodes: episodes are then cut where the observation jumps"

    def leaves(self, reader: DatasetReader) -> Iterable[Key]:
        return [key for key, shapes in self._pairs(reader).items() if shapes[0] == shapes[1]]

    def _pairs(self, reader: DatasetReader) -> dict[Key, list[list[int]]]:
        """Return the shapes of a root row and of a `next` row of features that are stored twice."""
        twice = set(reader.manifest.two_copies)
        if TED in reader.manifest.tables:
            twice |= reader.observation_leaves.keys()
        known = reader.manifest.tables[TED if TED in reader.manifest.tables else STEPS].by_key
        pairs = {key: (known[key], known[next_of(key)]) for key in known if key in twice}
        return {
            key: [list(leaf.shape) for leaf in pair]
            for key, pair in pairs.items()
            if not any(leaf.text or leaf.encoding for leaf in pair)
        }

    def measure(self, block: RowBlock, key: Key) -> Tally | None:
        reader, stop = block.reader, min(block.stop + 1, block.reader.transitions)
        root = np.asarray(reader.step(key)[block.first + 1 : stop])
        after = np.asarray(reader.step(next_of(key))[block.first : stop - 1])
        if not len(root):  # the last row of the dataset alone
            return None
        within = np.ones(len(root), bool)
        within[block.ends[block.ends < len(root)]] = False
        differ = (after != root).reshape(len(root), -1)
        if root.dtype.kind == "f":
            differ &= ~(np.isnan(after) & np.isnan(root)).reshape(len(root), -1)
        rows = np.flatnonzero(differ.any(1) & within)
        if not len(rows):
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            far = np.abs(after[rows].astype(np.float64) - root[rows].astype(np.float64))
        first = int(rows[0])
        place = RowPlace(join_key(next_of(key)), int(block.episodes[first]), block.first + first)
        return Tally(number=len(rows), place=place, high=float(np.fmax.reduce(far, None)))

    def findings(self, measured: Measured) -> Iterator[Finding]:
        for key, (root, after) in self._pairs(measured.reader).items():
            if root != after:
                name = join_key(next_of(key))
                yield self.finding(
                    measured.reader,
                    f"rows of {name!r} have shape {after}, and those of {join_key(key)!r} {root}: "
                    f"they cannot be compared{_forgotten(measured.reader.manifest, key)}",
                    leaf=name,
                )
        for new, old in _orphans(measured.reader):
            yield self.finding(
                measured.reader,
                f"{join_key(old)!r} is the next value of {join_key(new)!r}, under its former name"
                + _forgotten(measured.reader.manifest, old[1:]),
                leaf=join_key(old),
            )
        yield from super().findings(measured)

    def message(self, reader: DatasetReader, key: Key, found: Tally) -> str:
        return (
            f"{plural(found.number, 'row has', 'rows have')} a next observation that is not "
            f"the following row's; the greatest difference is {found.high:.4g}"
            f"{_forgotten(reader.manifest, key)}"
        )


def _forgotten(manifest: Manifest, key: Key) -> str:
    """Return how to remake a dataset whose recipe changed a root feature without its `next`.

    Empty unless a step of an earlier version did: half a sentence that names it and a command.
    """
    for step in _old_recipe(manifest):
        if step.get("step") in _CHANGING and _selects(step, key):
            return (
                f"; step {step['step']!r} of an earlier version changed the root feature and not `next`: "
                f"make the dataset again with `{_command_of(manifest)}`"
            )
    return ""


def _orphans(reader: DatasetReader) -> Iterator[tuple[Key, Key]]:
    """Yield root features that an earlier version renamed, and `next` by their old names."""
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
    lists = [value for value in step.values() if isinstance(value, list)]
    words = [one[0] if isinstance(one, list) and one else one for part in lists for one in part]
    names = [_key(word) for word in words if isinstance(word, str)]
    names = names or [("observation",)]  # the default of steps without names
    new = {next_of(key)[: len(name)] for name in names if name[:1] == ("next",)} & {*names}
    return not new and any(key[: len(name)] == name for name in names)


def _key(name: str) -> Key:
    key = split_key(name)
    return ("observation", *key[1:]) if key[:1] == ("obs",) else key


def _command_of(manifest: Manifest) -> str:
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
