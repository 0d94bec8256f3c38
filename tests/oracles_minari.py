"""A Minari folder read without this project, as plainly as possible: h5py, pyarrow, numpy, json.

`minari_episodes(folder)` gives a dict of arrays for every episode, in the order of their numbers.
A leaf of more than `LARGEST` bytes is None. Names are the file's, joined by `/`, a tuple's parts `0`, `1`, …: `observations`, `infos/goal`, ….
Observations and infos have `T + 1` rows, all else `T`; text is an object array of `str`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

NAME = r"episode_([0-9]+)"
LARGEST = 1 << 30
PADDED = ("actions", "rewards", "terminations", "truncations")


def minari_episodes(folder: Path) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the leaves of every episode of a dataset's folder, the one that contains `data`."""
    data = folder / "data"
    if (data / "main_data.hdf5").exists():
        with h5py.File(data / "main_data.hdf5") as file:
            numbers = [int(found[1]) for name in file if (found := re.fullmatch(NAME, name))]
            for number in sorted(numbers):
                yield dict(_hdf5(file[f"episode_{number}"], ""))
        return
    spaces = json.loads((data / "metadata.json").read_text())
    shapes = {
        f"{section}s{name}": shape
        for section in ("observation", "action")
        if spaces.get(f"{section}_space")
        for name, shape in _shapes(json.loads(spaces[f"{section}_space"]), "")
    }
    for episode in sorted(data.glob("*/metadata.json"), key=lambda path: int(path.parent.name)):
        leaves = dict(_arrow(_table(episode.parent), "", shapes))
        leaves.pop("episode_id", None)
        rows = len(next(iter(leaves.values())))
        steps = json.loads(episode.read_text()).get("total_steps", rows - 1)
        yield {
            name: values[:steps] if name.split("/")[0] in PADDED else values
            for name, values in leaves.items()
        }


def _hdf5(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, item in group.items():
        path = f"{prefix}{name.removeprefix('_index_')}"
        if isinstance(item, h5py.Group):
            yield from _hdf5(item, f"{path}/")
        elif item.nbytes > LARGEST:
            yield path, None
        elif item.dtype.kind == "O" and h5py.check_string_dtype(item.dtype):
            yield path, item.asstr()[()].astype(object)
        else:
            yield path, _images(item[()])


def _table(folder: Path) -> Any:
    parts = sorted(folder.glob("part-*"), key=lambda path: int(path.stem.removeprefix("part-")))
    if parts[0].suffix == ".parquet":
        return pa.concat_tables(pq.read_table(part) for part in parts)
    return pa.concat_tables(pa.ipc.open_file(part).read_all() for part in parts)


def _arrow(table: Any, prefix: str, shapes: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    for field in table.schema:
        path, column = f"{prefix}{field.name}", table.column(field.name).combine_chunks()
        if pa.types.is_struct(field.type):
            parts = [pc.struct_field(column, [n]) for n in range(field.type.num_fields)]
            yield from _arrow(
                pa.table(parts, schema=pa.schema(list(field.type))), f"{path}/", shapes
            )
            continue
        kind = field.type
        while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        number = (
            pa.array([], kind).to_numpy(zero_copy_only=False).dtype
            if pa.types.is_primitive(kind)
            else object
        )
        values = _images(np.array(column.to_pylist(), dtype=number))
        stated = (field.metadata or {}).get(b"shape", b"").decode().split(",")
        shape = shapes.get(path, [int(n) for n in stated if n] or values.shape[1:])
        yield path, values if number is object else values.reshape(len(values), *shape)


def _images(values: NDArray[Any]) -> NDArray[Any]:
    """Decode rows that are JPEG images; leave everything else as it is."""
    if values.ndim == 0 or values.ndim > 2 or values.dtype not in (object, np.uint8):
        return values
    if isinstance(values[0], str) or not bytes(values[0]).startswith(b"\xff\xd8\xff"):
        return values
    return np.stack([np.asarray(Image.open(io.BytesIO(bytes(row)))) for row in values])


def _shapes(space: Any, name: str) -> Iterator[tuple[str, Any]]:
    kind = space["type"]
    if kind in {"Dict", "Tuple"}:
        parts = space["subspaces"]
        for key, part in parts.items() if kind == "Dict" else enumerate(parts):
            yield from _shapes(part, f"{name}/{key}")
    elif kind == "MultiBinary":
        yield name, np.zeros(space["n"]).shape
    elif kind == "MultiDiscrete":
        yield name, np.shape(space["nvec"])
    elif kind != "Text":
        yield name, space.get("shape", ())
