"""Toy Minari datasets in every storage, of any space, with self-identifying values.

Written independently of Minari, so that readers can be tested on files that its current version does not
write: older metadata, episodes without a final observation, wrong lengths.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.episode.joining import concatenate
from offline_data.formats.minari.source import Minari

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch

STORAGES = ("hdf5", "arrow", "parquet")

Space: TypeAlias = "Mapping[str, Any]"
"""A space in Minari's JSON format."""

Nest: TypeAlias = Any
"""An array with one row per time step, a list of `str` or `bytes`, or a dict or tuple of these."""


@dataclass(frozen=True)
class ToyEpisode:
    """One episode: observations of `T + 1` rows, infos of `T + 1` or `T`, all others of `T`.

    `attributes` are other metadata of a recorder.
    """

    observations: Nest
    actions: Nest
    rewards: NDArray[Any]
    terminations: NDArray[Any]
    truncations: NDArray[Any]
    infos: Nest | None = None
    seed: int | None = None
    options: Mapping[str, Any] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def box(*shape: int, dtype: str = "float32") -> Space:
    """Return a `Box` of a shape, unbounded."""
    low = np.full(shape, -np.inf).tolist()
    high = np.full(shape, np.inf).tolist()
    return {"type": "Box", "dtype": dtype, "shape": list(shape), "low": low, "high": high}


def discrete(n: int = 10**6) -> Space:
    """Return a `Discrete` of `n` values."""
    return {"type": "Discrete", "dtype": "int64", "start": 0, "n": n}


def toy_rows(space: Space, episode: int, rows: int, leaf: int = 0) -> Nest:
    """Return self-identifying values of a space.

    Row `t` is `1000 * episode + t + 1`, plus 100,000 per leaf and the element's number / 8 in an
    array; small types contain it modulo their range.

    Example:
        >>> toy_rows(box(2), episode=3, rows=2).tolist()
        [[3001.0, 3001.125], [3002.0, 3002.125]]
    """
    kind = space["type"]
    if kind == "Dict":
        parts = enumerate(space["subspaces"].items())
        return {name: toy_rows(part, episode, rows, 10 * leaf + n + 1) for n, (name, part) in parts}
    if kind == "Tuple":
        numbered = enumerate(space["subspaces"])
        return tuple(toy_rows(part, episode, rows, 10 * leaf + n + 1) for n, part in numbered)
    base = 1000 * episode + np.arange(rows) + 1 + 100_000 * leaf
    if kind == "Text":
        return [f"row {value}" for value in base]
    if kind == "MultiBinary":
        shape = tuple(np.atleast_1d(space["n"]))
        bits = base[:, None] >> np.arange(int(np.prod(shape)))
        return (bits & 1).astype(np.int8).reshape(rows, *shape)
    shape = tuple(np.shape(space.get("nvec", np.empty(space.get("shape", ())))))
    elements = np.arange(int(np.prod(shape))).reshape(shape) / 8
    values = base.reshape(-1, *(1 for _ in shape)) + elements
    return _fit(values, np.dtype(space["dtype"]))


