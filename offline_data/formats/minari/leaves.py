"""The interface of storages to episodes, and the choice of leaves that every batch has."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, Key, join_key
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, check_key
from offline_data.formats.minari.metadata import Declared

Form: TypeAlias = Literal["array", "text", "jpeg"]
Place: TypeAlias = tuple[str, ...]
Groups: TypeAlias = "dict[Place, frozenset[str]]"

SECTIONS = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
"""Top-level groups of an episode in every storage."""

NOTE_REWARD = "Rewards are {dtype} in the source, kept as float64."
NOTE_SPACE = "The space declares {leaf} as {declared}; the rows are {found}."
NOTE_IMAGES = "Images are lossy JPEG in the source ({leaf})."
NOTE_SEED = "Seeds of 2**63 and more are kept as negative numbers, less 2**64."
NOTE_NO_SEED = "Some seeds in the source are not 64-bit integers; they are left out (-1)."

_FLAGS: dict[str, Key] = {"terminations": TERMINATED, "truncations": TRUNCATED}
_FIXED: dict[str, Key] = {"rewards": REWARD, **_FLAGS}
_HINT = "`h5ls -r FILE` or `offline-data convert --help` shows what else it could be"
_TEXT_BYTES = 64  # size of an average string, to estimate parts


@dataclass(frozen=True)
class FoundLeaf:
    """A leaf of one episode, described but not read."""

    place: Place
    """Path in the file: the section, then its own names (`_index_0` for the first of a tuple)."""
    names: tuple[str, ...]  # parts of its key below the section; `()`: that is one array
    rows: int
    form: Form
    dtype: np.dtype[Any]  # of decoded values: uint8 for images, object for text
    shape: tuple[int, ...]  # of one decoded row
    reason: str = ""  # why it cannot be kept; empty if it can

    @property
    def section(self) -> str:
        """The first part of the path, one of `SECTIONS` in a valid file."""
        return self.place[0]


@dataclass(frozen=True)
class PlannedLeaf:
    """A leaf that every batch has."""

    place: Place
    key: Key  # in the batch
    per_action: bool  # whether it has one row per action (`T`) or one more (`T + 1`)
    form: Form
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        return "/".join(self.place)


@dataclass(frozen=True)
class EpisodeFacts:
    """Metadata of one episode, as `MinariDataset.read_part` describes them; `notes` are losses."""

    id: int
    seed: int = -1
    options: str | None = None
    metadata: str | None = None
    notes: tuple[str, ...] = ()


class EpisodeReader(Protocol):
    """One episode of an open storage."""

    where: str  # file and episode, for messages

    def describe(self) -> list[FoundLeaf]:
        """Return its leaves; decodes the first image of each image leaf."""

    def facts(self) -> EpisodeFacts:
        """Return the metadata of the episode."""

    def read(self, leaf: PlannedLeaf) -> NDArray[Any] | None:
        """Return all values of a leaf, decoded, one per row; None if it is absent, none if empty.

        Raises `FormatError` if they are damaged or of another form; shape and dtype may differ.
        """

    def locate(self, leaf: PlannedLeaf) -> str:
        """Return file, episode and leaf, for messages."""

    def nulls(self, leaf: PlannedLeaf) -> NDArray[np.bool_] | None:
        """Return the rows, `[rows]`, in which a leaf that was read has no value; None: nowhere."""

    def members(self, group: Place) -> int:
        """Return the number of members of a group, `()` for all sections; 0 if it is absent."""

    def groups(self, places: set[Place]) -> Groups:
        """Return the members of each group above the leaves, and of empty groups."""

    def stated_counts(self) -> tuple[Any, Any]:
        """Return its stated `id` and `total_steps`, each None if missing."""


class EpisodeStorage(Protocol):
    """The data files of one dataset; picklable, opens files only in its methods."""

    where: str  # the file or folder, for messages

    def numbers(self) -> Sequence[int]:
        """Return the episode numbers in ascending order."""

    def episodes(self, numbers: Sequence[int]) -> AbstractContextManager[Iterator[EpisodeReader]]:
        """Open episodes one by one; each is valid until the next is requested."""


def episode_number(digits: str, name: str, where: str) -> int:
    """Return the number in the name of an episode's group or folder; raises `FormatError`."""
    # Names in another form than Minari's could mean the same episode.
    if len(digits) > 18:
        raise FormatError(f"{where} numbers an episode {digits[:18]}…; expected at most 18 digits")
    number = int(digits)
    if digits != str(number):
        expected = name.replace(digits, str(number))
        raise FormatError(f"{where} has an episode called {name!a}; expected {expected!r}")
    return number


