"""Values that the rooms of this source share: a leaf as found, a leaf as planned, an episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from offline_data.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from offline_data.episodes import Key

Form: TypeAlias = Literal["array", "text", "jpeg"]

NOTE_NO_SEED = "Some seeds in the source are no integers of 64 bits; they are left out (-1)."

SECTIONS = ("observations", "actions", "rewards", "terminations", "truncations", "infos")
"""What an episode consists of, in every storage."""


@dataclass(frozen=True)
class FoundLeaf:
    """One leaf of one episode, looked at but not read."""

    place: tuple[str, ...]
    """Where the file has it: the section, then its own names (`_index_0` for a tuple's first)."""
    names: tuple[str, ...]
    """Parts of its key below the section; `()` for a section that is one array."""
    rows: int
    """Number of rows."""
    form: Form
    dtype: np.dtype[Any]
    """Of the decoded values: uint8 for images, object for text."""
    shape: tuple[int, ...]
    """Of one decoded row."""
    reason: str = ""
    """Why it cannot be kept; empty where it can."""

    @property
    def section(self) -> str:
        """The first part of the place, one of `SECTIONS` in a sound file."""
        return self.place[0]


@dataclass(frozen=True)
class PlannedLeaf:
    """One leaf that every batch has."""

    place: tuple[str, ...]
    """Where the file has it."""
    key: Key
    """What the batch calls it."""
    per_action: bool
    """Whether it has a row per action (`T`) or one more (`T + 1`)."""
    form: Form
    dtype: np.dtype[Any]
    """Of the batch."""
    shape: tuple[int, ...]
    """Of one row."""


@dataclass(frozen=True)
class EpisodeFacts:
    """What the source says of one episode as a whole."""

    id: int
    seed: int = -1
    """-1: the source gives none."""
    options: str | None = None
    """JSON of the options of its reset."""
    metadata: str | None = None
    """JSON of what else its recorder noted, beyond what can be counted from the rows."""
    notes: tuple[str, ...] = ()
    """What of it could not be kept, as sentences for the manifest."""


class LeafHandle(Protocol):
    """One leaf of one episode, opened."""

    @property
    def shape(self) -> tuple[int, ...]:
        """`[rows, …]` as stored; an image is one value a row, or a run of bytes."""

    @property
    def has_nulls(self) -> bool:
        """Whether the source has nothing in some rows; `read` puts `nothing` there."""

    def read_if_fits(self, out: NDArray[Any]) -> bool:
        """Fill `out` if this has its dtype and shape; return whether it was filled."""

    def read(self, out: NDArray[Any]) -> None:
        """Fill `out`, `[rows, *shape]` of the plan; raises `FormatError` where values do not fit.

        Values are converted to the plan's dtype only where nothing is lost by it.
        """


class EpisodeView(Protocol):
    """One episode of an open storage."""

    @property
    def where(self) -> str:
        """File and episode, for messages."""

    def describe(self) -> list[FoundLeaf]:
        """List its leaves."""

    def facts(self) -> EpisodeFacts:
        """Read what the source says of it as a whole."""

    def open(self, leaf: PlannedLeaf) -> LeafHandle | None:
        """Open a leaf; None where this episode does not have it."""

    def members(self, group: tuple[str, ...]) -> int:
        """Count what lies directly in a group of leaves, `()` for all sections; 0 if it is absent."""

    def groups(self, places: set[tuple[str, ...]]) -> Mapping[tuple[str, ...], frozenset[str]]:
        """Name what lies directly in each group above its leaves' places, and in empty groups."""

    def stated(self) -> tuple[Any, Any]:
        """Return its `id` and `total_steps` as the source states them; None where it does not."""


class Storage(Protocol):
    """The data files of one dataset; picklable, opens files only inside its methods."""

    where: str
    """The file or folder, for messages."""

    def numbers(self) -> Sequence[int]:
        """List the episodes, in increasing order."""

    def views(self, numbers: Sequence[int]) -> AbstractContextManager[Iterator[EpisodeView]]:
        """Open episodes one after the other; each view is good until the next is taken."""


def episode_number(digits: str, name: str, where: str) -> int:
    """Return the number in the name of an episode's group or folder.

    Raises:
        FormatError: It is not written as Minari writes numbers, so that two names could mean the
            same episode, or it is too large.

    Example:
        >>> episode_number("12", "episode_12", "here")
        12
    """
    if len(digits) > 18:
        raise FormatError(f"{where} numbers an episode {digits[:18]}…; expected at most 18 digits")
    number = int(digits)
    if digits != str(number):
        expected = name.replace(digits, str(number))
        raise FormatError(f"{where} has an episode called {name!a}; expected {expected!r}")
    return number


def seed_of(number: float) -> int | None:
    """Return a seed as an integer; None where it is none of int64 or uint64.

    Example:
        >>> seed_of(4.0), seed_of(3.7), seed_of(2**64)
        (4, None, None)
    """
    whole = isinstance(number, int) or number.is_integer()
    return int(number) if whole and -(2**63) <= number < 2**64 else None


def groups_of(places: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], frozenset[str]]:
    """Return what lies directly in each group above some leaves.

    Example:
        >>> groups_of([("infos", "goal")])
        {(): frozenset({'infos'}), ('infos',): frozenset({'goal'})}
    """
    found: dict[tuple[str, ...], set[str]] = {(): set()}
    for place in places:
        for depth, name in enumerate(place):
            found.setdefault(place[:depth], set()).add(name)
    return {group: frozenset(names) for group, names in found.items()}


def nothing(dtype: np.dtype[Any]) -> Any:
    """Return what stands where the source has nothing: NaN, 0, False, and None for text.

    Example:
        >>> import numpy as np
        >>> [nothing(np.dtype(name)) for name in ("float32", "int8", "bool", "object")]
        [nan, 0, False, None]
    """
    if dtype.kind == "O":
        return None
    return float("nan") if dtype.kind in "fc" else dtype.type(0).item()


def fill(out: NDArray[Any], values: NDArray[Any], where: str) -> None:
    """Copy `values` into `out`, changing the dtype only where every value stays the same.

    Raises:
        FormatError: Another shape, or values that the dtype of `out` cannot hold.

    Example:
        >>> import numpy as np
        >>> out = np.zeros(2, "float32")
        >>> fill(out, np.array([1, 2]), "actions")
        >>> out.tolist()
        [1.0, 2.0]
    """
    check_shape(values.shape[1:], out.shape[1:], where)
    if values.dtype != out.dtype and not _same_after(values, out.dtype):
        raise FormatError(
            f"{where} is {values.dtype}, and its values do not fit {out.dtype}, "
            "which the first episode has"
        )
    out[...] = values


def check_shape(found: tuple[int, ...], expected: tuple[int, ...], where: str) -> None:
    """Raise `FormatError` unless rows have the expected shape."""
    if found != expected:
        raise FormatError(
            f"{where} has rows of shape {list(found)}; expected {list(expected)} "
            "as in the first episode"
        )


def _same_after(values: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    if values.dtype.kind not in "biufc" or (values.dtype.kind == "c" and dtype.kind != "c"):
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        there = values.astype(dtype)
        return bool(np.array_equal(there.astype(values.dtype), values, equal_nan=True))
