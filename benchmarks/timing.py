"""Times of several ways to do the same, measured in turns so that all meet the same machine."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SLICE = 0.15
"""Seconds that one candidate runs in one repeat."""


def interleaved(candidates: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Measure each candidate in every repeat; returns the median of a call's time, in µs."""
    counts = {name: _calibrate(call) for name, call in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(max(repeats, 5)):
        for name, call in candidates.items():
            times[name].append(_time(call, counts[name]))
    return {name: median(values) * 1e6 for name, values in times.items()}


def _calibrate(call: Callable[[], Any]) -> int:
    """Warm up, and find how many calls fill a slice."""
    _time(call, 10)
    return max(3, int(SLICE / _time(call, 20)))


def _time(call: Callable[[], Any], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count
