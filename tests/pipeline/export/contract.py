"""What tests of all formats of `export` know of each: a line of `FORMATS`, with a reader that is not the product's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tensordict import TensorDict

from tests.pipeline.export.test_rlds import records

Episode: TypeAlias = Mapping[str, Any]
"""Rows of an episode: `observation` before each action, `action`, and `reward` and `next` if they are there."""
Read: TypeAlias = Callable[[Path], Iterator[Episode]]


@dataclass(frozen=True)
class Format:
    """How tests read what an export wrote.

    Args:
        read: Yields the episodes of a dataset with `observation` as its only observation.
        source: Source of `convert` that reads the format.
    """

    read: Read
    source: str


def _cut(columns: Mapping[str, Any], lengths: Any) -> Iterator[Episode]:
    """Yield the episodes of columns of all rows; a column with a row more for each has a final one."""
    for number, length in enumerate(lengths):
        first, episode = int(np.sum(lengths[:number])), {}
        for name, values in columns.items():
            more = len(values) > np.sum(lengths)
            episode[name] = values[first + number * more :][:length]
            if more:
                episode["next"] = values[first + number * more :][1 : length + 1]
        yield episode


def _minari(path: Path) -> Iterator[Episode]:
    with h5py.File(path / "data" / "main_data.hdf5") as file:
        for number in range(len(file)):
            one = {name: file[f"episode_{number}/{name}s"][:] for name in ("observation", "action", "reward")}  # fmt: skip
            yield from _cut(one, [len(one["action"])])


def _d4rl(path: Path) -> Iterator[Episode]:
    """As `d4rl.sequence_dataset`, which cuts where `terminals` or `timeouts` are set."""
    places = {"next_observations": "next", "observations": "observation", "actions": "action", "rewards": "reward"}  # fmt: skip
    with h5py.File(path) as file:
        columns = {name: file[place][:] for place, name in places.items() if place in file}
        ends = np.flatnonzero(file["terminals"][:] | file["timeouts"][:]) + 1
    yield from _cut(columns, np.diff(ends, prepend=0))


def _robomimic(path: Path) -> Iterator[Episode]:
    with h5py.File(path) as file:
        for number in range(len(file["data"])):
            demo = file[f"data/demo_{number}"]
            places = {"next": "next_obs/state", "observation": "obs/state", "action": "actions", "reward": "rewards"}  # fmt: skip
            yield {name: demo[place][:] for name, place in places.items() if place in demo}


def _d3rlpy(path: Path) -> Iterator[Episode]:
    with h5py.File(path) as file:
        for number in range(sum(name.startswith("actions_") for name in file)):
            yield {
                name: file[f"{name}s_{number}"][:] for name in ("observation", "action", "reward")
            }


def _npz(path: Path) -> Iterator[Episode]:
    names = {"observation": "observation", "action": "action", "next/reward": "reward"}
    with np.load(path) as arrays:
        found = {name: arrays[place] for place, name in names.items() if place in arrays}
        yield from _cut(found, arrays["episode_lengths"])


def _ogbench(path: Path) -> Iterator[Episode]:
    """A terminal marks the state after the last action, whose own leads nowhere."""
    with np.load(path) as arrays:
        begin = 0
        for end in (np.flatnonzero(arrays["terminals"]) + 1).tolist():
            seen = arrays["observations"][begin:end]
            yield {"observation": seen[:-1], "next": seen[1:], "action": arrays["actions"][begin : end - 1]}  # fmt: skip
            begin = end


def _zarr(path: Path) -> Iterator[Episode]:
    """Chunks of Zarr 2 without compression, joined by hand."""

    def array(name: str) -> Any:
        about = json.loads((path / name / ".zarray").read_text())
        assert (about["zarr_format"], about["compressor"], about["order"]) == (2, None, "C")
        rows, chunk = about["shape"][0], about["chunks"]
        places = [
            ".".join([str(n), *["0"] * (len(chunk) - 1)]) for n in range(-(-rows // chunk[0]))
        ]
        parts = [np.fromfile(path / name / one, about["dtype"]).reshape(chunk) for one in places]
        return np.concatenate(parts)[:rows]

    columns = {"observation": array("data/state"), "action": array("data/action")}
    yield from _cut(columns, np.diff(array("meta/episode_ends"), prepend=0))


def _rlds(path: Path) -> Iterator[Episode]:
    """Records by protobuf; the last row is the state after the last action, or the last of an episode."""
    for record in records(path):
        rows = len(record["steps/is_first"])
        yield {
            name: _numbers(record[f"steps/{name}"]).reshape(rows, -1)
            for name in ("observation", "action", "reward")
            if f"steps/{name}" in record
        }


def _numbers(values: list[Any]) -> Any:
    """Return the numbers of a feature; float64 is stored as bytes."""
    if values and isinstance(values[0], bytes):
        return np.frombuffer(b"".join(values), "<f8")
    return np.array(values)


def _table(table: pa.Table, names: Mapping[str, str]) -> Iterator[Episode]:
    """Yield the episodes of rows with a number of their episode, in order."""
    numbers = table["episode_index"].to_numpy()
    columns = {
        name: np.array(table[place].to_pylist())
        for place, name in names.items()
        if place in table.column_names
    }
    return _cut(columns, np.bincount(numbers))


_COLUMNS = {"observation": "observation", "action": "action", "next.reward": "reward"}


def _parquet(path: Path) -> Iterator[Episode]:
    return _table(
        pa.concat_tables(pq.read_table(one) for one in sorted(path.glob("data/*"))), _COLUMNS
    )


def _hf(path: Path) -> Iterator[Episode]:
    files = sorted((path / "steps").glob("*.arrow"))
    return _table(pa.concat_tables(pa.ipc.open_stream(one).read_all() for one in files), _COLUMNS)


def _lerobot(path: Path) -> Iterator[Episode]:
    files = sorted(path.glob("data/*/*.parquet"))
    names = {"observation.state": "observation", "action": "action", "next.reward": "reward"}
    return _table(pa.concat_tables(pq.read_table(one) for one in files), names)


def _ted(path: Path) -> Iterator[Episode]:
    rows = TensorDict.load_memmap(path / "ted")
    keys: dict[str, Any] = {"next": ("next", "observation"), "observation": "observation", "action": "action", "reward": ("next", "reward")}  # fmt: skip
    columns = {name: rows[key].numpy() for name, key in keys.items() if rows.get(key) is not None}
    return _cut(columns, np.bincount(rows["episode"].numpy()))


FORMATS: dict[str, Format] = {
    "minari": Format(_minari, "minari"),
    "d4rl": Format(_d4rl, "d4rl"),
    "parquet": Format(_parquet, "files"),
    "hf": Format(_hf, "files"),
    "npz": Format(_npz, "files"),
    "ogbench": Format(_ogbench, "ogbench"),
    "zarr": Format(_zarr, "diffusion_policy"),
    "rlds": Format(_rlds, "openx"),
    "lerobot": Format(_lerobot, "lerobot"),
    "robomimic": Format(_robomimic, "robomimic"),
    "d3rlpy": Format(_d3rlpy, "d3rlpy"),
    "ted": Format(_ted, "local"),
}
"""Formats by name; a new one gets a line, and all tests of this folder that take a format run on it."""
