"""Where D4RL episodes end: the rules of the catalogue, and what to say of what they found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from offline_data.episodes.cut import lengths_of, with_horizon
from offline_data.errors import FormatError

if TYPE_CHECKING:
    from numpy.typing import NDArray

RULES = {
    "terminals|timeouts": "Episodes end where terminals or timeouts are set.",
    "timeouts": "Episodes end where timeouts are set; terminals do not end them.",
    "terminals": "Episodes end where terminals are set.",
}
"""Rules by their name in the catalogue, and what to say of them. `terminals|timeouts` is what
D4RL itself does; the others stand where a family's flags mean something else."""


@dataclass(frozen=True)
class EndRule:
    """How the rows of one file are cut into episodes."""

    marks: str = "terminals|timeouts"
    """One of `RULES`."""
    horizon: int | None = None
    """Most steps of an episode; used only where the rule's columns are not in the file."""


@dataclass(frozen=True, eq=False)
class Cut:
    """The episodes of a file."""

    ends: NDArray[np.bool_]
    """`[N]` which rows are an episode's last; the last row of the file may be without."""
    rule: str
    """What was applied, as a sentence."""

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """`[E]` rows of each episode."""
        return lengths_of(self.ends)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was applied and found, as sentences."""
        if self.ends[-1]:
            return (self.rule,)
        last = f"The file stops inside its last episode, of {self.lengths[-1]} rows"
        return (self.rule, f"{last}, marked truncated.")

    def also_at(self, rows: NDArray[np.bool_]) -> Cut:
        """Return the episodes cut after these rows, `[N]`, too."""
        return replace(self, ends=self.ends | rows)


def cut_rows(
    rule: EndRule, terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_] | None, where: str
) -> Cut:
    """Cut flat rows into episodes.

    Args:
        rule: The columns that mark ends, and a horizon for files that lack them.
        terminals: `[N]`.
        timeouts: `[N]`, or None where the file has none.
        where: The file, for the message.

    Raises:
        FormatError: Nothing marks an end, and the rule has no horizon.

    Example:
        >>> flags = np.array([False, True, False, False, False])
        >>> cut_rows(EndRule(horizon=2), flags, None, "toy.hdf5").lengths.tolist()
        [2, 2, 1]
    """
    marked, complete = _marked(rule.marks, terminals, timeouts)
    if complete:
        return Cut(marked, RULES[rule.marks])
    if rule.horizon is not None:
        also = "terminals and " if marked.any() else ""
        note = (
            f"The ends of episodes are inferred, as the file has no timeouts: from {also}"
            f"the environment's limit of {rule.horizon} steps, counted from the last end."
        )
        return Cut(with_horizon(marked, rule.horizon), note)
    if marked.any():
        return Cut(marked, f"{RULES['terminals']} The file has no timeouts.")
    raise FormatError(
        f"{where} marks no end of an episode: expected 'timeouts', or 'terminals' with a row set",
        hint="add a bool dataset 'timeouts' that is set on the last row of every episode",
    )


def _marked(
    marks: str, terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_] | None
) -> tuple[NDArray[np.bool_], bool]:
    """Return the rows that the rule's columns mark, and whether these columns are all there."""
    if marks == "terminals":
        return terminals, bool(terminals.any())
    if marks == "timeouts":
        none = np.zeros_like(terminals)
        return (none, False) if timeouts is None else (timeouts, bool(timeouts.any()))
    return (terminals, False) if timeouts is None else (terminals | timeouts, True)


def truncated_rows(
    terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_] | None, last_rows: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return the file's own timeouts, and True on last rows that have no flag at all.

    Args:
        terminals: `[N]`.
        timeouts: `[N]`, or None where the file has none.
        last_rows: `[E]` last row of each episode.

    Returns:
        `[N]`, new.
    """
    truncated = np.zeros_like(terminals) if timeouts is None else timeouts.copy()
    truncated[last_rows] |= ~terminals[last_rows]
    return truncated
