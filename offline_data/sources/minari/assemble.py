"""Episodes of any storage into one batch: rows counted, rules applied, nothing silently."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.episodes import Dropped, EpisodeBatch
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.errors import FormatError
from offline_data.sources.minari.column import Column
from offline_data.sources.minari.leaves import nothing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from offline_data.episodes import Key
    from offline_data.sources.minari.leaves import (
        EpisodeFacts,
        EpisodeView,
        LeafHandle,
        PlannedLeaf,
    )
    from offline_data.sources.minari.plan import Plan

NOTE_UNENDED = "Some episodes end without an end flag; their last step is marked truncated."
NOTE_NO_FINAL = (
    "Some episodes have no observation after the last action; the last one is repeated there."
)
NOTE_MISSING = "{leaf} is missing in some episodes; it is {nothing} there."
NOTE_NULLS = "{leaf} has empty values in the source; they are {nothing}."
NOTE_NO_FIRST = (
    "{leaf} has no row before the first action in some episodes, unlike in the first; "
    "it is {nothing} there."
)
NOTE_FIRST_LEFT = (
    "{leaf} has a row before the first action in some episodes, unlike in the first; "
    "that row is left out."
)
NOTE_SEED = "Seeds of 2**63 and more are kept as negative numbers, less 2**64."
_LARGEST = np.iinfo(np.int64).max
_UNPLANNED = "Only some episodes have it, and not those looked at to decide on the leaves."


@dataclass
class _Draft:
    """A batch under construction."""

    plan: Plan
    columns: dict[Key, Column]
    lengths: list[int] = field(default_factory=list)
    final: list[bool] = field(default_factory=list)
    facts: list[EpisodeFacts] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    dropped: set[Dropped] = field(default_factory=set)

    def note(self, text: str, leaf: PlannedLeaf | None = None) -> None:
        if leaf is not None:
            name = "/".join(leaf.place)
            text = text.format(leaf=name, nothing=nothing(leaf.dtype))
        self.notes[text] = None


def read_batch(views: Iterable[EpisodeView], plan: Plan, capacity: int) -> EpisodeBatch:
    """Read episodes into one batch.

    Args:
        views: The episodes, each read before the next is taken.
        plan: The leaves of the batch.
        capacity: Steps to make room for at first.

    Raises:
        FormatError: A leaf is missing, or has rows that do not add up, or another type.
    """
    columns = {leaf.key: Column(leaf, capacity) for leaf in plan.leaves}
    draft = _Draft(plan, columns, notes=dict.fromkeys(plan.notes), dropped=set(plan.dropped))
    for view in views:
        _add(view, draft)
    return _finish(draft)


def _add(view: EpisodeView, draft: _Draft) -> None:
    plan = draft.plan
    rewards = _need(view, plan.reward)
    steps = rewards.shape[0] if rewards.shape else 0
    if steps < 1:
        raise FormatError(f"{view.where} has no step")
    for leaf in (plan.reward, *plan.steps):
        handle = rewards if leaf is plan.reward else _need(view, leaf)
        out = draft.columns[leaf.key].extend(steps)
        if not handle.read_if_fits(out):
            _check_rows(view, leaf, handle.shape, steps)
            _read(handle, leaf, draft, out)
    draft.final.append(_add_observations(view, draft, steps))
    missing = [leaf for leaf in plan.infos if not _add_info(view, leaf, draft, steps)]
    if missing or any(view.members(group) != count for group, count in plan.members.items()):
        _drop_unplanned(view, draft)
    draft.lengths.append(steps)
    _add_facts(view, draft)


def _need(view: EpisodeView, leaf: PlannedLeaf) -> LeafHandle:
    handle = view.open(leaf)
    if handle is None:
        raise FormatError(f"{view.where} has no {'/'.join(leaf.place)!r}, unlike the first episode")
    return handle


def _check_rows(
    view: EpisodeView, leaf: PlannedLeaf, found: tuple[int, ...], expected: int
) -> None:
    rows = found[0] if found else "no"
    if rows != expected:
        shapes = f" of shape {list(found)}", f" of shape {[expected, *leaf.shape]}"
        raise FormatError(
            f"{view.where} has {rows} rows in {'/'.join(leaf.place)!r}{shapes[0]}; "
            f"expected {expected}{shapes[1]}"
        )


def _read(handle: LeafHandle, leaf: PlannedLeaf, draft: _Draft, out: NDArray[Any]) -> None:
    handle.read(out)
    if handle.has_nulls:
        draft.note(NOTE_NULLS, leaf)


def _add_observations(view: EpisodeView, draft: _Draft, steps: int) -> bool:
    """Append the observations; return whether the one after the last action is among them.

    The number of rows is that of the first leaf (`T + 1`, or `T`), and all have to agree.
    """
    rows: int | None = None
    for leaf in draft.plan.observations:
        handle = _need(view, leaf)
        out = draft.columns[leaf.key].extend(steps + 1)
        if rows != steps and handle.read_if_fits(out):
            rows = steps + 1
            continue
        if rows is None:
            rows = steps if handle.shape[:1] == (steps,) else steps + 1
        _check_rows(view, leaf, handle.shape, rows)
        _read(handle, leaf, draft, out[:rows])
        out[rows:] = out[rows - 1]
    if rows != steps:
        return True
    draft.note(NOTE_NO_FINAL)
    return False


def _add_info(view: EpisodeView, leaf: PlannedLeaf, draft: _Draft, steps: int) -> bool:
    """Append one leaf of the infos; return whether the episode has it.

    ```
    the first episode has   this one has   what becomes of it
    T + 1 rows              T + 1          kept
    T + 1                   T              came out of the actions: row 0 is filled
    T                       T              kept
    T                       T + 1          row 0, before any action, is left out
    ```
    """
    handle = view.open(leaf)
    out = draft.columns[leaf.key].extend(steps if leaf.per_action else steps + 1)
    if handle is not None and handle.read_if_fits(out):
        return True
    if handle is None or handle.shape[:1] in {(), (0,)}:
        out[...] = nothing(leaf.dtype)
        draft.note(NOTE_MISSING, leaf)
        return False
    rows = handle.shape[0]
    if rows == len(out):
        _read(handle, leaf, draft, out)
    elif rows == steps:
        out[0] = nothing(leaf.dtype)
        _read(handle, leaf, draft, out[1:])
        draft.note(NOTE_NO_FIRST, leaf)
    elif rows == steps + 1:
        all_rows = np.empty((steps + 1, *leaf.shape), leaf.dtype)
        _read(handle, leaf, draft, all_rows)
        out[...] = all_rows[1:]
        draft.note(NOTE_FIRST_LEFT, leaf)
    else:
        _check_rows(view, leaf, handle.shape, len(out))
    return True


def _drop_unplanned(view: EpisodeView, draft: _Draft) -> None:
    known = {leaf.place for leaf in draft.plan.leaves}
    for found in view.describe():
        name = "/".join(found.place)
        listed = any(dropped.key == name for dropped in draft.dropped)
        if found.place not in known and not listed:
            draft.dropped.add(Dropped(name, _UNPLANNED))


def _add_facts(view: EpisodeView, draft: _Draft) -> None:
    facts = view.facts()
    draft.facts.append(facts)
    draft.notes.update(dict.fromkeys(facts.notes))
    if facts.seed > _LARGEST:
        draft.note(NOTE_SEED)
    if facts.metadata is not None and not draft.plan.metadata:
        draft.dropped.add(Dropped("metadata of episodes", _UNPLANNED))


def _finish(draft: _Draft) -> EpisodeBatch:
    lengths = np.array(draft.lengths, np.int64)
    per_action = {leaf.key for leaf in draft.plan.leaves if leaf.per_action}
    values = {key: column.values for key, column in draft.columns.items()}
    for key in (REWARD, TERMINATED, TRUNCATED):
        values[key] = values[key].reshape(-1, 1)
    _mark_ends(values, lengths, draft)
    return EpisodeBatch(
        lengths=lengths,
        steps={key: column for key, column in values.items() if key in per_action},
        observations={key: column for key, column in values.items() if key not in per_action},
        final_observation=np.array(draft.final, bool),
        episodes=_episode_columns(draft),
        dropped=tuple(sorted(draft.dropped)),
        notes=tuple(draft.notes),
    )


def _mark_ends(values: dict[Key, NDArray[Any]], lengths: NDArray[Any], draft: _Draft) -> None:
    last = np.cumsum(lengths) - 1
    unended = ~(values[TERMINATED][last] | values[TRUNCATED][last])
    if unended.any():
        values[TRUNCATED][last] |= unended
        draft.note(NOTE_UNENDED)


def _signed(seed: int) -> int:
    return seed - 2**64 if seed > _LARGEST else seed


def _episode_columns(draft: _Draft) -> dict[Key, NDArray[Any]]:
    facts = draft.facts
    columns: dict[Key, NDArray[Any]] = {
        ("id",): np.array([fact.id for fact in facts], np.int64),
        ("seed",): np.array([_signed(fact.seed) for fact in facts], np.int64),
        ("options",): np.array([fact.options for fact in facts], object),
    }
    if draft.plan.metadata:
        columns["metadata",] = np.array([fact.metadata for fact in facts], object)
    return columns
