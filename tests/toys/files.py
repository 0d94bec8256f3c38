"""Files of any layout, as users write them: arrays by name, in each format, each by its own library."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

Arrays = dict[str, Any]


def write_h5(path: Path, arrays: Mapping[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values)
    return path


def write_npz(path: Path, arrays: Mapping[str, Any]) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def write_npy(path: Path, arrays: Mapping[str, Any]) -> Path:
    for name, values in arrays.items():
        file = path / f"{name}.npy"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, values)
    return path


def write_zarr(path: Path, arrays: Mapping[str, Any]) -> Path:
    old = zarr.__version__ < "3"
    group: Any = zarr.open_group(str(path), mode="w", **({} if old else {"zarr_format": 2}))
    create = group.create_dataset if old else group.create_array
    plain = {"compressor": None} if old else {"compressors": None}
    for name, values in arrays.items():
        chunks = (2, *values.shape[1:]) if values.shape else ()
        create(name, data=np.asarray(values), chunks=chunks, **plain)
    return path


def write_parquet(path: Path, arrays: Mapping[str, Any]) -> Path:
    columns = {k: list(v) if v.ndim > 1 else v for k, v in arrays.items()}
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return path


def write_saved(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Write two files, of batches of two rows, as `Dataset.save_to_disk` of `datasets` does."""
    path.mkdir(parents=True)
    table = pa.table({k: list(v) if v.ndim > 1 else v for k, v in arrays.items()})
    files = [f"data-{number:05d}-of-00002.arrow" for number in range(2)]
    half = (len(table) + 1) // 2
    for name, rows in zip(files, (table.slice(0, half), table.slice(half)), strict=True):
        with pa.ipc.new_stream(path / name, table.schema) as stream:
            stream.write_table(rows, max_chunksize=2)
    state = {
        "_data_files": [{"filename": name} for name in files],
        "_fingerprint": "0",
        "_split": None,
    }
    (path / "state.json").write_text(json.dumps(state))
    (path / "dataset_info.json").write_text("{}")
    return path


def write_csv(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Write arrays of several columns as `name_0`, `name_1`, …."""
    columns: Arrays = {}
    for name, values in arrays.items():
        wide = values.ndim > 1
        columns |= {f"{name}_{i}": values[:, i] for i in range(values.shape[1])} if wide else {}
        columns |= {} if wide else {name: values}
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    return path


def write_pt(path: Path, arrays: Any) -> Path:
    """Write arrays, or a list of arrays of episodes, as tensors."""
    import torch  # which a test of conversion without it does not want

    parts = arrays if isinstance(arrays, list) else [arrays]
    tensors = [{name: torch.as_tensor(v) for name, v in part.items()} for part in parts]
    torch.save(tensors if isinstance(arrays, list) else tensors[0], path)
    return path


WRITERS: dict[str, Callable[[Path, Arrays], Path]] = {
    "h5": write_h5,
    "npz": write_npz,
    "npy": write_npy,
    "zarr": write_zarr,
    "parquet": write_parquet,
    "saved": write_saved,
    "csv": write_csv,
    "pt": write_pt,
}
"""Writers by suffix."""
TABLES = {"parquet", "saved", "csv"}
"""Formats in which all arrays have as many rows."""


def toy_episodes(lengths: tuple[int, ...] = (3, 1, 4)) -> list[Arrays]:
    """Return episodes of which the observation `t` of episode `e` is `1000·(e + 1) + t + 1`, even ones terminated."""
    found = []
    for e, length in enumerate(lengths):
        code = 1000.0 * (e + 1) + np.arange(length + 1) + 1
        last = np.arange(length) == length - 1
        found.append(
            {
                "obs": np.stack([code, -code], 1).astype(np.float32),
                "act": code[:-1, None] / 4,
                "rew": code[1:] / 8,
                "term": last & (e % 2 == 0),
                "trunc": last & (e % 2 == 1),
            }
        )
    return found
