"""Minari folders from a stranger that are refused, with the whole sentence: lines of `golden/`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.formats.minari.conftest import (
    deep,
    edit_json,
    hdf5,
    nested_space,
    read,
    two,
    with_fields,
)
from tests.refusals import Refusals
from tests.toys.minari import ToyEpisode, box, toy_episode, toy_rows, write_minari

pytestmark = pytest.mark.usefixtures("bounded")
REFUSALS = Refusals.beside(__file__)
Write = Callable[[Path], Path]
"""Writes a dataset at a path."""


def check(kind: str, name: str, folder: Path, names: Mapping[object, str] | None = None) -> None:
    REFUSALS.check(kind, name, lambda: read(folder), {**(names or {}), folder.parent: "FOLDER"})


WORDS: dict[str, Any] = {
    "a list": [1],
    "an object": {"a": 1},
    "nonsense": "nonsense",
    "3.5": 3.5,
    "true": True,
    "half a character": "\ud800",
    "long": "x" * 100_000,
}
COUNTS = [-1, 10**30, 2**63, float("nan"), "3", [3]]
STRICT = ["total_steps", "total_episodes", "data_format", "observation_space", "action_space"]
FREE = ["env_spec", "eval_env_spec", "flatten_observation", "combined_datasets", "author", "minari_version"]  # fmt: skip
FIELDS = {
    **{f"{field} is {word}": {field: value} for field in STRICT for word, value in WORDS.items()},
    **{f"{field} is half a character": {field: "\ud800"} for field in FREE},
    **{
        f"{field} is {count!r}": {"total_steps": None, field: count}
        for field in ("total_steps", "total_episodes", "total_timesteps")
        for count in COUNTS
    },
    "total_timesteps is 3.5": {"total_steps": None, "total_timesteps": 3.5},
}


@REFUSALS.of("fields", FIELDS)
def test_fields(tmp_path: Path, name: str) -> None:
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 3)])
    check("fields", name, with_fields(folder, **FIELDS[name]))


@pytest.mark.parametrize("field", FREE)
def test_fields_of_any_type_that_are_kept(tmp_path: Path, field: str) -> None:
    for word, value in {**WORDS, "null": None}.items():
        if word != "half a character":
            folder = write_minari(tmp_path / f"{word}-v0", [toy_episode(0, 3)])
            assert read(with_fields(folder, **{field: value})).lengths.tolist() == [3]


TEXTS = {
    "deep lists": deep(100_000),
    "deep objects": '{"a":' * 100_000,
    "a field twice": '{"total_steps": 3, "total_steps": 3}',
    "half a character": '{"author": "\\ud800"}',
    "a long number": '{"n": ' + "9" * 100_000 + "}",
    "zeros": "\x00" * 100,
    "17 MiB": '{"a": 1' + " " * (17 << 20) + "}",
}


@REFUSALS.of("texts", TEXTS)
def test_texts(tmp_path: Path, name: str) -> None:
    for storage, place in (("hdf5", ""), ("arrow", ""), ("arrow", "0/")):
        folder = two(tmp_path / f"{storage}{place[:1]}-v0", storage)
        file = folder / "data" / f"{place}metadata.json"
        file.write_text(TEXTS[name])
        check("texts", name, folder, {file: "FILE"})


SPACES = {
    "deep Tuples": nested_space(1000),
    "deep lists": deep(100_000),
    **{
        space: space
        for space in (
            '{"type": ["Box"]}',
            '{"type": "Box", "shape": 3}',
            '{"type": "Box", "shape": [3.5], "dtype": "float32"}',
            '{"type": "Box", "shape": [-3], "dtype": "float32"}',
            '{"type": "Box", "shape": [1' + "0" * 30 + '], "dtype": "float32"}',
            '{"type": "Box", "shape": ["3"], "dtype": "float32"}',
            '{"type": "Box", "shape": [3], "dtype": 32}',
            '{"type": "MultiDiscrete"}',
            '{"type": "MultiDiscrete", "nvec": [[]]}',
            '{"type": "MultiBinary", "n": -1}',
            '{"type": "MultiBinary", "n": "3"}',
            '{"type": "Dict"}',
            '{"type": "Dict", "subspaces": 3}',
            '{"type": "Dict", "subspaces": {"a": null}}',
            '{"type": "Tuple", "subspaces": [3]}',
            '{"type": "Tuple", "subspaces": {"a": 3}}',
            '{"type": "Dict", "subspaces": {"a": 1, "a": 1}}',
        )
    },
}


@REFUSALS.of("spaces", SPACES)
def test_spaces(tmp_path: Path, name: str) -> None:
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 3)])
    check("spaces", name, with_fields(folder, observation_space=SPACES[name]))


OPTIONS_70_DEEP = '{"id": 1, "options": ' + deep(70) + "}"
EPISODES = {
    **{
        f"{field} is {value!r}": json.dumps({"id": 1, "total_steps": 2, field: value})
        for field, values in {
            "total_steps": [-1, 10**30, 2.0, "3", [3], {}, True],
            "seed": ["x", [0], {}, True],
        }.items()
        for value in values
    },
    "options are deep": OPTIONS_70_DEEP,
    "options have half a character": '{"options": {"a": "\\ud800"}}',
    **{text: text for text in ("[1]", "3", '"x"', "null")},
}


@REFUSALS.of("episodes", EPISODES)
def test_metadata_of_an_episode(tmp_path: Path, name: str) -> None:
    folder = two(tmp_path / "t-v0", "arrow")
    (folder / "data" / "1" / "metadata.json").write_text(EPISODES[name])
    check("episodes", name, folder)


KEPT: dict[str, list[Any]] = {
    "id": ["x", [0], {}, 10**40, 0.5, None, True],
    "options": ["x", 3, {"a": float("nan")}],
    "mood": ["x", [0], None, 10**40],
}


@pytest.mark.parametrize("field", KEPT)
def test_metadata_of_an_episode_that_are_kept(tmp_path: Path, field: str) -> None:
    folder = two(tmp_path / "t-v0", "arrow")
    for value in KEPT[field]:
        edit_json(folder / "data" / "1" / "metadata.json", **{field: value})
        assert read(folder).lengths.tolist() == [3, 2]


def file_changed(change: Callable[[Any], object], *episodes: ToyEpisode) -> Write:
    """Return what writes two episodes, or others, and changes the HDF5 file."""

    def write(path: Path) -> Path:
        folder = write_minari(path, episodes) if episodes else two(path)
        with hdf5(folder) as file:
            change(file)
        return folder

    return write


def one(episode: ToyEpisode, storage: str = "hdf5", **spaces: Any) -> Write:
    return lambda path: write_minari(path, [episode], storage, **spaces)


def without(name: str) -> Write:
    return file_changed(lambda file: file.pop(name))


def copied(name: str) -> Write:
    return file_changed(lambda file: file.copy("episode_1", name), *MATRICES)


def replaced(name: str, values: Callable[[Any], Any], *episodes: ToyEpisode) -> Write:
    """Return what writes a dataset of the file anew, as a function makes it of the old one."""

    def change(file: Any) -> None:
        new = values(file[name][()])
        del file[name]
        file[name] = new

    return file_changed(change, *episodes)


def of_rows(rows: int) -> Callable[[Any], Any]:
    return lambda old: np.zeros((rows, *old.shape[1:]), bool)


def reshaped(name: str, *shape: int) -> Write:
    return replaced(name, lambda old: old.reshape(shape), *MATRICES)


def seeded(storage: str, seed: Any) -> Write:
    def write(path: Path) -> Path:
        folder = write_minari(path, MATRICES, storage)
        if storage == "hdf5":
            with hdf5(folder) as file:
                file["episode_1"].attrs["seed"] = seed
        else:
            edit_json(folder / "data" / "1" / "metadata.json", seed=seed)
        return folder

    return write


def renamed(storage: str, name: str) -> Write:
    def write(path: Path) -> Path:
        folder = write_minari(path, MATRICES, storage)
        (folder / "data" / "1").rename(folder / "data" / name)
        return folder

    return write


def part_changed(storage: str, change: Callable[[Path], object]) -> Write:
    """Return what writes two episodes in tables, and changes the second one's."""

    def write(path: Path) -> Path:
        folder = two(path, storage)
        change(folder / "data" / "1" / f"part-0.{storage}")
        return folder

    return write


