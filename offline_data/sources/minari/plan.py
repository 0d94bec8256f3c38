"""Decide, from a few episodes, which leaves every batch of a dataset has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from offline_data.episodes import Dropped, join_key
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, check_key
from offline_data.errors import FormatError
from offline_data.sources.minari.leaves import SECTIONS, FoundLeaf, PlannedLeaf

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from offline_data.episodes import Key
    from offline_data.sources.minari.spaces import DeclaredLeaf

_FLAGS: dict[str, Key] = {"terminations": TERMINATED, "truncations": TRUNCATED}
_HINT = "`h5ls -r FILE` or `offline-data convert --help` shows what else it could be"
_TEXT_BYTES = 64  # of an average string, for the size of parts

NOTE_REWARD = "Rewards are {dtype} in the source, kept as float64."
NOTE_SPACE = "The space declares {leaf} as {declared}; the rows are {found}."
NOTE_IMAGES = "Images are lossy JPEG in the source ({leaf})."


@dataclass(frozen=True)
class Described:
    """One episode, described."""

    where: str
    leaves: tuple[FoundLeaf, ...]
    groups: Mapping[tuple[str, ...], frozenset[str]]
    """What lies directly in each of its groups."""

    def rows(self, section: str) -> int:
        """Rows of a section that is one array; raises `FormatError` where it is missing."""
        for leaf in self.leaves:
            if leaf.section == section:
                return leaf.rows
        raise FormatError(f"{self.where} has no {section!r}", hint=_HINT)


@dataclass(frozen=True)
class Plan:
    """What every batch of one dataset has."""

    reward: PlannedLeaf
    steps: tuple[PlannedLeaf, ...]
    """Actions and flags."""
    observations: tuple[PlannedLeaf, ...]
    infos: tuple[PlannedLeaf, ...]
    """Of both kinds: a row per action, or one more."""
    members: Mapping[tuple[str, ...], int]
    """How much lies directly in each group of an episode that has all leaves."""
    metadata: bool
    """Whether recorders noted something of their own on episodes."""
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]

    @property
    def leaves(self) -> tuple[PlannedLeaf, ...]:
        """All leaves."""
        return (self.reward, *self.steps, *self.observations, *self.infos)

    @property
    def bytes_per_step(self) -> int:
        """Bytes of one row of everything, with a guess for text."""
        return sum(_row_bytes(leaf) for leaf in self.leaves)


def _row_bytes(leaf: PlannedLeaf) -> int:
    item = _TEXT_BYTES if leaf.form == "text" else leaf.dtype.itemsize
    return item * int(np.prod(leaf.shape, dtype=np.int64))


def make_plan(
    episodes: Sequence[Described],
    declared: Mapping[str, Mapping[tuple[str, ...], DeclaredLeaf]],
    *,
    metadata: bool,
) -> Plan:
    """Decide from the first episode; the others only add infos it does not have.

    Other leaves that the first does not have are dropped.

    Args:
        episodes: At least one episode.
        declared: What the spaces of `observations` and `actions` declare.
        metadata: Whether an episode has facts of its recorder's own.

    Raises:
        FormatError: A section or a declared leaf is missing, or rewards or flags are no numbers.
    """
    first = episodes[0]
    for section, names in declared.items():
        _check_declared(first, section, names)
    candidates = _without_twins(_candidates(episodes))
    kept = [candidate for candidate in candidates if not candidate.reason]
    leaves = [candidate.planned() for candidate in kept]
    of = {name: tuple(leaf for leaf in leaves if leaf.place[0] == name) for name in SECTIONS}
    groups: dict[tuple[str, ...], frozenset[str]] = {}
    for episode in episodes:
        for group, found in episode.groups.items():
            groups[group] = groups.get(group, frozenset()) | found
    return Plan(
        reward=_one(of["rewards"], "rewards", first),
        steps=(*of["actions"], *(_one(of[name], name, first) for name in _FLAGS)),
        observations=of["observations"],
        infos=of["infos"],
        members={group: len(names) for group, names in groups.items()},
        metadata=metadata,
        dropped=tuple(Dropped("/".join(c.leaf.place), c.reason) for c in candidates if c.reason),
        notes=_notes([candidate.leaf for candidate in kept], declared),
    )


@dataclass(frozen=True)
class _Candidate:
    """A leaf in the episode that was first seen to have it, which takes `steps` actions."""

    leaf: FoundLeaf
    steps: int
    in_first: bool
    twin: str = ""
    """Another leaf whose key is the same, or is a part of this one's; empty where there is none."""

    @property
    def per_action(self) -> bool:
        section = self.leaf.section
        return section != "observations" and not (
            section == "infos" and self.leaf.rows == self.steps + 1
        )

    @property
    def key(self) -> Key:
        section, names = self.leaf.section, self.leaf.names
        fixed = {"rewards": REWARD, **_FLAGS}
        if section in fixed:
            return (*fixed[section], *names)
        if section == "infos":
            return ("next", "info", *names) if self.per_action else ("info", *names)
        return (section.removesuffix("s"), *names)

    @property
    def reason(self) -> str:
        """Why it cannot be kept; empty where it can."""
        leaf = self.leaf
        if leaf.section not in SECTIONS:
            return "It is not part of Minari's format."
        if leaf.reason:
            return leaf.reason
        if self.twin:
            return f"Its name is taken by {self.twin}."
        if not self.in_first and leaf.section != "infos":
            return "Only some episodes have it, and not the first."
        if leaf.section == "infos" and leaf.rows not in {self.steps, self.steps + 1}:
            return f"It has {leaf.rows} rows in an episode of {self.steps} actions."
        try:
            check_key(self.key)
        except FormatError:
            return "A part of its name cannot be a file name."
        return ""

    def planned(self) -> PlannedLeaf:
        leaf, dtype = self.leaf, self.leaf.dtype
        if leaf.section in _FLAGS:
            dtype = np.dtype(bool)
        elif leaf.section == "rewards" and dtype.kind in "biu":
            dtype = np.dtype(np.float64)
        return PlannedLeaf(leaf.place, self.key, self.per_action, leaf.form, dtype, leaf.shape)


