"""Minari folders from a stranger: right data or one clear error, never a hang, never a surprise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_data.raw import arrow
from offline_data_cli.main import main
from tests.formats.minari.conftest import hdf5, two, with_fields
from tests.toys.minari import box, read_minari, toy_episode, write_minari

Ran = Callable[..., tuple[int, str]]
pytestmark = pytest.mark.usefixtures("bounded")


def test_unknown_spaces_declare_nothing(tmp_path: Path, parse: Ran) -> None:
    for number, space in enumerate(['{"type": "Graph"}', '{"type": "Box2", "shape": [9]}']):
        folder = write_minari(tmp_path / f"t{number}-v0", [toy_episode(0, 3)], "arrow")
        assert parse(with_fields(folder, observation_space=space))[0] == 0


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


@pytest.mark.slow
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


def test_an_episode_in_another_file(tmp_path: Path) -> None:
    """It is read beside the file, as Minari writes it."""
    folder, name = two(tmp_path / "t-v0"), "additional_data_0.hdf5"
    with hdf5(folder) as file, h5py.File(folder / "data" / name, "w") as beside:
        file.copy("episode_1", beside)
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink(name, "/episode_1")
    assert read_minari(folder).lengths.tolist() == [3, 2]


def test_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "link-v0").symlink_to(two(tmp_path / "t-v0", "arrow"))
    assert read_minari(tmp_path / "link-v0").lengths.tolist() == [3, 2]