def _fit(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "f":
        return (values % 1000 if dtype.itemsize == 2 else values).astype(dtype)
    whole = (8 * values).astype(np.int64) if values.ndim > 1 else values.astype(np.int64)
    return (whole % (int(np.iinfo(dtype).max) + 1) if dtype.itemsize < 8 else whole).astype(dtype)


def toy_episode(
    number: int,
    length: int,
    *,
    observation: Space | None = None,
    action: Space | None = None,
    info: Mapping[str, Space] | None = None,
    **others: Any,
) -> ToyEpisode:
    """Return an episode of `length` steps that ends by termination if `number` is even.

    Default spaces are three floats (observations) and two (actions); `info` has spaces of infos
    with `T + 1` rows, by name. `others` are fields of `ToyEpisode`, which override the defaults.
    """
    ends = np.arange(length) == length - 1
    made: dict[str, Any] = {
        "observations": toy_rows(observation or box(3), number, length + 1),
        "actions": toy_rows(action or box(2), number, length, leaf=5),
        "rewards": (1000 * number + np.arange(length) + 1) / 4,
        "terminations": ends & (number % 2 == 0),
        "truncations": ends & (number % 2 == 1),
        "infos": None
        if info is None
        else {name: toy_rows(space, number, length + 1, leaf=7) for name, space in info.items()},
    }
    return ToyEpisode(**{**made, **others})


def write_minari(
    folder: Path,
    episodes: Sequence[ToyEpisode],
    storage: str = "hdf5",
    *,
    observation: Space | None = None,
    action: Space | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a dataset of spaces as in `toy_episode`; returns its folder, which must not exist yet.

    `metadata` has fields to add; None removes a field.
    """
    data = folder / "data"
    data.mkdir(parents=True)
    fields = {
        "total_episodes": len(episodes),
        "total_steps": sum(len(episode.rewards) for episode in episodes),
        "data_format": storage,
        "observation_space": json.dumps(observation or box(3)),
        "action_space": json.dumps(action or box(2)),
        "dataset_id": folder.name,
        "minari_version": "0.5.4",
        **(metadata or {}),
    }
    kept = {name: value for name, value in fields.items() if value is not None}
    (data / "metadata.json").write_text(json.dumps(kept))
    if storage == "hdf5":
        write_hdf5(data / "main_data.hdf5", episodes)
    else:
        for number, episode in enumerate(episodes):
            _write_table(data / str(number), number, episode, storage)
    return folder


def write_hdf5(
    path: Path, episodes: Iterable[ToyEpisode], attributes: Mapping[str, Any] | None = None
) -> None:
    """Write only the HDF5 file; `attributes` are those of the file (metadata until 0.4)."""
    import h5py

    with h5py.File(path, "w", track_order=True) as file:
        file.attrs.update(attributes or {})
        for number, episode in enumerate(episodes):
            _write_group(file.create_group(f"episode_{number}"), number, episode)


def _write_group(group: Any, number: int, episode: ToyEpisode) -> None:
    group.attrs["id"] = number
    if episode.seed is not None:
        group.attrs["seed"] = np.uint64(episode.seed)
    group.attrs.update(_flat(episode.options or {}, "options"))
    group.attrs["total_steps"] = len(episode.rewards)
    group.attrs.update(episode.attributes)
    for name in ("observations", "actions", "rewards", "terminations", "truncations", "infos"):
        value = getattr(episode, name)
        if value is not None:
            _write_nest(group, name, value)


def _flat(options: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat = {}
    for name, value in options.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}/{name}"))
        else:
            flat[f"{prefix}/{name}"] = value
    return flat


def _write_nest(group: Any, name: str, value: Nest) -> None:
    import h5py

    if isinstance(value, tuple):
        value = {f"_index_{number}": part for number, part in enumerate(value)}
    if isinstance(value, dict):
        below = group.create_group(name)
        for part_name, part in value.items():
            _write_nest(below, part_name, part)
        return
    if isinstance(value, list) and isinstance(value[0], bytes):
        frames = [np.frombuffer(frame, np.uint8) for frame in value]
        equal = len({len(frame) for frame in frames}) == 1
        kind = np.uint8 if equal else h5py.vlen_dtype(np.uint8)
        group.create_dataset(name, data=frames, dtype=kind, chunks=True)
        return
    text = isinstance(value, list)
    array = np.array(value, object) if text else np.asarray(value)
    kind = h5py.string_dtype("utf-8") if text else array.dtype
    growing = {"chunks": True, "maxshape": (None, *array.shape[1:])} if array.ndim else {}
    group.create_dataset(name, data=array, dtype=kind, **growing)


def _write_table(folder: Path, number: int, episode: ToyEpisode, storage: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    columns = {"observations": _arrow(episode.observations)}
    rows = len(columns["observations"])
    for name in ("actions", "rewards", "terminations", "truncations"):
        columns[name] = _arrow(getattr(episode, name), rows, flat=name == "actions")
    if episode.infos:
        columns["infos"] = _arrow(episode.infos)
    fields = [pa.field(name, column.type) for name, column in columns.items()]
    table = pa.Table.from_arrays(list(columns.values()), schema=pa.schema(fields))
    if storage == "parquet":
        parquet.write_table(table, folder / "part-0.parquet")
    else:
        with pa.ipc.new_file(str(folder / "part-0.arrow"), table.schema) as file:
            file.write_table(table, max_chunksize=32_767)
    steps = len(episode.rewards)
    facts = {"id": number, "total_steps": steps, "seed": episode.seed, "options": episode.options}
    kept = {name: value for name, value in facts.items() if value is not None}
    text = json.dumps({**kept, **episode.attributes}, default=lambda value: value.tolist())
    (folder / "metadata.json").write_text(text)


def _arrow(value: Nest, rows: int | None = None, *, flat: bool = True) -> Any:
    """Return a nest as one Arrow array, padded to `rows` rows with zeros or nulls."""
    import pyarrow as pa

    if isinstance(value, tuple):
        value = {str(number): part for number, part in enumerate(value)}
    if isinstance(value, dict):
        parts = {name: _arrow(part, rows, flat=flat) for name, part in value.items()}
        fields = [_field(name, part, value[name]) for name, part in parts.items()]
        return pa.StructArray.from_arrays(list(parts.values()), fields=fields)
    missing = 0 if rows is None else rows - len(value)
    if isinstance(value, list):
        return pa.array(value + [None] * missing)
    array = np.pad(value, ((0, missing), *((0, 0) for _ in value.shape[1:])))
    if array.ndim == 1:
        return pa.array(array)
    length = int(np.prod(array.shape[1:]))
    kind = pa.list_(pa.from_numpy_dtype(array.dtype), length)
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), type=kind)


def _field(name: str, array: Any, value: Nest) -> Any:
    """Return a field that states the shape of its rows, like Minari's for infos."""
    import pyarrow as pa

    shape = value.shape[1:] if isinstance(value, np.ndarray) else ()
    stated = {"shape": ",".join(str(length) for length in shape)} if shape else None
    return pa.field(name, array.type, metadata=stated)


def read_minari(path: Path, budget: int = 1 << 40) -> EpisodeBatch:
    """Read a whole dataset through the adapter, in parts of about `budget` bytes."""
    source = Minari()
    dataset = source.open(source.release_of(path, "toy/dataset-v0"), path)
    return concatenate([dataset.read_part(part) for part in dataset.parts(budget)])


def write_minari_hdf5(
    folder: Path, episodes: int, length: int, *, dict_observations: bool = False
) -> Path:
    """Write equal episodes, of 17 numbers or a maze with a goal; returns the new folder."""
    goal = {"observation": box(4, dtype="float64"), "achieved_goal": box(2, dtype="float64")}
    maze = {"type": "Dict", "subspaces": {**goal, "desired_goal": box(2, dtype="float64")}}
    observation = maze if dict_observations else box(17, dtype="float64")
    infos = {"success": discrete(), "position": box(2)} if dict_observations else None
    action = box(2 if dict_observations else 6)
    spaces: dict[str, Any] = {"observation": observation, "action": action, "info": infos}
    counted = {f"rewards_{name}": 0.5 for name in ("sum", "mean", "std", "max", "min")}
    made = (
        toy_episode(number, length, **spaces, seed=number, attributes=counted)
        for number in range(episodes)
    )
    return write_minari(folder, list(made), observation=observation, action=action)
