"""`meta.json` beside the memory maps, so that tensordict opens a table's folder as it is.

Format: `TensorDict.memmap` of tensordict 0.8 to 0.14; leaf `a` of a folder is `a.memmap`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.store.layout import META, ROWS, SUFFIX, WORD, TableSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

_TENSORDICT = "<class 'tensordict._td.TensorDict'>"


def meta_files(name: str, table: TableSpec) -> dict[str, str]:
    """Return the `meta.json` files of a table's folder and its subfolders: `{path: text}`."""
    folders: dict[str, dict[str, Any]] = {name: {}}
    for file, dtype, shape in _tensors(name, table):
        parts = file.removesuffix(SUFFIX).split("/")
        for depth in range(1, len(parts) - 1):
            parent, child = "/".join(parts[:depth]), parts[depth]
            folders.setdefault(parent, {})[child] = {"type": "TensorDict"}
        entry = {"device": "cpu", "shape": shape, "dtype": f"torch.{dtype}", "is_nested": False}
        folders.setdefault("/".join(parts[:-1]), {})[parts[-1]] = entry
    tail = {"shape": [table.rows], "device": "cpu", "_type": _TENSORDICT}
    return {f"{path}/{META}": json.dumps({**leaves, **tail}) for path, leaves in folders.items()}


def _tensors(name: str, table: TableSpec) -> Iterator[tuple[str, str, list[int]]]:
    """Each memory map once: file, dtype name, shape with the rows."""
    packed = f"{name}/{ROWS}{SUFFIX}"
    width = next((leaf.stride for leaf in table.leaves if leaf.file == packed), 0)
    if width:
        yield packed, np.dtype("int64").name, [table.rows, width // WORD]
    for leaf in table.leaves:
        if leaf.file != packed:
            yield leaf.file, leaf.dtype, [table.rows, *leaf.shape]
