"""`convert --inspect`: the arrays of files, what they look like, and a mapping to edit."""

from __future__ import annotations

import json
import re
import textwrap
from contextlib import nullcontext
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import OfflineDataError
from offline_data.base.plurals import plural
from offline_data.episode.autoreset import find_autoreset
from offline_data.formats.base import PART_BYTES
from offline_data.formats.files.episodes import find_parts, open_files
from offline_data.formats.files.found import FoundArray, Proposal
from offline_data.formats.files.layout import PARTS, Layout
from offline_data.formats.files.mapping import Ends, FileMapping, MappingQuestionError, dump_toml
from offline_data.formats.files.questions import LEAVES, Answer, Answers, ask_for_ends, ask_for_leaf
from offline_data.formats.files.rows import order_of
from offline_data.raw.arrays import natural
from offline_data.raw.arrow import is_saved

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from offline_data.raw.arrays import Arrays, NamedArray

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
    "mask": r"(.+_)?(masks?|valids?)",
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
_FLAGS = ("terminated", "truncated", "done")
_PREFIXES = ("next observation", "observation", "action")
"""Roles that the first words of several columns have: `obs_x`, `obs_y`."""
_EXAMINED = 50
"""Parts whose ends are read."""
_RESETS = {
    "next_step": "drop the row of each reset",
    "same_step": "final observations are unknown",
}


def inspect_arrays(
    path: Path, source: str | None, given: Mapping[str, Answer] | None = None
) -> Proposal:
    """List the arrays of a file or folder and propose a mapping, with answers to its questions by name.

    Raises `FormatError`, and `UsageError` for an answer to what is not asked, or that is not a choice.
    """
    answers = Answers(given or {})
    with open_files(path) as arrays:
        each = _find_each(arrays)
        parts = find_parts(arrays, each)
        with arrays.below(parts[0]) if parts else nullcontext(arrays) as first:
            roles = _roles_of(first)
            found = [_describe(first, n, column, roles[n]) for n, column in first.columns.items()]
            roles, unnamed = _ask_for_leaves(first, roles, answers)
            rows, asked = _find_parts_rows(arrays, parts, roles)
            mapping, questions, problem = _propose(first, roles, each, rows, answers)
    questions = [*unnamed, *asked, *questions]
    for question in asked:
        settled = answers.settle(question, mapping)
        if settled is not None:
            mapping = settled
            questions.remove(question)
    answers.check(whole=not (unnamed or problem))  # else there will be more questions
    names = tuple(parts)
    lines = [*_table(path, each, names, found), ""]
    if source:
        lines[:0] = [f"# Without a mapping, it is read as {source}: offline-data convert PATH NAME"]
    for question in questions[len(unnamed) :]:
        lines += [
            *_comment(f"{question.why}. Choose a line:"),
            *(f"# {one}" for one in question.lines),
            "",
        ]
    lines += _comment(problem) if problem else []
    text = "\n".join(lines) + "\n"
    text += dump_toml(mapping)
    return Proposal(path, source, names, tuple(found), mapping, tuple(questions), text)


def _find_each(arrays: Arrays) -> str | None:
    """Return the pattern of groups or files, the first of which has actions; None: there are none."""
    tops = arrays.groups("")
    if tops and is_saved(arrays.path / tops[0]):  # splits of a `DatasetDict`
        return "*"
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


def _roles_of(arrays: Arrays) -> dict[str, str]:
    """Return the meaning of each array by its name, empty if it is unknown."""
    roles = {name: _role_of(name, column) for name, column in arrays.columns.items()}
    roles = {n: "" if r and _is_text_of_numbers(arrays, n) else r for n, r in roles.items()}
    for role in _PREFIXES:
        if role in roles.values():
            continue
        for name, column in arrays.columns.items():
            words = name.lower().split("_")
            starts = ["_".join(words[:n]) for n in range(1, len(words))]
            single = len(column.shape) == 1 and column.dtype.kind in "iuf" and not column.problem
            if not roles[name] and single and any(re.fullmatch(_ROLES[role], s) for s in starts):
                roles[name] = role
    return roles


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
                if role == "mask" and not (column.dtype == bool and len(column.shape) > 1):
                    continue
                return "done" if role == "offsets" and column.dtype == bool else role
    image = column.dtype == np.uint8 and len(column.shape) > 3
    return "image" if image else ""


def _is_text_of_numbers(arrays: Arrays, name: str) -> bool:
    """Return True for text such as `[1.0, 2.0]`, which is what `to_csv` writes of arrays."""
    column = arrays.columns[name]
    if column.dtype != object or column.problem or column.shape[:1] in {(), (0,)}:
        return False
    (block,) = arrays.blocks([name], [(0, 1)])
    return bool(
        re.fullmatch(r"\s*[\[(][\s\[\](),.eE+\-0-9]*\d[\s\[\](),.eE+\-0-9]*", str(block[name][0]))
    )