def seed_of(number: float) -> tuple[int, tuple[str, ...]]:
    """Return a seed as an int64, and notes on one that is not.

    Example:
        >>> seed_of(4.0)[0], seed_of(2**64 - 3)[0], seed_of(3.7)[0], seed_of(2**64)[0]
        (4, -3, -1, -1)
        >>> [seed_of(number)[0] == number for number in (2**63 - 1, 2**63, -(2**63))]
        [True, False, True]
    """
    whole = isinstance(number, int) or number.is_integer()
    if not whole or not -(2**63) <= number < 2**64:
        return -1, (NOTE_NO_SEED,)
    seed = int(number)
    return (seed, ()) if seed < 2**63 else (seed - 2**64, (NOTE_SEED,))


def groups_of(places: Iterable[Place]) -> Groups:
    """Return the members of each group above some leaves."""
    found: dict[Place, set[str]] = {(): set()}
    for place in places:
        for depth, name in enumerate(place):
            found.setdefault(place[:depth], set()).add(name)
    return {group: frozenset(names) for group, names in found.items()}


def nothing(dtype: np.dtype[Any]) -> Any:
    """Return the fill value for missing data: NaN, 0, False, and None for text."""
    if dtype.kind == "O":
        return None
    return float("nan") if dtype.kind in "fc" else dtype.type(0).item()


@dataclass(frozen=True)
class DescribedEpisode:
    """An episode, its leaves, and the members of each of its groups."""

    where: str
    leaves: tuple[FoundLeaf, ...]
    groups: Groups

    @cached_property
    def steps(self) -> int:
        """Number of reward rows; raises `FormatError` if there are none."""
        for leaf in self.leaves:
            if leaf.section == "rewards":
                return leaf.rows
        raise FormatError(f"{self.where} has no 'rewards'", hint=_HINT)


@dataclass(frozen=True)
class LeafPlan:
    """The leaves of every batch of a dataset; `steps` are actions and flags.

    `members` is the number of members of each group in an episode that has all leaves; `metadata`
    is True if recorders added their own metadata to episodes.
    """

    reward: PlannedLeaf
    steps: tuple[PlannedLeaf, ...]
    observations: tuple[PlannedLeaf, ...]
    infos: tuple[PlannedLeaf, ...]
    members: Mapping[Place, int]
    metadata: bool
    dropped: tuple[Dropped, ...]
    notes: tuple[str, ...]

    @property
    def leaves(self) -> tuple[PlannedLeaf, ...]:
        return (self.reward, *self.steps, *self.observations, *self.infos)

    @property
    def bytes_per_step(self) -> int:
        """Bytes of one row of all leaves, with an estimate for text."""
        sizes = (_TEXT_BYTES if x.form == "text" else x.dtype.itemsize for x in self.leaves)
        return sum(size * math.prod(x.shape) for size, x in zip(sizes, self.leaves, strict=True))


def make_plan(
    episodes: Sequence[DescribedEpisode], declared: Declared, *, metadata: bool
) -> LeafPlan:
    """Choose the leaves by the first episode; the others only add infos that it lacks.

    Raises `FormatError` if a section or declared leaf is missing, or rewards or flags are not numbers.
    """
    first = episodes[0]
    for section, names in declared.items():
        _check_declared_leaves(first, section, names)
    taken: dict[Key, str] = {}
    kept: dict[Place, FoundLeaf] = {}
    sections: dict[str, list[PlannedLeaf]] = {name: [] for name in SECTIONS}
    dropped = []
    groups: dict[Place, set[str]] = {}
    seen: set[Place] = set()
    for episode in episodes:
        for group, found in episode.groups.items():
            groups.setdefault(group, set()).update(found)
        for leaf in (leaf for leaf in episode.leaves if leaf.place not in seen):
            seen.add(leaf.place)
            planned = _plan_leaf(leaf, episode.steps)
            unfit = _reason(leaf, planned, episode.steps, in_first=episode is first)
            if reason := unfit or _claim(planned, taken):
                dropped.append(Dropped(planned.name, reason))
            else:
                kept[leaf.place] = leaf
                sections[leaf.section].append(planned)
    return LeafPlan(
        reward=_only_leaf(sections, "rewards", first),
        steps=(*sections["actions"], *(_only_leaf(sections, name, first) for name in _FLAGS)),
        observations=tuple(sections["observations"]),
        infos=tuple(sections["infos"]),
        members={group: len(names) for group, names in groups.items()},
        metadata=metadata,
        dropped=tuple(dropped),
        notes=tuple(_notes(list(kept.values()), declared)),
    )