def turned(storage: str) -> Write:
    """Return what writes an episode whose column of nested lists states another shape itself."""

    def write(path: Path) -> Path:
        space = box(2, 3)
        made = [toy_episode(n, 6, observation=space) for n in range(3)]
        folder = write_minari(path, made, storage, observation=space)
        kind = pa.list_(pa.list_(pa.float32(), 2), 3)
        column = pa.array(toy_rows(space, 1, 7).transpose(0, 2, 1).tolist(), kind)
        part = folder / "data" / "1" / f"part-0.{storage}"
        if storage == "parquet":
            pq.write_table(pq.read_table(part).set_column(0, "observations", column), part)
        else:
            table = pa.ipc.open_file(part.read_bytes()).read_all()
            table = table.set_column(0, "observations", column)
            with pa.ipc.new_file(part, table.schema) as file:
                file.write_table(table)
        return folder

    return write


def of_another(storage: str) -> Write:
    """Return what writes an episode whose infos have another shape than the others'."""

    def write(path: Path) -> Path:
        folder = write_minari(path, MATRICES, storage)
        other = write_minari(path.with_name("o-v0"), [toy_episode(1, 6, info={"m": box(3, 2)})], storage)  # fmt: skip
        name = f"part-0.{storage}"
        (other / "data" / "0" / name).replace(folder / "data" / "1" / name)
        return folder

    return write


def damaged_object(path: Path) -> Path:
    """Write episodes one of which has an object that is there, and damaged."""
    folder = write_minari(path, [toy_episode(n, 3, info={"x": box()}) for n in range(40)])
    file = folder / "data" / "main_data.hdf5"
    with h5py.File(file) as opened:
        where = h5py.h5o.get_info(opened["episode_1/infos/x"].id).addr
    data = bytearray(file.read_bytes())
    data[where : where + 64] = bytes(64)
    file.write_bytes(bytes(data))
    return folder


