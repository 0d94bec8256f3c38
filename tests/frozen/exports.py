"""Digests of what each target of `export` writes, read by the libraries of its format alone."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from PIL import Image

import offline_data as od
from offline_data.testing.toy import write_toy
from tests.frozen.commands import plain, plain_json
from tests.frozen.values import Digests, digest
from tests.pipeline.export.conftest import discrete_batch, everything

STATE = {"observation": "observation"}
TARGETS: dict[str, tuple[str, str, bool, dict[str, Any]]] = {
    "minari": ("minari", "x-v0", True, {}),
    "d4rl": ("d4rl", "x.hdf5", False, STATE),
    "lerobot 3.0": ("lerobot", "x", True, {"fps": 10, "video": "none"}),
    "lerobot 2.1": ("lerobot", "x", True, {"fps": 10, "video": "none", "format_version": "2.1"}),
    "robomimic": ("robomimic", "x.hdf5", True, {}),
    "rlds": ("rlds", "x", True, {}),
    "parquet": ("parquet", "x", True, {}),
    "hf": ("hf", "x", True, {}),
    "zarr": ("zarr", "x.zarr", False, {}),
    "npz": ("npz", "x.npz", True, {}),
    "d3rlpy": ("d3rlpy", "x.h5", False, STATE),
    "ogbench": ("ogbench", "x.npz", False, STATE),
    "ted": ("ted", "x", True, {}),
}
"""Target, destination, whether leaves of all kinds are exported, and options."""


def exported(name: str, folder: Path) -> dict[str, Any]:
    """Export a dataset and return what is lost and what each file has."""
    to, dest, rich, options = TARGETS[name]
    batch = everything() if rich else discrete_batch()
    write_toy(folder / "toy", [batch], dataset="local:toy@1")
    path = folder / "out" / dest
    path.parent.mkdir()
    done = od.export(folder / "toy", path, to=to, root=folder / "root", progress=False, **options)
    files = sorted(file for file in path.parent.rglob("*") if file.is_file())
    found: dict[str, Any] = {"losses": [str(loss) for loss in done.losses]}
    in_zarr = {file for file in files if ".zarr/" in str(file)}
    for file in [*(file for file in files if file not in in_zarr), *({path} if in_zarr else ())]:
        found[str(file.relative_to(path.parent))] = _read(file, folder)
    return found


def _read(file: Path, folder: Path) -> Any:
    """Return the content of a file, or digests of the arrays in it."""
    if file.suffix in {".hdf5", ".h5"}:
        with h5py.File(file) as opened:
            return dict(_nodes(opened, folder))
    if file.suffix == ".parquet":
        return _columns(pq.read_table(file))
    if file.suffix == ".arrow":
        with pa.memory_map(str(file)) as mapped:
            return _columns(pa.ipc.open_stream(mapped).read_all())
    if file.suffix == ".npz":
        with np.load(file) as opened:
            return {key: digest(opened[key]) for key in sorted(opened.files)}
    if file.suffix == ".zarr":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # README.md is not an array
            group = zarr.open_group(str(file), mode="r")
            return {key: digest(value) for key, value in _arrays(group)}
    if file.suffix in {".json", ".jsonl"}:
        lines = file.read_text("utf-8").splitlines() if file.suffix == ".jsonl" else None
        values = json.loads(file.read_text("utf-8")) if lines is None else [*map(json.loads, lines)]
        return _short(plain_json(values, folder, "export"))
    if file.suffix in {".md", ".toml", ".txt"}:
        return plain(file.read_text("utf-8"), folder, "export")
    if file.suffix in {".png", ".webp"}:
        return file.suffix
    return digest(np.fromfile(file, np.uint8))


_OF_VERSIONS = {"minari_version", "jpeg_encoding"}
"""Keys that some versions of other libraries write."""


def _short(value: Any) -> Any:
    """Return JSON with digests in place of long texts, such as spaces of images."""
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items() if key not in _OF_VERSIONS}
    if isinstance(value, list):
        return [_short(one) for one in value]
    return digest([value]) if isinstance(value, str) and len(value) > _LONG else value


_LONG = 400


def _nodes(opened: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield attributes and arrays of an HDF5 file."""
    names: list[str] = []
    opened.visit(names.append)
    for name in ["/", *sorted(names)]:
        node = opened[name]
        attributes = {key: str(value) for key, value in sorted(node.attrs.items())}
        if attributes:
            yield f"{name} attributes", _short(plain_json(attributes, folder, "export"))
        if isinstance(node, h5py.Dataset):
            text = h5py.check_string_dtype(node.dtype)
            yield name, f"{node.shape} {digest(np.ravel(node.asstr()[()] if text else node[()]))}"


def _arrays(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, array in sorted(group.arrays()):
        yield above + name, array[:]
    for name, inner in sorted(group.groups()):
        yield from _arrays(inner, f"{above}{name}/")


def _columns(table: Any) -> Digests:
    """Return digests of columns, of images after they were decoded."""
    return {
        f"{name} {table.schema.field(name).type}": digest([*map(_decoded, table[name].to_pylist())])
        for name in table.column_names
    }


def _decoded(value: Any) -> Any:
    if isinstance(value, dict) and isinstance(value.get("bytes"), bytes):
        with Image.open(io.BytesIO(value["bytes"])) as image:
            return {**value, "bytes": digest(np.asarray(image))}
    return value


CASES: dict[str, Callable[[Path], Any]] = {name: partial(exported, name) for name in TARGETS}
"""What exports to each target in a folder of its own."""
