"""Names of the components of features, where the source gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from offline_data.episode.fields import join_key
from offline_data.store.reader import DatasetReader

_LONGEST = 40


def feature_names(reader: DatasetReader) -> dict[str, tuple[str, ...]]:
    """Return the names of the components of features by TED key; features without names are absent.

    They are LeRobot's `names` in `meta/info.json`: a list, lists of motors, or numbers by name.
    """
    shapes = {join_key(key): leaf.shape for key, leaf in reader.leaves.items()}
    return names_in(reader.manifest.about, shapes)


def names_in(
    about: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[str, ...]]:
    """Return the names that a manifest's `about` has for these shapes; see `feature_names`."""
    features = about.get("features")
    declared = features if isinstance(features, Mapping) else {}
    found = {}
    for key, shape in shapes.items():
        dotted = key.removeprefix("/").replace("/", ".")
        plural = (
            f"actions{dotted.removeprefix('action')}" if dotted.startswith("action") else dotted
        )
        aliases = (dotted, dotted.removeprefix("observation."), plural)
        feature = next((declared[name] for name in aliases if name in declared), None)
        names = [*_flatten(feature.get("names"))] if isinstance(feature, Mapping) else []
        if 1 < len(names) == prod(shape) == len(set(names)):
            found[key] = tuple(names)
    return found


def feature_labels(shape: tuple[int, ...], names: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the place of each number of a row and its name; no text for the only one.

    Example:
        >>> feature_labels((2,)), feature_labels((2,), ("pan", "lift")), feature_labels((1,))
        (('[0]', '[1]'), ('[0] pan', '[1] lift'), ('',))
    """
    if prod(shape) == 1:
        return ("",)
    places = [str(list(place)) for place in np.ndindex(*shape)]
    return tuple(f"{a} {b}" for a, b in zip(places, names, strict=True)) if names else tuple(places)


def _flatten(names: Any) -> Iterator[str]:
    if isinstance(names, Mapping) and all(type(place) is int for place in names.values()):
        names = sorted(names, key=names.__getitem__)
    if isinstance(names, str):
        yield names[:_LONGEST]
    elif isinstance(names, (list, tuple, Mapping)):
        for part in names.values() if isinstance(names, Mapping) else names:
            yield from _flatten(part)
