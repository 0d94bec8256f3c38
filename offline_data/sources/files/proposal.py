"""`convert --inspect`: the arrays of files, what they look like, and a mapping to edit."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.errors import OfflineDataError
from offline_data.plurals import plural
from offline_data.readers.arrays import natural, open_arrays
from offline_data.sources.files.episodes import Layout, find_units, open_unit
from offline_data.sources.files.mapping import Ends, FileMapping, MappingQuestionError, dump_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from offline_data.readers.arrays import Arrays, NamedArray

SAMPLED = 16 << 20
"""Bytes of an array whose range is shown."""
_WIDTH = 80

_ROLES = {
    "next observation": r"next_?(obs|observations?|states?)|obs_?next|observations?_next",
    "observation": r"obs|observations?|images?|pixels?|frames?|rgb|o",
    "state": r"(.+_)?states?|s|qpos|qvel",
    "action": r"actions?|acts?|controls?|ctrl|commands?|cmd|a|u",
    "reward": r"(next_)?(rewards?|rews?|r)",
    "cost": r"(next_)?costs?",
    "terminated": r"(next_)?(is_)?(terminals?|terminated|terminations?|term)",
    "truncated": r"(next_)?(is_)?(timeouts?|truncated|truncations?|trunc)",
    "done": r"(next_)?(is_)?(dones?|last)|(episode|ep|traj|trajectory)_(end|done|last|terminals)",
    "episode": r"(episode|ep|traj|trajectory|demo)s?_?(ids?|idx|index|num|number|no)?",
    "lengths": r"(episode_|ep_|traj_|trajectory_)?(lengths?|lens?)",
    "offsets": r"(episode_|ep_|traj_|trajectory_)?(ends|offsets)",
    "time": r"t|time|timesteps?|steps?|timestamps?|frame_index",
    "info": r"infos?",
}
"""Names of arrays by what they mean."""
_LEAVES = {
    **{role: role for role in ("observation", "action", "state", "info")},
    "reward": "next/reward",
    "cost": "next/cost",
    "next observation": "next/observation",
}
_ENDS = ("lengths", "offsets", "episode")


@dataclass(frozen=True)
class FoundArray:
    """An array of the files."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    least: float | None
    """Smallest of the first values, see `complete`; None: it has none, or is text."""
    most: float | None
    complete: bool
    """Whether the range is that of all values, not only of the first `SAMPLED` bytes."""
    looks_like: str
    """Its meaning by its name, or the reason why it cannot be read; empty: not known."""


@dataclass(frozen=True)
class Inspection:
    """Arrays of files, and the mapping that is proposed for them."""

    path: Path
    source: str | None
    """Source that reads the files without a mapping."""
    episodes: tuple[str, ...]
    """Groups or files that are an episode each; empty: none. `arrays` are those of the first."""
    arrays: tuple[FoundArray, ...]
    mapping: FileMapping
    """The proposal, without what only the user knows; `NAME` stands for an array that was not recognised."""
    questions: tuple[MappingQuestionError, ...]
    """Lines that it lacks."""
    toml: str
    """The mapping as a file to edit, with the arrays and questions as comments."""


def inspect_arrays(path: Path, source: str | None) -> Inspection:
    """List the arrays of a file or folder and propose a mapping; raises `FormatError`."""
    with open_arrays(path) as arrays:
        each = _find_each(arrays)
        units = find_units(arrays, each) if each else []
        with open_unit(arrays, units[0] if units else "") as unit:
            roles = {name: _role_of(name, column) for name, column in unit.columns.items()}
            found = [_describe(unit, n, column, roles[n]) for n, column in unit.columns.items()]
            mapping, questions, problem = _propose(unit, roles, each)
    names = tuple(units)
    lines = [*_table(path, each, names, found), ""]
    if source:
        lines[:0] = [f"# Without a mapping, it is read as {source}: offline-data convert PATH NAME"]
    for question in questions:
        lines += [
            *_comment(f"{question.why}. Choose a line:"),
            *(f"# {one}" for one in question.lines),
            "",
        ]
    lines += _comment(problem) if problem else []
    text = "\n".join(lines) + "\n"
    text += dump_toml(mapping)
    return Inspection(path, source, names, tuple(found), mapping, tuple(questions), text)


