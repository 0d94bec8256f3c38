"""Toy Minari datasets in every storage, written by hand after Minari's formats.

Minari itself is not needed, so that a reader can be tested against files that its present version
would not write: older metadata, episodes without a final observation, wrong lengths.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.sources.minari import Minari
from offline_data.testing.batches import concatenate
from offline_data.testing.minari_values import ToyEpisode, box, discrete, toy_episode

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from offline_data.episodes import EpisodeBatch
    from offline_data.testing.minari_values import Nest, Space

STORAGES = ("hdf5", "arrow", "parquet")


def write_minari(
    folder: Path,
    episodes: Sequence[ToyEpisode],
    storage: str = "hdf5",
    *,
    observation: Space | None = None,
    action: Space | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """Write a dataset and return its folder.

    Args:
        folder: A folder that does not exist yet; `data` is made in it.
        episodes: What to write.
        storage: One of `STORAGES`.
        observation: Space of the observations; three floats where not given.
        action: Space of the actions; two floats where not given.
        metadata: Fields to add to the metadata; None as a value leaves a field out.
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
    """Write the HDF5 file alone; `attributes` are those of the file (metadata until 0.4)."""
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
        fields = [_field(name, parts[name], value[name]) for name in parts]
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
    """Return a field that states the shape of its rows, as Minari does for infos."""
    import pyarrow as pa

    shape = value.shape[1:] if isinstance(value, np.ndarray) else ()
    stated = {"shape": ",".join(str(length) for length in shape)} if shape else None
    return pa.field(name, array.type, metadata=stated)


def read_minari(path: Path, budget: int = 1 << 40) -> EpisodeBatch:
    """Read a whole dataset through the adapter, in parts of about `budget` bytes."""
    source = Minari()
    dataset = source.open(source.release_of(path, "toy/dataset-v0"), path)
    return concatenate([dataset.read(part) for part in dataset.parts(budget)])


def write_minari_hdf5(
    folder: Path, episodes: int, length: int, *, dict_observations: bool = False
) -> Path:
    """Write a dataset of equal episodes for a benchmark and return its folder.

    Args:
        folder: A folder that does not exist yet.
        episodes: Number of episodes.
        length: Steps of each.
        dict_observations: Three leaves of observations and two of infos (a maze with a goal)
            instead of one of 17 numbers.
    """
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
