"""Bad files get one of our errors, which names the file, the place, what was expected and found."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from offline_data.errors import FormatError, NotFoundError
from offline_data.testing.minari_toy import read_minari, write_minari
from offline_data.testing.minari_values import ToyEpisode, box, toy_episode, toy_rows

if TYPE_CHECKING:
    from pathlib import Path


def write(tmp_path: Path, storage: str = "hdf5", *more: ToyEpisode) -> Path:
    return write_minari(tmp_path / "t-v0", [toy_episode(0, 3), *more, toy_episode(1, 2)], storage)


def fails(folder: Path, *words: str) -> None:
    with pytest.raises(FormatError, match=".*".join(map(re.escape, words))):
        read_minari(folder)


@pytest.mark.parametrize(
    "section", ["observations", "actions", "rewards", "terminations", "truncations"]
)
@pytest.mark.parametrize("episode", [0, 1])
def test_missing_section(tmp_path: Path, section: str, episode: int) -> None:
    folder = write(tmp_path)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file[f"episode_{episode}/{section}"]
    fails(folder, "main_data.hdf5", f"episode_{episode}", section)


@pytest.mark.parametrize(
    ("section", "rows"),
    [("observations", 2), ("observations", 5), ("actions", 2), ("truncations", 4)],
)
def test_rows_that_do_not_add_up(tmp_path: Path, section: str, rows: int) -> None:
    folder = write(tmp_path)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        shape = file[f"episode_0/{section}"].shape
        del file[f"episode_0/{section}"]
        file[f"episode_0/{section}"] = np.zeros((rows, *shape[1:]), bool)
    expected = "expected 4" if section == "observations" else "expected 3"
    fails(folder, "main_data.hdf5", "episode_0", f"{rows} rows", section, expected)


def test_leaves_of_one_observation_that_differ_in_rows(tmp_path: Path) -> None:
    parts = {"a": box(2), "b": box(1)}
    nest = {"a": toy_rows(box(2), 0, 4), "b": toy_rows(box(1), 0, 3)}
    space = {"type": "Dict", "subspaces": parts}
    episode = toy_episode(0, 3, observations=nest)
    folder = write_minari(tmp_path / "t-v0", [episode], observation=space)
    fails(folder, "episode_0", "3 rows", "observations/b", "expected 4")


def test_rows_of_another_shape(tmp_path: Path) -> None:
    folder = write(tmp_path, "hdf5", toy_episode(5, 2, actions=toy_rows(box(3), 5, 2)))
    fails(folder, "episode_1/actions", "[3]", "expected [2]")


def test_a_leaf_that_the_space_declares_is_missing(tmp_path: Path) -> None:
    space = {"type": "Dict", "subspaces": {"a": box(2), "b": box(1)}}
    episode = toy_episode(0, 3, observations={"a": toy_rows(box(2), 0, 4)})
    folder = write_minari(tmp_path / "t-v0", [episode], observation=space)
    fails(folder, "episode_0", "observations/b", "found a")


def test_an_episode_without_a_step(tmp_path: Path) -> None:
    folder = write(tmp_path, "hdf5", toy_episode(5, 0))
    fails(folder, "episode_1", "no step")


def test_fewer_episodes_than_stated(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1"]
    fails(folder, "main_data.hdf5", "1 episodes", "expected 2")


@pytest.mark.parametrize("share", [0.3, 0.6, 0.97])
def test_hdf5_cut_short(tmp_path: Path, share: float) -> None:
    folder = write(tmp_path)
    file = folder / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
    fails(folder, "main_data.hdf5", "damaged or cut short")


@pytest.mark.parametrize("count", [2, 40])
def test_a_damaged_object_is_not_taken_for_a_missing_one(tmp_path: Path, count: int) -> None:
    episodes = [toy_episode(n, 3, info={"x": box()}) for n in range(count)]
    folder = write_minari(tmp_path / "t-v0", episodes)
    file = folder / "data" / "main_data.hdf5"
    with h5py.File(file) as opened:
        where = h5py.h5o.get_info(opened["episode_1/infos/x"].id).addr
    data = bytearray(file.read_bytes())
    data[where : where + 64] = bytes(64)
    file.write_bytes(bytes(data))
    fails(folder, "main_data.hdf5", "damaged")


def test_a_web_page_named_hdf5(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "data" / "main_data.hdf5").write_text("<!DOCTYPE html><title>404</title>")
    fails(folder, "main_data.hdf5", "web page")


def test_an_episode_that_lies_in_another_folder(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink("../../secret.hdf5", "/episode_1")
    fails(folder, "episode_1", "secret.hdf5", "another folder")


def test_an_episode_in_a_file_beside_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with (
        h5py.File(folder / "data" / "main_data.hdf5", "a") as file,
        h5py.File(folder / "data" / "additional_data_0.hdf5", "w") as beside,
    ):
        file.copy("episode_1", beside)
        del file["episode_1"]
        file["episode_1"] = h5py.ExternalLink("additional_data_0.hdf5", "/episode_1")
    assert read_minari(folder).lengths.tolist() == [3, 2]


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"data_format": "zarr"}', "<html>no</html>"])
def test_bad_metadata(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path)
    (folder / "data" / "metadata.json").write_text(text)
    fails(folder, "metadata.json")


@pytest.mark.parametrize(
    "space", ["{", '{"shape": [3]}', '{"type": "Box"}', '{"type": "Dict", "subspaces": [1]}']
)
def test_bad_space(tmp_path: Path, space: str) -> None:
    folder = write(tmp_path)
    file = folder / "data" / "metadata.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "observation_space": space}))
    fails(folder, "metadata.json")


@pytest.mark.parametrize("storage", ["arrow", "parquet"])
class TestTables:
    def part(self, folder: Path, episode: int, storage: str) -> Path:
        return folder / "data" / str(episode) / f"part-0.{storage}"

    def test_cut_short(self, tmp_path: Path, storage: str) -> None:
        folder = write(tmp_path, storage)
        part = self.part(folder, 1, storage)
        part.write_bytes(part.read_bytes()[:-40])
        fails(folder, f"1/{part.name}", "damaged or cut short")

    def test_a_web_page(self, tmp_path: Path, storage: str) -> None:
        folder = write(tmp_path, storage)
        self.part(folder, 1, storage).write_text("<html>404</html>")
        fails(folder, f"1/part-0.{storage}", "web page")

    def test_missing_part(self, tmp_path: Path, storage: str) -> None:
        folder = write(tmp_path, storage)
        self.part(folder, 1, storage).unlink()
        fails(folder, "data/1", "no part-0")

    def test_rows_that_do_not_add_up(self, tmp_path: Path, storage: str) -> None:
        folder = write(tmp_path, storage)
        (folder / "data" / "1" / "metadata.json").write_text('{"id": 1, "total_steps": 9}')
        fails(folder, "data/1", "3 rows", "total_steps is 9", "expected 2")

    def test_another_number_of_values_than_the_space_has(
        self, tmp_path: Path, storage: str
    ) -> None:
        folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 2)], storage, observation=box(4))
        fails(folder, "data/0", "observations", "3 numbers", "expected [4]")


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing is there"):
        read_minari(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    fails(tmp_path / "empty", "empty", "not a Minari dataset", "metadata.json")


def test_a_flat_hdf5_is_told_apart(tmp_path: Path) -> None:
    file = tmp_path / "main_data.hdf5"
    with h5py.File(file, "w") as opened:
        opened["observations"] = np.zeros((3, 2))
    with pytest.raises(FormatError, match="0 episodes") as caught:
        read_minari(file)
    assert "--from d4rl" in str(caught.value.hint)
