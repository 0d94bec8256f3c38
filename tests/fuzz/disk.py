"""A dataset directory read with json and numpy alone, as `cache_layout.md` tells people to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Key = tuple[str, ...]


class Stored(NamedTuple):
    """All transitions of a dataset directory; text as `str`."""

    before: dict[Key, Any]
    """What holds before the action: `[N, …]` by key, without `next`."""
    after: dict[Key, Any]
    """The same leaves after the action."""
    steps: dict[Key, Any]
    """What there is once per transition, `[N, …]`; what came of the action below `next`."""
    episodes: dict[Key, Any]
    """`[E, …]`."""


def read_dataset(folder: Path) -> Stored:
    """Read every leaf of a dataset directory in either layout."""
    manifest = json.loads((folder / "manifest.json").read_text())
    tables = {name: _table(folder, name, table) for name, table in manifest["schema"].items()}
    episodes = tables["episodes"]
    steps = dict(tables.get("steps", tables.get("ted", {})))
    before: dict[Key, Any] = {}
    after: dict[Key, Any] = {}
    if "observations" in tables:
        row = np.arange(len(steps[("episode",)])) + steps[("episode",)].astype(np.int64)
        for key, values in tables["observations"].items():
            before[key], after[key] = values[row], values[row + 1]
    for flag in ("done", "terminated", "truncated"):  # of the root: always False, in `ted` only
        steps.pop((flag,), None)
    steps.pop(("next", "done"), None)  # either of the two others; in `ted` only
    for key in list(steps):
        following = ("next", *key)
        if following in steps:
            before[key], after[key] = steps[key], steps[following]
    for key in before:
        following = ("next", *key)
        steps.pop(key, None)
        steps.pop(following, None)
    return Stored(before, after, steps, episodes)


def _table(folder: Path, name: str, table: dict[str, Any]) -> dict[Key, Any]:
    return {
        tuple(leaf["key"]): _leaf(folder, name, leaf, table["rows"]) for leaf in table["leaves"]
    }


def _leaf(folder: Path, table: str, leaf: dict[str, Any], rows: int) -> Any:
    shape, dtype = tuple(leaf["shape"]), np.dtype(leaf["dtype"])
    if rows * leaf["stride"] == 0:
        return np.zeros((rows, *shape), dtype)
    record = np.dtype(
        {
            "names": ["x"],
            "formats": [(dtype, shape)],
            "offsets": [leaf["offset"]],
            "itemsize": leaf["stride"],
        }
    )
    values = np.array(np.memmap(folder / leaf["file"], record, mode="r", shape=(rows,))["x"])
    if not leaf.get("text"):
        return values
    words = next(
        entry["words"]
        for entry in json.loads((folder / "text.json").read_text())
        # `next` of layout `ted` has the words of its root
        if entry["table"] == table and entry["key"] in (leaf["key"], leaf["key"][1:])
    )
    return np.array([*words, None], object)[values]
