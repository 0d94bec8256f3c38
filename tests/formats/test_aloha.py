"""ALOHA: every leaf of every row against h5py and Pillow, for each way to store images."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.formats.aloha import Aloha
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.aloha import CAMERAS, JOINTS, LENGTHS, toy_episode, write_aloha, write_episode

ORDER = ("episode_0.hdf5", "episode_2.hdf5", "episode_10.hdf5")
"""By number: as text, 10 comes before 2."""


class TestAloha(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        folder = write_aloha(tmp_path / "raw", "padded")
        return SourceCase(Aloha(), Aloha().release_of(folder, "x"), folder)


def stored(path: Path, settings: Settings, **options: Any) -> DatasetReader:
    return open_reader(convert(path, "toy", settings, Options(audit="all", **options)).path)


def read_rows(files: list[Path], name: str) -> Any:
    """Return an array of all files, images as pixels."""
    found: list[Any] = []
    for path in files:
        with h5py.File(path) as file:
            rows = list(file[name])
        encoded = "/images/" in name and rows[0].ndim == 1
        found += (
            [np.asarray(Image.open(io.BytesIO(r.tobytes()))) for r in rows] if encoded else rows
        )
    return np.array(found)


@pytest.mark.parametrize("mobile", [False, True])
@pytest.mark.parametrize("images", ["raw", "padded", "ragged"])
def test_every_leaf_of_every_row(
    tmp_path: Path, images: str, mobile: bool, settings: Settings
) -> None:
    folder = write_aloha(tmp_path / "task", images, mobile=mobile)
    assert source_accepting(folder).name == "aloha"
    reader = stored(folder, settings)
    assert reader.lengths.tolist() == list(LENGTHS)
    table = reader.transitions_at(np.arange(reader.transitions))
    files = [folder / name for name in ORDER]
    expected: dict[tuple[str, ...], str] = {
        ("action",): "action",
        **{("observation", name): f"observations/{name}" for name in ("qpos", "qvel", "effort")},
        **{("observation", "images", one): f"observations/images/{one}" for one in CAMERAS},
        **({("extra", "base_action"): "base_action"} if mobile else {}),
    }
    for key, name in expected.items():
        values = read_rows(files, name)
        assert table[key].dtype == values.dtype, key
        np.testing.assert_array_equal(np.asarray(table[key]), values, err_msg=str(key))
    last = np.isin(np.arange(sum(LENGTHS)), np.cumsum(LENGTHS) - 1)
    assert table["next", "truncated"][:, 0].tolist() == last.tolist()
    assert not table["next", "terminated"].any()
    assert not np.asarray(reader.episodes["final_observation",]).any()
    leaves = {leaf.key for leaf in reader.manifest.tables["steps"].leaves}
    assert ("next", "reward") not in leaves
    encodings = {leaf.encoding for leaf in reader.manifest.tables["observations"].leaves}
    assert ("jpeg" in encodings) == (images != "raw")
    dropped = {one.key: one.reason for one in reader.manifest.dropped_leaves}
    assert set(dropped) == ({"compress_len"} if images == "padded" else set())
    assert any("ACT trains" in note for note in reader.manifest.notes)


def test_a_single_file(tmp_path: Path, settings: Settings) -> None:
    folder = write_aloha(tmp_path / "task")
    path = folder / ORDER[2]
    assert source_accepting(path).name == "aloha"
    reader = stored(path, settings)
    assert reader.lengths.tolist() == [LENGTHS[2]]
    table = reader.transitions_at(np.arange(LENGTHS[2]))
    np.testing.assert_array_equal(table["action",], read_rows([path], "action"))


def test_as_many_steps_as_cameras(tmp_path: Path, settings: Settings) -> None:
    """`compress_len` then has as many rows as the actions, and is not one of their features."""
    arrays = toy_episode(0, len(CAMERAS))
    reader = stored(write_episode(tmp_path / "episode_0.hdf5", arrays, "padded"), settings)
    assert "extra" not in {leaf.key[0] for leaf in reader.manifest.tables["steps"].leaves}
    assert [one.key for one in reader.manifest.dropped_leaves] == ["compress_len"]


def test_bytes_of_images_are_those_of_the_file(tmp_path: Path, settings: Settings) -> None:
    """Also where `compress_len`, which is not needed, is larger than the rows."""
    folder = write_aloha(tmp_path / "task", "padded")
    files = []
    for name in ORDER:
        with h5py.File(folder / name, "a") as file:
            sizes = file["compress_len"][0].astype(int)
            rows = file[f"observations/images/{CAMERAS[0]}"]
            files += [row[:n].tobytes() for row, n in zip(rows, sizes, strict=True)]
            file["compress_len"][...] = 1e9
    reader = stored(folder, settings)
    column: Any = reader.episode_batch(0, 3).observations["observation", "images", CAMERAS[0]]
    inside = np.delete(np.arange(sum(LENGTHS) + 3), np.cumsum(np.array(LENGTHS) + 1) - 1)
    assert column[inside].images() == files


def edit(folder: Path, name: str, change: Any) -> None:
    with h5py.File(folder / name, "a") as file:
        change(file)


def replace_with(name: str, values: Any) -> Any:
    def change(file: Any) -> None:
        del file[name]
        if values is not None:
            file[name] = values

    return change


IMAGES = f"observations/images/{CAMERAS[0]}"
BAD: dict[str, tuple[str, Any, str]] = {
    "no action": (
        "episode_0.hdf5",
        replace_with("action", None),
        "episode_0.hdf5 is not of ALOHA: it has no action",
    ),
    "another number of rows": (
        "episode_2.hdf5",
        replace_with("observations/qpos", np.zeros((LENGTHS[1] + 1, JOINTS), "f4")),
        "episode_2.hdf5: .*qpos",
    ),
    "a linked action": (
        "episode_0.hdf5",
        replace_with("action", h5py.ExternalLink("/etc/passwd", "x")),
        "action.*is a link to '/etc/passwd'",
    ),
    "a linked camera": (
        "episode_2.hdf5",
        replace_with(IMAGES, h5py.ExternalLink("/etc/passwd", "x")),
        f"{IMAGES}",
    ),
    "a camera less": ("episode_10.hdf5", replace_with(IMAGES, None), f"{IMAGES}.*no such array"),
    "images that are none": (
        "episode_10.hdf5",
        replace_with(IMAGES, np.full((LENGTHS[2], 900), 7, np.uint8)),
        "episode_10.hdf5",
    ),
    "a single action": ("episode_0.hdf5", replace_with("action", np.float32(1)), "action"),
    "an array that the first file lacks": (
        "episode_0.hdf5",
        replace_with("observations/qvel", None),
        r"episode_2.hdf5: It has observations/qvel, which the first episode does not have",
    ),
    "text as actions": ("episode_0.hdf5", replace_with("action", [b"x"] * 5), "text"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(tmp_path: Path, name: str, settings: Settings) -> None:
    file, change, said = BAD[name]
    folder = write_aloha(tmp_path / "task", "padded")
    edit(folder, file, change)
    with pytest.raises(FormatError, match=said) as caught:
        stored(folder, settings)
    assert "mapping" not in caught.value.message
    assert not list(settings.root.rglob("manifest.json"))


@pytest.mark.parametrize("bad", [[1], [0], [0, 1]])
def test_files_that_are_cut_short_are_skipped_by_name(
    tmp_path: Path, settings: Settings, bad: list[int]
) -> None:
    folder = write_aloha(tmp_path / "task")
    for path in (folder / ORDER[n] for n in bad):
        path.write_bytes(path.read_bytes()[:-900])
    with pytest.raises(FormatError, match=rf"{ORDER[bad[0]]}.* is damaged or cut short"):
        stored(folder, settings)
    reader = stored(folder, settings, skip_bad_episodes=True)
    assert reader.lengths.tolist() == [LENGTHS[n] for n in range(3) if n not in bad]
    skipped = [one.where for one in reader.manifest.skipped_episodes]
    assert [where.endswith(ORDER[n]) for where, n in zip(skipped, bad, strict=True)] == [
        True
    ] * len(bad)


def test_other_files_of_the_folder_are_not_read(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "task")
    first = Aloha().release_of(folder, "x").revision
    (folder / "dataset_stats.pkl").write_bytes(b"\x80\x04.")
    shutil.copy(folder / ORDER[0], folder / "mirror_episode_0.hdf5")
    assert Aloha().release_of(folder, "x").revision == first
    write_episode(folder / "episode_3.hdf5", toy_episode(3, 2))
    assert Aloha().release_of(folder, "x").revision != first


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    with h5py.File(path, "w") as file:
        file["action"] = np.zeros((3, 2))
    with pytest.raises(FormatError, match="not of ALOHA: it has no observations/qpos"):
        Aloha().open(Aloha().release_of(path, "x"), path)
