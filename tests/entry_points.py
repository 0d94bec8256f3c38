"""The entry points of all packages, read once for each folder of `sys.path`: conversions ask for them often.

Reading those of some hundred packages takes 30 ms where files are opened by a `Fault`.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.metadata import EntryPoints, distributions
from pathlib import Path
from typing import Any

import pytest

from offline_data.analysis.checks import registry as rules
from offline_data.formats import registry as sources
from offline_data.pipeline.preprocess.steps import registry as steps


def read_once(patch: pytest.MonkeyPatch) -> None:
    """Let sources, steps and rules look for those of packages in what has been read."""
    for registry in (sources, steps, rules):
        patch.setattr(registry, "entry_points", select)


def select(**wanted: Any) -> EntryPoints:
    """Return what `importlib.metadata.entry_points` returns."""
    places = (Path(place) for place in sys.path)
    return _of(
        tuple((str(place), place.stat().st_mtime_ns) for place in places if place.exists())
    ).select(**wanted)


@cache
def _of(places: tuple[tuple[str, int], ...]) -> EntryPoints:
    return EntryPoints(dict.fromkeys(point for place in places for point in _in_folder(*place)))


@cache
def _in_folder(folder: str, _changed: int) -> EntryPoints:
    return EntryPoints(point for one in distributions(path=[folder]) for point in one.entry_points)