def _find_each(arrays: Arrays) -> str | None:
    """Return the pattern of groups or files, the first of which has actions; None: there are none."""
    tops = arrays.groups("")
    for parent in ("", *tops[:20]):
        names = tops if not parent else arrays.groups(parent) if "." not in parent else []
        patterns: dict[str, list[str]] = {}
        for name in names:
            suffix = re.search(r"(\.(csv|tsv)\.gz|\.[a-z0-9]+)\Z", name)
            patterns.setdefault(
                f"*{suffix[0]}" if suffix else re.sub(r"[0-9]+\Z", "*", name), []
            ).append(name)
        for pattern, some in patterns.items():
            first = f"{parent}/{some[0]}" if parent else some[0]
            if "*" not in pattern:
                continue
            try:
                with arrays.below(first) as unit:
                    if any(_role_of(n, c) == "action" for n, c in unit.columns.items()):
                        return f"{parent}/{pattern}" if parent else pattern
            except OfflineDataError:
                continue
    return None


def _role_of(name: str, column: NamedArray) -> str:
    """Return the meaning of an array by its name, or of the family that its number belongs to."""
    if column.problem:
        return ""
    parts = re.split("[/.]", name.lower())
    numbered = re.findall(r"\A(.+?)[_\[]?[0-9]+\]?\Z", parts[-1])
    words = [parts[0], "_".join(parts[:2]), parts[-1], *numbered]
    for word in words:
        for role, pattern in _ROLES.items():
            if re.fullmatch(pattern, word):
                return "done" if role == "offsets" and column.dtype == bool else role
    image = column.dtype == np.uint8 and len(column.shape) > 3
    return "image" if image else ""