def in_another_folder(path: Path) -> Path:
    folder, name = two(path), "../../secret.hdf5"
    with hdf5(folder) as file, h5py.File(folder / "data" / name, "w") as beside:
        file.copy("episode_1", beside)
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink(name, "/episode_1")
    return folder


def linked(path: Path) -> Path:
    folder = two(path, "arrow")
    (folder / "data" / "1").rename(path.with_name("old"))
    (folder / "data" / "1").symlink_to(path.with_name("old"))
    return folder


def endless(kind: pa.DataType) -> Write:
    """Return what writes a column of 10^12 rows without bytes."""

    def change(part: Path) -> None:
        column = pa.Array.from_buffers(kind, 10**12, [None])
        batch = pa.RecordBatch.from_arrays([column], names=["rewards"])
        options = pa.ipc.IpcWriteOptions(allow_64bit=True)
        with pa.ipc.new_file(part, batch.schema, options=options) as file:
            file.write_batch(batch)

    return part_changed("arrow", change)


def no_episodes(path: Path) -> Path:
    with h5py.File(path.with_name("main_data.hdf5"), "w") as file:
        file["observations"] = np.zeros((3, 2))
    return path.with_name("main_data.hdf5")


def empty(path: Path) -> Path:
    path.mkdir()
    return path


MATRICES = [toy_episode(n, 6, info={"m": box(2, 3)}) for n in range(3)]
PARTS = {"type": "Dict", "subspaces": {"a": box(2), "b": box(1)}}
UNEQUAL = {"a": toy_rows(box(2), 0, 4), "b": toy_rows(box(1), 0, 3)}
MISSING = {"a": toy_rows(box(2), 0, 4)}
TABLES = ("arrow", "parquet")
FOLDERS: dict[str, Write] = {
    **{
        f"episode {e} has no {section}": without(f"episode_{e}/{section}")
        for section in ("observations", "actions", "rewards", "terminations", "truncations")
        for e in (0, 1)
    },
    **{
        f"{rows} rows of {section}": replaced(f"episode_0/{section}", of_rows(rows))
        for section, rows in (
            ("observations", 2), ("observations", 5), ("actions", 2), ("truncations", 4)
        )
    },
    "leaves of unequal rows": one(toy_episode(0, 3, observations=UNEQUAL), observation=PARTS),
    "a leaf is missing": one(toy_episode(0, 3, observations=MISSING), observation=PARTS),
    "an episode of no step": lambda path: two(path, "hdf5", toy_episode(5, 0)),
    "an episode is missing": without("episode_1"),
    "a damaged object": damaged_object,
    "an episode in another folder": in_another_folder,
    "an episode that is a link": linked,
    **{
        f"{leaf} of shape {shape}": reshaped(f"episode_1/{leaf}", *shape)
        for leaf, shape in (
            ("actions", (2, 6)), ("actions", (12,)), ("rewards", (2, 3)), ("terminations", (3, 2)),
            ("observations", (3, 7)), ("observations", (21,)), ("infos/m", (7, 3, 2)),
            ("infos/m", (42,)),
        )
    },
    **{
        f"first {leaf} of another shape": reshaped(f"episode_0/{leaf}", -1, 1, 3)
        for leaf in ("actions", "rewards", "observations")
    },
    **{
        f"a second {twin}": copied(twin)
        for twin in ("episode_01", "episode_٠", f"episode_{'9' * 20}")
    },
    **{
        f"{storage}, a folder {name}": renamed(storage, name)
        for storage in TABLES
        for name in ("01", "9" * 20)
    },
    **{f"{storage}, turned observations": turned(storage) for storage in TABLES},
    **{f"{storage}, turned infos": of_another(storage) for storage in TABLES},
    **{
        f"{storage}, a seed {seed!r}": seeded(storage, seed)
        for storage in ("hdf5", "arrow")
        for seed in ("3", [1, 2])
    },
    "hdf5, a seed of fields": seeded("hdf5", np.array([(1, 2.0)], "i4,f4")[0]),
    "arrow, a seed {'a': 1}": seeded("arrow", {"a": 1}),
    **{
        f"{storage}, {name}": part_changed(storage, change)
        for storage in TABLES
        for name, change in {
            "other steps": lambda part: edit_json(part.with_name("metadata.json"), total_steps=9),
            "a web page": lambda part: part.write_text("<html>404</html>"),
            "no part": lambda part: part.unlink(),
        }.items()
    },
    **{
        f"{storage}, another space": one(toy_episode(0, 2), storage, observation=box(4))
        for storage in TABLES
    },
    "10^12 nulls": endless(pa.null()),
    "10^12 empty structs": endless(pa.struct([])),
    "nothing": lambda path: path,
    "an empty folder": empty,
    "a file of no episodes": no_episodes,
}  # fmt: skip


@REFUSALS.of("folders", FOLDERS)
def test_folders(tmp_path: Path, name: str) -> None:
    check("folders", name, FOLDERS[name](tmp_path / "t-v0"))