def _describe(arrays: Arrays, name: str, column: NamedArray, role: str) -> FoundArray:
    shape, dtype = column.shape, "text" if column.dtype == object else str(column.dtype)
    least = most = None
    rows: int = shape[0] if shape else 1
    size = column.dtype.itemsize * prod(column.shape[1:])
    some = min(rows, max(1, SAMPLED // max(1, size)))
    looks = f"it {column.problem}" if column.problem else role
    if not role and _is_text_of_numbers(arrays, name):
        looks = "numbers as text, which are not read: write a column for each number"
    if not column.problem and column.dtype != object and 0 not in shape:
        try:
            (block,) = arrays.blocks([name], [(0, some)])
            values = np.asarray(block[name])  # decodes images
            values = values[np.isfinite(values)]
            least, most = (
                (values.min().item(), values.max().item()) if values.size else (None, None)
            )
        except OfflineDataError as error:
            looks = f"cannot be read: {error.message}"
    dtype = "–" if column.problem and not shape else dtype
    return FoundArray(name, shape, dtype, least, most, some == rows, looks)


# ---- the proposal --------------------------------------------------------------------------------


def _propose(
    arrays: Arrays, roles: Mapping[str, str], each: str | None, parts: Any, answers: Answers
) -> tuple[FileMapping, list[MappingQuestionError], str]:
    """Return a mapping, the lines that it lacks, and what is wrong with it."""
    seen = {name for name, role in roles.items() if role == "observation"}
    if all("image" in name or arrays.columns[name].dtype == np.uint8 for name in seen):
        roles = {n: "observation" if role == "state" else role for n, role in roles.items()}
    known = dict(_leaves(arrays.columns, roles))
    core = re.compile("action|observation|next/(reward|observation)")
    leaves = {leaf: names for leaf, names in known.items() if core.match(leaf)}
    ends: dict[str, Any] = {
        role: name for name, role in reversed([*roles.items()]) if role in _FLAGS
    }
    padded = each is None and _has_padding(arrays, roles)
    rows: Any = "episodes" if padded else None if each else "steps"
    missing = [
        r for r in ("observation", "action") if all(one.split("/")[0] != r for one in leaves)
    ]
    numberings = ("lengths", "mask") if padded else _ENDS
    candidates: list[dict[str, Any]] = [
        {"lengths" if role == "mask" else role: name}
        for role in numberings
        for name, one in roles.items()
        if one == role
    ]
    if each is not None and parts is None:  # a part is an episode
        candidates = []
    mapping = FileMapping(
        {**leaves, **dict.fromkeys(missing, "NAME")},
        rows,
        each,
        parts,
        ends=Ends(**ends, **next(iter(candidates), {})),
    )
    if missing:
        return mapping, [], f"Put the name of an array in place of NAME: {' and '.join(missing)}."
    problem = ""
    wanted = {
        name: leaf
        for leaf, names in known.items()
        for name in ([names] if isinstance(names, str) else [])
    }
    for more in [*candidates, {}]:
        variant = replace(mapping, ends=Ends(**ends, **more))
        if "episode" in more and order_of(arrays.read(more["episode"]).reshape(-1)) is not None:
            variant = replace(variant, interleaved=True)
        try:
            found, questions = _complete(arrays, variant, wanted, answers)
        except OfflineDataError as error:
            problem = problem or ". ".join(filter(None, (error.message, error.shell_hint)))
            continue
        if each is None:
            for question in _ask_for_resets(arrays, found, questions):
                settled = answers.settle(question, found)
                found, questions = settled or found, questions + [question] * (settled is None)
        return found, questions, ""
    return mapping, [], problem


def _ask_for_leaves(
    arrays: Arrays, roles: dict[str, str], answers: Answers
) -> tuple[dict[str, str], list[MappingQuestionError]]:
    """Return the roles with the arrays that answers give to leaves without any, and what is open."""
    open_ = []
    for leaf in LEAVES:
        known = {leaf, "state", "image"} if leaf == "observation" else {leaf}
        if known & {*roles.values()}:
            continue
        for question in ask_for_leaf(leaf, arrays, roles):
            chosen = answers.values_for(question)
            roles = {**roles, **dict.fromkeys(chosen, leaf)}
            open_ += [] if chosen else [question]
    return roles, open_


def _find_parts_rows(
    arrays: Arrays, parts: list[str], roles: Mapping[str, str]
) -> tuple[str | None, list[MappingQuestionError]]:
    """Return `parts` of a mapping, by the ends inside the first parts, and the question if it is open."""
    number = next((name for name, role in roles.items() if role == "episode"), None)
    flags = [name for name, role in roles.items() if role == "done"]
    flags = flags[:1] or [n for n, r in roles.items() if r in {"terminated", "truncated"}]
    inside = continues = open_end = False
    last: Any = None
    for part in parts[:_EXAMINED]:
        with arrays.below(part) as opened:
            try:
                numbers = None if number is None else opened.read(number).reshape(-1)
                marks = [opened.read(name).reshape(-1) != 0 for name in flags]
            except (OfflineDataError, KeyError):
                return None, []
        if numbers is not None and len(numbers):
            inside |= bool((numbers != numbers[0]).any())
            counts = last is not None and numbers.dtype.kind in "iu" and numbers[0] == last + 1
            continues |= last is not None and (numbers[0] == last or counts)
            last = numbers[-1]
        elif marks and len({len(one) for one in marks}) == 1 and len(marks[0]) > 1:
            ended = np.logical_or.reduce(marks)
            inside |= bool(ended[:-1].any())
            open_end |= not ended[-1]
    if not inside:
        return None, []
    if number is None and open_end:
        why = "Flags end episodes inside parts, and the last row of a part has none"
        return "episodes", [MappingQuestionError("parts", why, PARTS, likely="episodes")]
    return "table" if continues else "episodes", []


def _ask_for_resets(
    arrays: Arrays, mapping: FileMapping, answered: list[MappingQuestionError]
) -> list[MappingQuestionError]:
    """Return the question about rows of automatic resets, where the observations show some."""
    for question in answered:
        mapping = question.answered(mapping, next(iter(question.choices)))
    layout = Layout(arrays, mapping)
    names = mapping.keys.get(("observation",), ())
    if len(names) != 1 or layout.padded or layout.final not in {"missing", "next_array"}:
        return []
    described = arrays.columns[names[0]]
    size = described.dtype.itemsize * prod(described.shape)
    if described.dtype.kind not in "iuf" or size > PART_BYTES:
        return []
    before, next_name = layout.arrays.read(names[0]), mapping.leaves.get("next/observation")
    after = layout.arrays.read(next_name) if isinstance(next_name, str) else None
    reward = mapping.leaves.get("next/reward")

    def states(rows: Any, following: bool) -> Any:
        if following and after is not None:
            return after[rows]
        return before[np.minimum(rows + following, len(before) - 1)]

    known = np.full(len(layout.lengths), after is not None)
    rewards = layout.arrays.read(reward) if isinstance(reward, str) else None
    shown = find_autoreset(states, layout.lengths, known, rewards)
    if shown is None:
        return []
    mode, ends = shown
    why = (
        f"At {plural(ends, 'end')} there seem to be rows of automatic resets of a vector environment; "
        "without a line all rows are steps"
    )
    return [MappingQuestionError("autoreset", why, {mode: _RESETS[mode]})]


def _has_padding(arrays: Arrays, roles: Mapping[str, str]) -> bool:
    """Return True if actions are [E, T, …], as other arrays of steps or of episodes show."""
    shapes = {role: arrays.columns[name].shape for name, role in roles.items()}
    act, lengths = shapes.get("action", ()), shapes.get("lengths")
    if len(act) < 2 or act[1] < 2:
        return False
    steps = {act[1:2], (act[1] + 1,)}
    single = [shapes[r] for r in ("reward", "mask", *_FLAGS) if r in shapes]
    states = [arrays.columns[n].shape for n, role in roles.items() if role == "observation"]
    ends = {"episode", "offsets", *_FLAGS} & {*roles.values()}
    return (
        any(one[1:2] in steps and one[0] == act[0] for one in single)
        or (lengths == act[:1] and len(act) > 2)
        or (
            len(act) > 2
            and not ends
            and any(len(one) > 2 and one[1:2] in steps and one[0] == act[0] for one in states)
        )
    )


def _complete(
    arrays: Arrays, mapping: FileMapping, wanted: Mapping[str, str], answers: Answers
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
        except MappingQuestionError as asked:
            question = _name_columns(arrays, answered, asked)
            settled = answers.settle(question, mapping)
            if settled is None:
                questions.append(question)
                answered = question.answered(answered, next(iter(question.choices)))
            else:
                mapping, answered = settled, answers.settle(question, answered) or answered
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


def _name_columns(
    arrays: Arrays, mapping: FileMapping, asked: MappingQuestionError
) -> MappingQuestionError:
    """Return a question, with the arrays that could be the answer to where episodes end."""
    if asked.place != "parts" or mapping.each is not None:
        return asked
    used = {name for names in mapping.keys.values() for name in names}
    action = next(names[0] for key, names in mapping.keys.items() if key[0] == "action")
    return ask_for_ends(arrays, used, arrays.columns[action].shape[0]) or asked


def _leaves(
    columns: Mapping[str, NamedArray], roles: Mapping[str, str]
) -> Iterator[tuple[str, str | tuple[str, ...]]]:
    """Yield the leaves whose meaning is known, with their arrays."""
    for role, leaf in _LEAVES.items():
        wanted = {role, "image"} if role == "observation" else {role}
        names = [name for name, one in roles.items() if one in wanted and columns[name].shape]
        exact = [n for n in names if re.fullmatch(_ROLES[role], n.lower())]
        single = all(len(columns[n].shape) == 1 and columns[n].dtype.kind in "iuf" for n in names)
        numbered = all(re.search(r"[0-9]\]?\Z", name) for name in names)
        if names and single and not exact and (numbered or role in _PREFIXES):
            yield leaf, tuple(sorted(names, key=natural) if numbered else names)
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
        title += f" in the first of {plural(len(units), 'part')}, {_safe(units[0])}"
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
