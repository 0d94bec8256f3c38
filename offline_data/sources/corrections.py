"""Corrections of what is read: which existing datasets an earlier version made wrongly.

A dataset records in `converter.reading` how many corrections its adapter had when it was made (absent:
none). A correction with a larger number that affects the dataset means: make it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_data.store.manifest import Manifest


@dataclass(frozen=True)
class Correction:
    """A defect of earlier conversions by one adapter."""

    problem: str
    """Half a sentence that follows "an earlier version": `ignored flags inside files`."""
    affects: Callable[[Manifest], bool]
    """Whether a dataset of the adapter may have the defect."""


def _has_observed(*names: str) -> Callable[[Manifest], bool]:
    """Return whether a dataset of a user's file has leaves `info/NAME`."""
    return lambda manifest: (
        manifest.source == "local"
        and any(
            ("info", name) in table.by_key for table in manifest.tables.values() for name in names
        )
    )


def _lacks_discount(manifest: Manifest) -> bool:
    leaves = {key for table in manifest.tables.values() for key in table.by_key}
    return manifest.source == "local" and ("next", "discount") not in leaves


def _ignored_ends(manifest: Manifest) -> bool:
    mapping = _mapping_of(manifest)
    return bool(mapping.get("each")) and bool({"done", "episode"} & {*mapping.get("ends", {})})


def _has_bytes(manifest: Manifest) -> bool:
    leaves = [leaf for table in manifest.tables.values() for leaf in table.leaves]
    return any(
        leaf.dtype == "uint8" and len(leaf.shape) == 1 and leaf.shape[0] >= _LEAST_IMAGE
        for leaf in leaves
    )


def _mapping_of(manifest: Manifest) -> Mapping[str, Any]:
    found = (manifest.converter.get("options") or {}).get("mapping")
    return found if isinstance(found, Mapping) else {}


_LEAST_IMAGE = 1024
"""Bytes of a row from which on numbers were probably a JPEG or PNG file."""

CORRECTIONS: Mapping[str, tuple[Correction, ...]] = {
    "files": (
        Correction(
            "took each part for one episode, without reading ends.done or ends.episode inside it",
            _ignored_ends,
        ),
        Correction("kept JPEG and PNG files as rows of bytes", _has_bytes),
    ),
    "ogbench": (
        Correction(
            "read a file with D4RL's arrays as OGBench's, so that rewards became info/rewards and the "
            "last step of each episode is missing",
            _has_observed("rewards", "timeouts", "next_observations", "masks", "valids"),
        ),
    ),
    "vd4rl": (
        Correction(
            "read files of images, actions and rewards as DreamerV2's, whose actions are those before "
            "the image of their row",
            _lacks_discount,
        ),
    ),
}
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