def _describe(arrays: Arrays, name: str, column: NamedArray, role: str) -> FoundArray:
    shape, dtype = column.shape, "text" if column.dtype == object else str(column.dtype)
    least = most = None
    rows: int = shape[0] if shape else 1
    size = column.dtype.itemsize * prod(column.shape[1:])
    some = min(rows, max(1, SAMPLED // max(1, size)))
    looks = f"it {column.problem}" if column.problem else role
    if not column.problem and column.dtype != object and 0 not in shape:
        try:
            (block,) = arrays.blocks([name], [(0, some)])
            values = block[name][np.isfinite(block[name])]
            least, most = (
                (values.min().item(), values.max().item()) if values.size else (None, None)
            )
        except OfflineDataError as error:
            looks = f"cannot be read: {error.message}"
    dtype = "–" if column.problem and not shape else dtype
    return FoundArray(name, shape, dtype, least, most, some == rows, looks)


# ---- the proposal --------------------------------------------------------------------------------


def _propose(
    arrays: Arrays, roles: Mapping[str, str], each: str | None
) -> tuple[FileMapping, list[MappingQuestionError], str]:
    """Return a mapping, the lines that it lacks, and what is wrong with it."""
    seen = {name for name, role in roles.items() if role == "observation"}
    if all("image" in name or arrays.columns[name].dtype == np.uint8 for name in seen):
        roles = {n: "observation" if role == "state" else role for n, role in roles.items()}
    known = dict(_leaves(arrays.columns, roles))
    core = re.compile("action|observation|next/(reward|observation)")
    leaves = {leaf: names for leaf, names in known.items() if core.match(leaf)}
    flags = {"terminated", "truncated", "done"}
    ends: dict[str, Any] = {
        role: name for name, role in reversed([*roles.items()]) if role in flags
    }
    padded = each is None and _has_padding(arrays, roles)
    rows: Any = "episodes" if padded else None if each else "steps"
    missing = [
        r for r in ("observation", "action") if all(one.split("/")[0] != r for one in leaves)
    ]
    mapping = FileMapping(
        {**leaves, **dict.fromkeys(missing, "NAME")}, rows, each, ends=Ends(**ends)
    )
    if missing:
        return mapping, [], f"Put the name of an array in place of NAME: {' and '.join(missing)}."
    problem = ""
    candidates: list[dict[str, Any]] = [
        {role: n} for role in _ENDS for n, one in roles.items() if one == role
    ]
    wanted = {name: leaf for leaf, name in known.items() if isinstance(name, str)}
    for more in [*([] if each else candidates), {}]:
        variant = replace(mapping, ends=Ends(**ends, **more))
        try:
            return (*_complete(arrays, variant, wanted), "")
        except OfflineDataError as error:
            problem = problem or ". ".join(filter(None, (error.message, error.shell_hint)))
    return mapping, [], problem


def _has_padding(arrays: Arrays, roles: Mapping[str, str]) -> bool:
    """Return True if actions are [E, T, …], as rewards, flags or lengths of episodes tell."""
    shapes = {role: arrays.columns[name].shape for name, role in roles.items()}
    act, lengths = shapes.get("action", ()), shapes.get("lengths")
    single = [shapes[r] for r in ("reward", "terminated", "truncated", "done") if r in shapes]
    return len(act) > 1 and (
        any(
            one[1:2] in {act[1:2], (act[1] + 1,)} and act[1] > 1 and one[0] == act[0]
            for one in single
        )
        or (lengths == act[:1] and len(act) > 2)
    )


def _complete(
    arrays: Arrays, mapping: FileMapping, wanted: Mapping[str, str]
) -> tuple[FileMapping, list[MappingQuestionError]]:
    """Return a mapping with all arrays that fit, and what it lacks; raises `UsageError`.

    `wanted`: leaves of arrays whose meaning is known.
    """
    questions: list[MappingQuestionError] = []
    answered = mapping
    while True:
        try:
            layout = Layout(arrays, answered)
            break
        except MappingQuestionError as question:
            questions.append(question)
            answered = answered.with_answer(question.place, next(iter(question.choices)))
    if answered.final_observation is None:
        mapping = replace(mapping, final_observation=layout.final)
    leaves, episodes = dict(mapping.leaves), {}
    used = {name for name, _ in layout.names} | {*mapping.ends.arrays.values()}
    for name, column in arrays.columns.items():
        leaf = "/".join(re.split("[/.]", name))
        if column.problem or name in used:
            continue
        added = {wanted.get(name, f"extra/{leaf}"): name}
        try:
            Layout(arrays, replace(answered, leaves={**answered.leaves, **added}))
            leaves |= added
        except OfflineDataError:
            if column.shape[:1] in {(len(layout.lengths),), ()}:
                episodes[leaf] = name
    return replace(mapping, leaves=leaves, episodes=episodes), questions


def _leaves(
    columns: Mapping[str, NamedArray], roles: Mapping[str, str]
) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Yield the leaves whose meaning is known, with their arrays."""
    for role, leaf in _LEAVES.items():
        wanted = {role, "image"} if role == "observation" else {role}
        names = [name for name, one in roles.items() if one in wanted and columns[name].shape]
        numbered = [n for n in names if len(columns[n].shape) == 1 and re.search(r"[0-9]\]?\Z", n)]
        exact = [n for n in names if re.fullmatch(_ROLES[role], n.lower())]
        if numbered == names and names:
            yield leaf, tuple(sorted(names, key=natural))
        elif len(names) == 1 or (exact and not leaf.endswith("observation")):
            yield leaf, (exact or names)[0]
        else:
            for name in names:
                parts = re.split("[/.]", name)
                start = 1 + (parts[0] in {"next", "data"})
                yield "/".join([leaf, *(parts[start:] or parts[-1:])]), name


# ---- as text -------------------------------------------------------------------------------------


def _table(
    path: Path, each: str | None, units: tuple[str, ...], found: list[FoundArray]
) -> list[str]:
    title = f"{_safe(path.name)}: {plural(len(found), 'array')}"
    if each:
        title += f" in the first of {plural(len(units), 'episode')}, {_safe(units[0])}"
    rows = [
        (_safe(one.name), f"{one.dtype} {list(one.shape)}", _range(one), _safe(one.looks_like))
        for one in found
    ]
    widths = [min(30, max((len(row[column]) for row in rows), default=0)) for column in range(3)]
    lines = []
    for name, *rest in rows:
        line = "  ".join(
            f"{cell:{width}}" for cell, width in zip(rest, (*widths[1:], 0), strict=True)
        )
        first = f"#   {name:{widths[0]}}"
        fits = len(name) <= widths[0]
        lines += (
            [f"{first}  {line}".rstrip()]
            if fits
            else [first, f"#   {'':{widths[0]}}  {line}".rstrip()]
        )
    return _comment(title) + lines


def _range(one: FoundArray) -> str:
    if one.least is None or one.most is None:
        return ""
    first = "" if one.complete else " at first"
    return f"{one.least:.4g} to {one.most:.4g}{first}"


def _safe(text: str) -> str:
    """Return text that stays on its line of comments."""
    return text if text.isprintable() else json.dumps(text)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(_safe(" ".join(text.split())), _WIDTH - 2)]
