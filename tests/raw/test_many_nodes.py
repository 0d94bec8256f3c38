"""Files with more groups and arrays than any count of theirs: limits are in bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.formats.d3rlpy.source import D3rlpy
from offline_data.pipeline.ingest import Options, convert
from offline_data.raw import hdf5_tree, torch_file, zarr_arrays
from offline_data.raw.arrays import open_arrays
from offline_data.raw.zarr_arrays import open_zarr
from offline_data.store.reader import open_reader
from tests.pipeline.ingest.here import conversions_start_no_process
from tests.slow import slow_but
from tests.toys.files import write_zarr
from tests.toys.katakomba import toy_game, write_katakomba
from tests.toys.minari import box, read_minari, toy_episode, toy_rows, write_minari

__all__ = ["conversions_start_no_process"]

COUNT = 10_500
"""More than the 10,000 that were allowed; links of HDF5 are written at once, datasets are not."""


def link(group: Any, names: Any, target: Any) -> None:
    for name in names:
        group[name] = target


def write_d3rlpy(path: Path, episodes: int) -> Path:
    with h5py.File(path, "w") as file:
        file["columns"] = np.array([b"observations", b"actions", b"rewards"])
        file["num_episodes"] = episodes
        file["o"], file["a"] = np.arange(6, dtype="f4").reshape(2, 3), np.zeros((2, 1), "i8")
        file["r"], file["t"] = np.ones((2, 1), "f4"), True
        for n in range(episodes):
            for name, of in (("observations", "o"), ("actions", "a"), ("rewards", "r")):
                file[f"{name}_{n}"] = file[of]
            file[f"terminated_{n}"] = file["t"]
        for name in "oart":
            del file[name]
    return path


@pytest.mark.slow
def test_d3rlpy_with_many_episodes(tmp_path: Path, settings: Settings) -> None:
    path = write_d3rlpy(tmp_path / "x.h5", 2_600)
    assert D3rlpy().accepts(path) == 2
    stored = convert(path, "x", settings, Options())
    assert (stored.episodes, stored.transitions) == (2_600, 5_200)
    rows = open_reader(stored.path).transitions_at(np.array([0, 5_199]))["observation",]
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.slow
def test_d3rlpy_files_of_many_episodes_are_written(tmp_path: Path, settings: Settings) -> None:
    ends = np.ones(2_600, bool)
    arrays: Any = {"observations": np.ones((2_600, 1)), "actions": np.ones((2_600, 1))}
    arrays |= {"rewards": np.arange(2_600.0), "terminals": ends}
    stored = offline_data.convert(arrays, "x", root=settings.root, progress=False)
    out = offline_data.export(stored.path, tmp_path / "out.h5", to="d3rlpy", progress=False)
    assert out.compared > 0
    with h5py.File(out.path) as file:
        assert file["rewards_2599"][()].tolist() == [[2599.0]]


def flat(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["x0"] = np.arange(3.0)
        link(file, [f"x{n}" for n in range(1, COUNT)], file["x0"])
    return path


def grouped(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["ep_0/x"] = np.arange(3.0)
        for n in range(1, COUNT):
            file.create_group(f"ep_{n}")["x"] = file["ep_0/x"]
    return path


def wide(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["ep_0/x0"] = np.arange(3.0)
        link(file["ep_0"], [f"x{n}" for n in range(1, COUNT)], file["ep_0/x0"])
    return path


def tensors(path: Path) -> Path:
    torch.save([1.5] * 110_000, path)
    return path


KINDS: dict[str, tuple[str, Callable[[Path], Path], int]] = {
    "flat": ("x.h5", flat, COUNT),
    "grouped": ("x.h5", grouped, COUNT),
    "wide": ("x.h5", wide, COUNT),
    "tensors": ("x.pt", tensors, 110_000),
}


@pytest.mark.parametrize("kind", slow_but({"tensors"}.__contains__, KINDS))
def test_arrays_of_a_file(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, write, count = KINDS[kind]
    path = write(tmp_path / name)
    with open_arrays(path) as arrays:
        assert len(arrays.columns) == count
        last = [*arrays.columns][-1]
        assert arrays.read(last).tolist() == ([1.5] if kind == "tensors" else [0, 1, 2])
    if kind == "wide":
        with open_arrays(path) as arrays, arrays.below("ep_0") as below:
            assert len(below.columns) == COUNT
    monkeypatch.setattr(hdf5_tree, "NAMES", 1 << 20)
    monkeypatch.setattr(torch_file, "_NAMES", 1 << 20)
    said = r"names that take more than 1\.0 MiB of memory"
    with pytest.raises(FormatError, match=said), open_arrays(path) as arrays:
        len(arrays.columns)


@pytest.mark.parametrize("section", ["infos", "infos/deep"])
def test_a_minari_episode_with_many_infos(
    tmp_path: Path, section: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = write_minari(tmp_path / "raw-v0", [toy_episode(0, 2, infos={"x": toy_rows(box(), 0, 3)})])
    with h5py.File(raw / "data" / "main_data.hdf5", "a") as file:
        link(
            file["episode_0"].require_group(section),
            [f"y{n}" for n in range(300)],
            file["episode_0/infos/x"],
        )
    monkeypatch.setattr(hdf5_tree, "OPEN", 400 << 14)
    assert len(read_minari(raw).observations) == 302
    monkeypatch.setattr(hdf5_tree, "OPEN", 200 << 14)
    with pytest.raises(FormatError, match=r"datasets that take more than 3\.1 MiB of memory"):
        read_minari(raw)


def test_groups_within_groups_that_are_linked_many_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2^30 paths to one leaf: names of the file, which enters each group once, are few."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["g0/x"] = np.zeros(3)
        for n in range(1, 30):
            group = file.create_group(f"g{n}")
            group["a"] = group["b"] = file[f"g{n - 1}"]
        assert len(hdf5_tree.datasets_in(file)[0]) == 1
        monkeypatch.setattr(hdf5_tree, "OPEN", 64 << 20)
        with pytest.raises(FormatError, match=r"take more than 64\.0 MiB of memory"):
            for _ in hdf5_tree.walk(file["g29"].id):
                pass


def test_a_katakomba_game_has_no_such_limit(tmp_path: Path) -> None:
    path = write_katakomba(tmp_path / "x.hdf5", {0: toy_game(0, 4)})
    with h5py.File(path, "a") as file:
        link(file, [str(n) for n in range(1, COUNT)], file["0"])
        assert len(hdf5_tree.members(file.id)) == COUNT
        assert len(hdf5_tree.datasets_in(file)[0]) == len(file["0"])


def test_a_zarr_folder_of_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_zarr(tmp_path / "x.zarr", {"action": np.ones((400, 2))})  # 200 chunks
    with open_zarr(path) as arrays:
        assert arrays["action"].shape == (400, 2)
    monkeypatch.setattr(zarr_arrays, "_NAMES", 1 << 14)
    with pytest.raises(FormatError, match=r"take more than 16\.0 KiB of memory"), open_zarr(path):
        pass
