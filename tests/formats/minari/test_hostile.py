"""Minari folders from a stranger: right data or one clear error, never a hang, never a surprise."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_data.base.errors import FormatError, NotFoundError
from offline_data.raw import arrow
from offline_data_cli.main import main
from tests.toys.minari import (
    ToyEpisode,
    box,
    read_minari,
    toy_episode,
    toy_rows,
    write_minari,
)

Ran = Callable[..., tuple[int, str]]
MEMORY = 3 << 30


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """Two minutes and some more memory for each test."""

    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def two(folder: Path, storage: str = "hdf5", *between: ToyEpisode) -> Path:
    """Write episodes of three and two steps."""
    episodes = [toy_episode(0, 3), *between, toy_episode(1, 2)]
    return write_minari(folder, episodes, storage)


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def nested_space(depth: int) -> str:
    return '{"type": "Tuple", "subspaces": [' * depth + json.dumps(box(3)) + "]}" * depth


def with_fields(folder: Path, place: str = "metadata.json", **fields: Any) -> Path:
    path = folder / "data" / place
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return folder


WORDS: dict[str, Any] = {
    "null": None,
    "list": [1],
    "object": {"a": 1},
    "text": "nonsense",
    "number": 3.5,
    "true": True,
    "surrogate": "\ud800",
    "long": "x" * 100_000,
}
STRICT = ["total_steps", "total_episodes", "data_format", "observation_space", "action_space"]
FREE = ["env_spec", "eval_env_spec", "flatten_observation", "combined_datasets", "author"]


@pytest.mark.parametrize("field", [*STRICT, *FREE, "minari_version"])
def test_fields_of_any_type(tmp_path: Path, parse: Ran, field: str) -> None:
    for word, value in WORDS.items():
        folder = write_minari(tmp_path / f"{word}-v0", [toy_episode(0, 3)])
        code, said = parse(with_fields(folder, **{field: value}))
        strict = field in STRICT and value is not None
        assert code == (5 if strict or word == "surrogate" else 0), (word, said)
        if code:
            assert "metadata.json" in said
            assert len(said) < 2000


@pytest.mark.parametrize("total", [-1, 10**30, 2**63, float("nan"), 3.5, "3", [3]])
@pytest.mark.parametrize("field", ["total_steps", "total_episodes", "total_timesteps"])
def test_totals_that_are_no_counts(tmp_path: Path, parse: Ran, field: str, total: Any) -> None:
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 3)], metadata={"total_steps": None})
    code, said = parse(with_fields(folder, **{field: total}))
    assert code == 5
    assert f"{field} of {folder}" in said


@pytest.mark.parametrize(
    "text",
    [
        deep(100_000),
        '{"a":' * 100_000,
        '{"total_steps": 3, "total_steps": 3}',
        '{"author": "\\ud800"}',
        '{"n": ' + "9" * 100_000 + "}",
        "\x00" * 100,
        '{"a": 1' + " " * (17 << 20) + "}",
    ],
    ids=range(7),
)
def test_metadata_that_are_no_json(tmp_path: Path, parse: Ran, text: str) -> None:
    for storage, place in (("hdf5", ""), ("arrow", ""), ("arrow", "0/")):
        folder = two(tmp_path / f"{storage}{place[:1]}-v0", storage)
        (folder / "data" / f"{place}metadata.json").write_text(text)
        code, said = parse(folder)
        assert code == 5
        assert f"data/{place}metadata.json" in said


@pytest.mark.parametrize(
    "space",
    [
        nested_space(1000),
        deep(100_000),
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
    ],
    ids=range(19),
)
def test_spaces_that_are_none(tmp_path: Path, parse: Ran, space: str) -> None:
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 3)])
    code, said = parse(with_fields(folder, observation_space=space))
    assert code == 5
    assert "metadata.json" in said or "data/0" in said


def test_unknown_spaces_declare_nothing(tmp_path: Path, parse: Ran) -> None:
    for number, space in enumerate(['{"type": "Graph"}', '{"type": "Box2", "shape": [9]}']):
        folder = write_minari(tmp_path / f"t{number}-v0", [toy_episode(0, 3)], "arrow")
        assert parse(with_fields(folder, observation_space=space))[0] == 0


EPISODE: dict[str, list[Any]] = {
    "total_steps": [-1, 10**30, 2.0, "3", [3], {}, True],
    "id": ["x", [0], {}, 10**40, 0.5, None, True],
    "seed": ["x", [0], {}, True],
    "options": [deep, "x", 3, {"a": "\ud800"}, {"a": float("nan")}],
    "mood": ["x", [0], None, 10**40],
}


@pytest.mark.parametrize("field", EPISODE)
def test_metadata_of_an_episode(tmp_path: Path, parse: Ran, field: str) -> None:
    for number, value in enumerate(EPISODE[field]):
        folder = two(tmp_path / f"t{number}-v0", "arrow")
        path = folder / "data" / "1" / "metadata.json"
        text = json.dumps({**json.loads(path.read_text()), field: None if value is deep else value})
        path.write_text(text.replace("null", deep(70)) if value is deep else text)
        code, said = parse(folder)
        kept = field in {"id", "mood"} or (field == "options" and number not in {0, 3})
        assert code == (0 if kept else 5), (value, said)
        assert not code or "data/1" in said
    for text in ("[1]", "3", '"x"', "null"):
        path.write_text(text)
        code, said = parse(folder)
        assert code == 5
        assert "data/1/metadata.json" in said


def odd_files(path: Path, elsewhere: Path) -> Iterator[str]:
    """Put things that are no plain files where a file is, one after the other."""
    kept = path.read_bytes()
    elsewhere.write_bytes(kept)
    links: dict[str, str | Path] = {
        "device": "/dev/zero",
        "away": elsewhere,
        "ring": path,
        "nowhere": "/nowhere",
    }
    for kind in ("fifo", "folder", *links):
        path.unlink()
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(links[kind])
        yield kind
        path.rmdir() if kind == "folder" else path.unlink()
        path.write_bytes(kept)


@pytest.mark.parametrize(
    ("storage", "name"),
    [
        ("hdf5", "data/metadata.json"),
        ("hdf5", "data/main_data.hdf5"),
        ("arrow", "data/metadata.json"),
        ("arrow", "data/1/metadata.json"),
        ("arrow", "data/1/part-0.arrow"),
        ("parquet", "data/1/part-0.parquet"),
    ],
)
def test_what_is_no_plain_file(tmp_path: Path, parse: Ran, storage: str, name: str) -> None:
    folder = two(tmp_path / "t-v0", storage)
    for kind in odd_files(folder / name, tmp_path / "elsewhere"):
        code, said = parse(folder)
        if kind == "away" and "data/1" not in name:  # a user may keep the one large file elsewhere
            assert code == 0
            continue
        assert code in {3, 5}, (kind, said)
        assert "data" in said


def test_an_episode_that_is_a_link_to_another_folder(tmp_path: Path, parse: Ran) -> None:
    folder = two(tmp_path / "t-v0", "arrow")
    (tmp_path / "link-v0").symlink_to(folder)
    assert parse(tmp_path / "link-v0")[0] == 0
    (folder / "data" / "1").rename(tmp_path / "old")
    (folder / "data" / "1").symlink_to(tmp_path / "old")
    code, said = parse(folder)
    assert code == 5
    assert "is a link to another folder" in said


@pytest.mark.parametrize("kind", ["run", "text"])
def test_parquet_that_unpacks_without_end(
    tmp_path: Path, parse: Ran, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "_SMALL", 1 << 20)
    folder = two(tmp_path / "t-v0", "parquet")
    part = folder / "data" / "0" / "part-0.parquet"
    rows, word = 1000, pa.array(["x" * 10_000])
    if kind == "run":
        rows, word = 10_000, pa.array([[0.5] * 64], pa.list_(pa.float64(), 64))
    with pq.ParquetWriter(part, pa.schema({"rewards": word.type}), compression="zstd") as file:
        block = pa.table({"rewards": word.take(pa.array(np.zeros(rows, int)))})
        for _ in range(20):
            file.write_table(block)
    code, said = parse(folder)
    assert code == 5
    assert "unpacks to" in said
    assert "data/0/part-0.parquet" in said


@pytest.mark.parametrize("column", [pa.nulls(1), pa.array([{}], pa.struct([]))])
def test_rows_without_bytes(tmp_path: Path, parse: Ran, column: Any) -> None:
    folder = two(tmp_path / "t-v0", "arrow")
    endless = pa.Array.from_buffers(column.type, 10**12, [None])
    batch = pa.RecordBatch.from_arrays([endless], names=["rewards"])
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)
    part = folder / "data" / "0" / "part-0.arrow"
    with pa.ipc.new_file(part, batch.schema, options=options) as file:
        file.write_batch(batch)
    code, said = parse(folder)
    assert code == 5
    assert "part-0.arrow" in said


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("storage", ["arrow", "parquet"])
def test_flipped_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str], storage: str) -> None:
    """By the command, as pyarrow may end the process: nothing is half-made, no error unexpected."""
    episodes = [toy_episode(0, 9, info={"s": {"type": "Text"}, "m": box(2, 3)})]
    folder = write_minari(tmp_path / "t-v0", episodes, storage)
    part = next(folder.rglob("part-0.*"))
    sound, random = part.read_bytes(), np.random.default_rng(0)
    for number in range(3):
        data = bytearray(sound)
        for at in random.integers(0, len(data), 3):
            data[at] = random.integers(0, 256)
        part.write_bytes(data)
        root = tmp_path / f"root{number}"
        code = main(["--root", str(root), "convert", str(folder), "it", "--from", "minari"])
        said = capsys.readouterr().err
        assert code in {0, 5}
        assert code != 5 or "data" in said
        assert code == 0 or not list(root.rglob("manifest.json"))
        assert "unexpected" not in said
        assert "Traceback" not in said


def test_attributes_of_the_file(tmp_path: Path, parse: Ran) -> None:
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 3)])
    (folder / "data" / "metadata.json").unlink()
    path = folder / "data" / "main_data.hdf5"
    values: list[Any] = [
        b"\xff\xfe",
        np.arange(10**4),
        np.array([(1, 2.0)], "i4,f4"),
        h5py.Empty("f8"),
        h5py.Reference(),
        np.array(["a", "b"], h5py.string_dtype()),
        1 + 2j,
        float("nan"),
    ]
    for name in (
        "author",
        "total_steps",
        "observation_space",
        "data_format",
        "env_spec",
        "flatten_action",
    ):
        for value in values:
            with h5py.File(path, "a") as file:
                file.attrs[name] = value
            code, said = parse(folder)
            assert code in {0, 5}, (name, value, said)
            assert code != 5 or "main_data.hdf5" in said
            with h5py.File(path, "a") as file:
                del file.attrs[name]


@pytest.mark.parametrize("name", ["x" * 300, "a/" + "é" * 200, "x" * 5000])
def test_names_longer_than_a_file_systems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    command = ["--root", str(tmp_path / "root"), "--offline"]
    path = str(tmp_path / name)
    assert main([*command, "convert", path, "it", "--from", "minari"]) in {2, 3, 5}
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    assert main([*command, "download", f"minari:{name}"]) in {2, 3, 6}


@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
def test_leaves_with_long_names(tmp_path: Path, parse: Ran, storage: str) -> None:
    info = {"n" * 300: box(2), "ok": box()}
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 3, info=info)], storage)
    assert parse(folder)[0] == 0


def test_two_leaves_of_one_name(tmp_path: Path) -> None:
    info = {"a/b": box(), "a": {"type": "Dict", "subspaces": {"b": box(2)}}}
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 3, info=info)], "arrow")
    (dropped,) = read_minari(folder).dropped
    assert dropped.key.startswith("infos/a")


def fails(folder: Path, *words: str) -> None:
    with pytest.raises(FormatError, match=".*".join(map(re.escape, words))):
        read_minari(folder)


def hdf5(folder: Path) -> h5py.File:
    return h5py.File(folder / "data" / "main_data.hdf5", "a")


@pytest.mark.parametrize(
    "section", ["observations", "actions", "rewards", "terminations", "truncations"]
)
@pytest.mark.parametrize("episode", [0, 1])
def test_missing_section(tmp_path: Path, section: str, episode: int) -> None:
    folder = two(tmp_path / "t-v0")
    with hdf5(folder) as file:
        del file[f"episode_{episode}/{section}"]
    fails(folder, "main_data.hdf5", f"episode_{episode}", section)


@pytest.mark.parametrize(
    ("section", "rows", "expected"),
    [("observations", 2, 4), ("observations", 5, 4), ("actions", 2, 3), ("truncations", 4, 3)],
)
def test_rows_that_do_not_add_up(tmp_path: Path, section: str, rows: int, expected: int) -> None:
    folder = two(tmp_path / "t-v0")
    with hdf5(folder) as file:
        shape = file[f"episode_0/{section}"].shape
        del file[f"episode_0/{section}"]
        file[f"episode_0/{section}"] = np.zeros((rows, *shape[1:]), bool)
    fails(folder, "main_data.hdf5", "episode_0", f"{rows} rows", section, f"expected {expected}")


@pytest.mark.parametrize(
    ("leaves", "words"),
    [
        ({"a": toy_rows(box(2), 0, 4), "b": toy_rows(box(1), 0, 3)}, "3 rows/b/expected 4"),
        ({"a": toy_rows(box(2), 0, 4)}, "observations/b/found a"),
    ],
)
def test_leaves_of_one_observation(tmp_path: Path, leaves: Any, words: str) -> None:
    """They differ in rows, or one that the space declares is missing."""
    space = {"type": "Dict", "subspaces": {"a": box(2), "b": box(1)}}
    episode = toy_episode(0, 3, observations=leaves)
    folder = write_minari(tmp_path / "t-v0", [episode], observation=space)
    fails(folder, "episode_0", *words.split("/"))


def test_episodes_that_are_not_as_stated(tmp_path: Path) -> None:
    fails(two(tmp_path / "a-v0", "hdf5", toy_episode(5, 0)), "episode_1", "no step")
    folder = two(tmp_path / "b-v0")
    with hdf5(folder) as file:
        del file["episode_1"]
    fails(folder, "main_data.hdf5", "1 episode;", "expected 2")


def test_a_damaged_object_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    episodes = [toy_episode(n, 3, info={"x": box()}) for n in range(40)]
    folder = write_minari(tmp_path / "t-v0", episodes)
    file = folder / "data" / "main_data.hdf5"
    with h5py.File(file) as opened:
        where = h5py.h5o.get_info(opened["episode_1/infos/x"].id).addr
    data = bytearray(file.read_bytes())
    data[where : where + 64] = bytes(64)
    file.write_bytes(bytes(data))
    fails(folder, "main_data.hdf5", "damaged")


@pytest.mark.parametrize("name", ["additional_data_0.hdf5", "../../secret.hdf5"])
def test_an_episode_in_another_file(tmp_path: Path, name: str) -> None:
    """It is read beside the file, as Minari writes it, and nowhere else."""
    folder = two(tmp_path / "t-v0")
    with hdf5(folder) as file, h5py.File(folder / "data" / name, "w") as beside:
        file.copy("episode_1", beside)
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink(name, "/episode_1")
    if name.startswith(".."):
        fails(folder, "episode_1", "secret.hdf5", "another folder")
    else:
        assert read_minari(folder).lengths.tolist() == [3, 2]


@pytest.mark.parametrize("storage", ["arrow", "parquet"])
def test_tables(tmp_path: Path, storage: str) -> None:
    folder = two(tmp_path / "t-v0", storage)
    with_fields(folder, "1/metadata.json", total_steps=9)
    fails(folder, "data/1", "3 rows", "total_steps is 9", "expected 2")
    part = folder / "data" / "1" / f"part-0.{storage}"
    part.write_text("<html>404</html>")
    fails(folder, f"1/part-0.{storage}", "web page")
    part.unlink()
    fails(folder, "data/1", "no part-0")
    wide = write_minari(tmp_path / "w-v0", [toy_episode(0, 2)], storage, observation=box(4))
    fails(wide, "data/0", "observations", "3 numbers", "expected [4]")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing is there"):
        read_minari(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    fails(tmp_path / "empty", "empty", "not a Minari dataset", "metadata.json")
    with h5py.File(tmp_path / "main_data.hdf5", "w") as file:
        file["observations"] = np.zeros((3, 2))
    with pytest.raises(FormatError, match="0 episodes") as caught:
        read_minari(tmp_path / "main_data.hdf5")
    assert "--from d4rl" in str(caught.value.shell_hint)
