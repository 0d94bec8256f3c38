"""The ends of D4RL episodes: the rules of the catalogue, and the notes on their result."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode.cut import lengths_of, with_horizon
from offline_data.formats.catalogues.d4rl import EndRule

RULES = {
    "terminals|timeouts": "Episodes end where terminals or timeouts are set.",
    "timeouts": "Episodes end where timeouts are set; terminals do not end them.",
    "terminals": "Episodes end where terminals are set.",
}
"""Rules by name in the catalogue, with their notes. `terminals|timeouts` is D4RL's own; the others are
for families whose flags mean something else."""
JUMPS = (
    "Episodes end where terminals are set, and where a next observation is not the observation of the "
    "next row: there they are truncated."
)
"""The rule `jumps`, of files of next observations without timeouts."""


def episode_ends(
    rule: EndRule, terminals: NDArray[np.bool_], timeouts: NDArray[np.bool_] | None, where: str
) -> tuple[NDArray[np.bool_], str]:
    """Return which rows `[N]` are the last of an episode, and the applied rule as a sentence.

    The last row of the file may be unmarked. Raises `FormatError`, which names the file `where`, if
    nothing marks an end and the rule has no horizon.

    Example:
        >>> flags = np.array([False, True, False, False, False])
        >>> episode_ends(EndRule(horizon=2), flags, None, "toy.hdf5")[0].nonzero()[0].tolist()
        [1, 3]
    """
    if rule.marks == "jumps":
        return terminals, JUMPS
    if rule.marks == "terminals":
        marked, complete = terminals, bool(terminals.any())
    elif rule.marks == "timeouts":
        marked = np.zeros_like(terminals) if timeouts is None else timeouts
        complete = bool(marked.any())
    else:
        marked = terminals if timeouts is None else terminals | timeouts
        complete = timeouts is not None
    if complete:
        return marked, RULES[rule.marks]
    if rule.horizon is not None:
        also = "terminals and " if marked.any() else ""
        return with_horizon(marked, rule.horizon), (
            f"The ends of episodes are inferred, as the file has no timeouts: from {also}"
            f"the environment's limit of {plural(rule.horizon, 'step')}, counted from the last end."
        )
    if marked.any():
        return marked, f"{RULES['terminals']} The file has no timeouts."
    raise FormatError(
        f"{where} marks no end of an episode: expected 'timeouts', or 'terminals' with a row set",
        hint="add a bool dataset 'timeouts' that is set on the last row of every episode",
    )


def end_notes(ends: NDArray[np.bool_], applied: str) -> tuple[str, ...]:
    """Return the applied rule and its findings, as sentences."""
    if ends[-1]:
        return (applied,)
    last = f"The file stops inside its last episode, of {plural(lengths_of(ends)[-1], 'row')}"
    return (applied, f"{last}, marked truncated.")
