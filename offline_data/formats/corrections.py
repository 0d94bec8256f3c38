"""Corrections of what is read: which existing datasets an earlier version made wrongly.

A dataset records in `converter.reading` how many corrections its adapter had when it was made (absent:
none). A correction with a larger number that affects the dataset means: make it again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offline_data.store.manifest import Manifest
    from offline_data.store.reader import DatasetReader


@dataclass(frozen=True)
class Correction:
    """A defect of earlier conversions by one adapter."""

    problem: str
    """Half a sentence that follows "an earlier version": `ignored flags inside files`."""
    affects: Callable[[Manifest], bool]
    """Whether a dataset of the adapter may have the defect."""
    shows: Callable[[DatasetReader], bool] = field(default=lambda _: True)
    """Whether the rows of such a dataset may have it."""


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


def _skipped_for(*reasons: str) -> Callable[[Manifest], bool]:
    """Return whether episodes were skipped whose reason has one of these words."""
    return lambda manifest: any(
        words in str(one.get("reason")) for one in manifest.skipped for words in reasons
    )


def _mapping_of(manifest: Manifest) -> Mapping[str, Any]:
    found = (manifest.converter.get("options") or {}).get("mapping")
    return found if isinstance(found, Mapping) else {}


def _is_csv(manifest: Manifest) -> bool:
    paths = (str(file.get("path", "")).lower() for file in manifest.files)
    return any(re.search(r"\.[ct]sv(\.gz)?\Z", path) for path in paths)


def _was_cast(manifest: Manifest) -> bool:
    return bool((manifest.converter.get("options") or {}).get("cast"))


def _was_labelled(manifest: Manifest) -> bool:
    recipe = (manifest.converter.get("options") or {}).get("recipe")
    steps: Iterable[Any] = recipe if isinstance(recipe, list) else ()
    return any(isinstance(step, dict) and step.get("step") == "label" for step in steps)


def _has_large_floats(reader: DatasetReader) -> bool:
    """Return whether a leaf of 64-bit floats has a finite value of 2^53 or more, as rounded integers are."""
    import numpy as np

    for table, spec in reader.manifest.tables.items():
        for leaf in spec.leaves:
            if leaf.dtype not in {"float64", "complex128"} or leaf.encoding:
                continue
            values = reader.leaf(table, leaf.key)
            for begin in range(0, len(values), _ROWS):
                sizes = np.abs(values[begin : begin + _ROWS])
                if ((sizes >= 2.0**53) & np.isfinite(sizes)).any():
                    return True
    return False


def _has_none_as_text(reader: DatasetReader) -> bool:
    return any(
        "None" in words for leaves in reader.vocabularies.values() for words in leaves.values()
    )


_ROWS = 1 << 14
_LEAST_IMAGE = 1024  # bytes of a row from which on numbers were probably a JPEG or PNG file

CORRECTIONS: Mapping[str, tuple[Correction, ...]] = {
    "files": (
        Correction(
            "took each part for one episode, without reading ends.done or ends.episode inside it",
            _ignored_ends,
        ),
        Correction("kept JPEG and PNG files as rows of bytes", _has_bytes),
        Correction("rounded large integers of CSV files", _is_csv, _has_large_floats),
    ),
    "merge": (
        Correction("rounded integers to floats (merge --cast)", _was_cast, _has_large_floats),
    ),
    "lerobot": (
        Correction(
            "left out episodes whose rows are in another file than meta/episodes lists",
            _skipped_for("it has 0 rows; meta/episodes"),
        ),
        Correction(
            "kept episodes of a video of another frame rate, such as every third frame of 30 per second",
            _skipped_for("there is no frame for its", "no frame is within half a frame"),
        ),
    ),
    "ogbench": (
        Correction(
            "read a file with D4RL's arrays as OGBench's, so that rewards became info/rewards and the "
            "last step of each episode is missing",
            _has_observed("rewards", "timeouts", "next_observations", "masks", "valids"),
        ),
    ),
    "preprocess": (
        Correction('wrote missing texts of label as "None"', _was_labelled, _has_none_as_text),
        Correction(
            "rounded integers that a CSV file of label has beyond int64",
            _was_labelled,
            _has_large_floats,
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


def defects_of(manifest: Manifest, path: Path) -> list[str]:
    """Return the `problem` of each correction that a dataset, in the folder `path`, lacks.

    Example:
        >>> from offline_data.store.manifest import Manifest
        >>> defects_of(Manifest("local:x@1", "local", "x", "1", "compact", {}, {}), Path())
        []
    """
    adapter, reading = manifest.converter.get("adapter"), manifest.converter.get("reading", 0)
    known = CORRECTIONS.get(str(adapter), ())
    from offline_data.store.reader import open_reader  # brings numpy, which downloads start without

    may = [one for one in known[reading:] if one.affects(manifest)]
    return [one.problem for one in may if one.shows(open_reader(path))]
