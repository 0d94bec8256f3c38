"""Interleaved timing: every job once a round, round after round, medians; and a table of rows."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(frozen=True)
class Row:
    """One line of a result."""

    case: str
    """What was measured."""
    job: str
    """Who did it."""
    ratio: str
    """Time over ours: `10.0×` says that it took ten times as long."""
    note: str
    """Absolute figures, and what else was seen."""
    target: str = ""
    """What we aim at, on our own line."""


def interleaved(
    jobs: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 5,
    calls: int = 1,
    warmup: int = 1,
    before: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Return the median seconds a call of each job takes.

    Args:
        jobs: What to time; all run in every round, so that a slow moment of the machine hits all,
            and each round begins with another, so that none always follows the same one.
        repeats: Rounds that count.
        calls: Calls of a job in a round, timed together.
        warmup: Rounds before, not counted.
        before: Called before each job, not timed.
    """
    seen: dict[str, list[float]] = {name: [] for name in jobs}
    order = list(jobs)
    for turn in range(warmup + repeats):
        for name in order[turn % len(order) :] + order[: turn % len(order)]:
            if before is not None:
                before()
            begin = time.perf_counter()
            for _ in range(calls):
                jobs[name]()
            if turn >= warmup:
                seen[name].append((time.perf_counter() - begin) / calls)
    return {name: median(times) for name, times in seen.items()}


def table(rows: Iterable[Row]) -> str:
    """Write rows as a table in Markdown."""
    lines = ["| work | who | speed-up | measured | target |", "|---|---|---|---|---|"]
    before = ""
    for row in rows:
        case = row.case if row.case != before else ""
        before = row.case
        lines.append(f"| {case} | {row.job} | {row.ratio} | {row.note} | {row.target} |")
    return "\n".join(lines)
