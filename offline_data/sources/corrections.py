"""Corrections of what is read: which existing datasets an earlier version made wrongly.

A dataset records in `converter.reading` how many corrections its adapter had when it was made (absent:
none). A correction with a larger number that affects the dataset means: make it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from offline_data.store.manifest import Manifest


@dataclass(frozen=True)
class Correction:
    """A defect of earlier conversions by one adapter."""

    problem: str
    """Half a sentence that follows "an earlier version": `ignored flags inside files`."""
    affects: Callable[[Manifest], bool]
    """Whether a dataset of the adapter may have the defect."""


CORRECTIONS: Mapping[str, tuple[Correction, ...]] = {}
"""Corrections by adapter, in order; only append, since datasets record their number."""


def reading_of(adapter: str) -> int:
    """Return the number that new datasets of an adapter record; 0: none is recorded."""
    return len(CORRECTIONS.get(adapter, ()))


def defects_of(manifest: Manifest) -> list[str]:
    """Return the `problem` of each correction that a dataset lacks.

    Example:
        >>> from offline_data.store.manifest import Manifest
        >>> defects_of(Manifest("local:x@1", "local", "x", "1", "compact", {}, {}))
        []
    """
    adapter, reading = manifest.converter.get("adapter"), manifest.converter.get("reading", 0)
    known = CORRECTIONS.get(str(adapter), ())
    return [one.problem for one in known[reading:] if one.affects(manifest)]