def _candidates(episodes: Sequence[Described]) -> Iterator[_Candidate]:
    seen = set()
    for number, episode in enumerate(episodes):
        steps = episode.rows("rewards")
        for leaf in episode.leaves:
            if leaf.place not in seen:
                seen.add(leaf.place)
                yield _Candidate(leaf, steps, number == 0)


def _without_twins(candidates: Iterable[_Candidate]) -> list[_Candidate]:
    """Mark leaves whose key another one has, or has as a group of leaves."""
    taken: dict[Key, str] = {}
    found = []
    for candidate in candidates:
        if not candidate.reason:
            key, name = candidate.key, "/".join(candidate.leaf.place)
            above = (taken.get(key[:end]) for end in range(1, len(key) + 1))
            twin = next(filter(None, above), taken.get((*key, "/")))
            if twin:
                candidate = replace(candidate, twin=twin)
            else:
                taken.update({key: name, **{(*key[:end], "/"): name for end in range(1, len(key))}})
        found.append(candidate)
    return found


def _check_declared(first: Described, section: str, names: Iterable[tuple[str, ...]]) -> None:
    found = {leaf.names for leaf in first.leaves if leaf.section == section}
    if not found:
        raise FormatError(f"{first.where} has no {section!r}", hint=_HINT)
    for missing in (wanted for wanted in names if wanted not in found):
        there = ", ".join(sorted(join_key(have) or "one array" for have in found))
        raise FormatError(
            f"{first.where} has no {join_key((section, *missing))!r}, which the space declares; "
            f"found {there}"
        )


def _one(leaves: tuple[PlannedLeaf, ...], section: str, first: Described) -> PlannedLeaf:
    """Return the leaf of a section that has to be one number or flag a row."""
    if len(leaves) != 1 or leaves[0].form != "array" or leaves[0].shape not in {(), (1,)}:
        found = [f"{'/'.join(x.place)} {x.dtype} {list(x.shape)}" for x in leaves] or ["nothing"]
        raise FormatError(
            f"{first.where} has {', '.join(found)} as {section!r}; expected one number a row",
            hint=_HINT,
        )
    return leaves[0]


def _notes(
    kept: Sequence[FoundLeaf], declared: Mapping[str, Mapping[tuple[str, ...], DeclaredLeaf]]
) -> tuple[str, ...]:
    notes = [note for leaf in kept for note in _note_space(leaf, declared)]
    notes += [NOTE_IMAGES.format(leaf="/".join(x.place)) for x in kept if x.form == "jpeg"]
    rewards = (leaf.dtype for leaf in kept if leaf.section == "rewards")
    notes += [NOTE_REWARD.format(dtype=dtype) for dtype in rewards if dtype.kind in "biu"]
    return tuple(notes)


def _note_space(
    leaf: FoundLeaf, declared: Mapping[str, Mapping[tuple[str, ...], DeclaredLeaf]]
) -> Iterator[str]:
    """Note where a leaf is not of the dtype and shape that its space declares."""
    space = declared.get(leaf.section, {}).get(leaf.names)
    if space is None or space.shape is None:
        return
    text = leaf.form == "text"
    if (space.dtype or leaf.dtype.name, space.shape, space.text) == (
        leaf.dtype.name,
        leaf.shape,
        text,
    ):
        return
    name = "/".join((leaf.section, *leaf.names))
    stated = "text" if space.text else f"{space.dtype or 'values'} {list(space.shape)}"
    found = "text" if text else f"{leaf.dtype} {list(leaf.shape)}"
    yield NOTE_SPACE.format(leaf=name, declared=stated, found=found)