def _check_declared_leaves(first: DescribedEpisode, section: str, names: Iterable[Place]) -> None:
    found = {leaf.names for leaf in first.leaves if leaf.section == section}
    if not found:
        raise FormatError(f"{first.where} has no {section!r}", hint=_HINT)
    if missing := [name for name in names if name not in found]:
        listed = ", ".join(sorted(join_key(name) or "one array" for name in found))
        raise FormatError(
            f"{first.where} has no {join_key((section, *missing[0]))!r}, which the space declares; "
            f"found {listed}"
        )


def _plan_leaf(leaf: FoundLeaf, steps: int) -> PlannedLeaf:
    section, dtype = leaf.section, leaf.dtype
    per_action = section != "observations"
    key: Key = (*_FIXED.get(section, (section.removesuffix("s"),)), *leaf.names)
    if section == "infos":
        per_action = leaf.rows != steps + 1
        key = ("next", *key) if per_action else key
    elif section in _FLAGS:
        dtype = np.dtype(bool)
    elif section == "rewards" and dtype.kind in "biu":
        dtype = np.dtype(np.float64)
    return PlannedLeaf(leaf.place, key, per_action, leaf.form, dtype, leaf.shape)


def _reason(leaf: FoundLeaf, planned: PlannedLeaf, steps: int, *, in_first: bool) -> str:
    if leaf.section not in SECTIONS:
        return "It is not part of Minari's format."
    if leaf.reason:
        return leaf.reason
    if not in_first and leaf.section != "infos":
        return "Only some episodes have it, and not the first."
    if leaf.section == "infos" and leaf.rows not in {steps, steps + 1}:
        return f"It has {plural(leaf.rows, 'row')} in an episode of {plural(steps, 'action')}."
    try:
        check_key(planned.key)
    except FormatError:
        return "A part of its name cannot be a file name."
    return ""


def _claim(planned: PlannedLeaf, taken: dict[Key, str]) -> str:
    """Reserve the key of a leaf; returns the reason if another leaf has it, also as a group."""
    key = planned.key
    above = (taken.get(key[:end]) for end in range(1, len(key) + 1))
    if twin := next(filter(None, above), taken.get((*key, "/"))):
        return f"Its name is taken by {twin}."
    taken[key] = planned.name
    taken.update({(*key[:end], "/"): planned.name for end in range(1, len(key))})
    return ""


def _only_leaf(
    sections: Mapping[str, Sequence[PlannedLeaf]], section: str, first: DescribedEpisode
) -> PlannedLeaf:
    leaves = sections[section]
    if len(leaves) != 1 or leaves[0].form != "array" or leaves[0].shape not in {(), (1,)}:
        found = [f"{x.name} {x.dtype} {list(x.shape)}" for x in leaves] or ["nothing"]
        raise FormatError(
            f"{first.where} has {', '.join(found)} as {section!r}; expected one number a row",
            hint=_HINT,
        )
    return leaves[0]


def _notes(kept: Sequence[FoundLeaf], declared: Declared) -> Iterator[str]:
    for leaf in kept:
        space = declared.get(leaf.section, {}).get(leaf.names)
        if space is None or space.shape is None:
            continue
        text, dtype = leaf.form == "text", leaf.dtype.name
        if (space.dtype or dtype, space.shape, space.text) != (dtype, leaf.shape, text):
            stated = "text" if space.text else f"{space.dtype or 'values'} {list(space.shape)}"
            found = "text" if text else f"{leaf.dtype} {list(leaf.shape)}"
            name = "/".join((leaf.section, *leaf.names))
            yield NOTE_SPACE.format(leaf=name, declared=stated, found=found)
    yield from (NOTE_IMAGES.format(leaf="/".join(x.place)) for x in kept if x.form == "jpeg")
    rewards = (leaf.dtype for leaf in kept if leaf.section == "rewards")
    yield from (NOTE_REWARD.format(dtype=dtype) for dtype in rewards if dtype.kind in "biu")
