"""Interleaved timing: every job once per round, medians over rounds; and a table of results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Row:
    """One line of the results."""

    case: str
    """Case that was measured."""
    job: str
    """Name of the job."""
    ratio: str
    """Time relative to this package's: `10.0×` took ten times as long."""
    note: str
    """Absolute figures and remarks."""
    target: str = ""
    """Target, on this package's own line."""


def interleaved(
    jobs: Mapping[str, Callable[[], object]],
    *,
    repeats: int = 5,
    calls: int = 1,
    warmup: int = 1,
    before: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Return the median seconds per call of each job.

    Args:
        jobs: Jobs to time; all run in every round, so that a slow moment of the machine affects all,
            and the starting job rotates, so that none always follows the same one.
        repeats: Number of measured rounds.
        calls: Number of calls of a job per round, timed together.
        warmup: Number of unmeasured rounds before.
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
    """Format rows as a Markdown table."""
    lines = ["| work | who | speed-up | measured | target |", "|---|---|---|---|---|"]
    before = ""
    for row in rows:
        case = row.case if row.case != before else ""
        before = row.case
        lines.append(f"| {case} | {row.job} | {row.ratio} | {row.note} | {row.target} |")
    return "\n".join(lines)
