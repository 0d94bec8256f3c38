"""How many processes are worth their start."""

from __future__ import annotations


def choose(seconds_estimated: float, workers: int, start_cost: float) -> int:
    """Return `workers` where they save more than their start costs, else 1: in this process.

    Args:
        seconds_estimated: What is left to do would take one process so long.
        workers: Processes that may be used.
        start_cost: Seconds until they have started; they start at the same time.

    Example:
        >>> choose(60.0, 4, start_cost=3.0), choose(3.5, 4, start_cost=3.0)
        (4, 1)
    """
    saved = seconds_estimated * (1 - 1 / workers)
    return workers if saved > start_cost else 1
