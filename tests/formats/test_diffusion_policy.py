"""Replay buffers in zarr: every leaf of every row against what was written, zarr's own files, bad ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.formats.base import Release
from offline_data.formats.registry import source_accepting
from offline_data.formats.zarr.source import DiffusionPolicy
from offline_data.store.reader import DatasetReader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.diffusion_policy import LENGTHS, toy_arrays, umi_arrays, write_zarr, write_zip
from tests.toys.stored import convert_and_open


class TestFolder(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_zarr(tmp_path / "x.zarr", toy_arrays())
        return SourceCase(DiffusionPolicy(), DiffusionPolicy().release_of(path, "x"), path)


class TestPublishedZip(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        release = DiffusionPolicy().resolve("pusht", None, Settings(tmp_path))
        folder = write_zarr(tmp_path / "x.zarr", toy_arrays())
        (tmp_path / "raw").mkdir()
        path = write_zip(tmp_path / "raw/pusht.zip", folder, "pusht/pusht_cchi_v7_replay.zarr/")
        return SourceCase(DiffusionPolicy(), release, path)


def stored(path: Path, settings: Settings, **options: Any) -> DatasetReader:
    assert source_accepting(path).name == "diffusion_policy"
    return convert_and_open(path, settings, **options)


def check(arrays: dict[str, Any], reader: DatasetReader) -> None:
    """Compare every leaf with the arrays."""
    table = reader.transitions_at(np.arange(reader.transitions))
    ends = arrays["meta/episode_ends"]
    assert np.cumsum(reader.lengths).tolist() == ends.tolist()
    for name, values in arrays.items():
        if name.startswith("data/"):
            short = name.removeprefix("data/")
            key = ("action",) if short == "action" else ("observation", short)
            assert table[key].dtype == values.dtype, key
            np.testing.assert_array_equal(table[key], values, err_msg=name)
            if key != ("action",):
                rows = np.delete(table["next", "observation", short], ends - 1, axis=0)
                np.testing.assert_array_equal(rows, np.delete(values, [0, *ends[:-1]], axis=0))
    assert ("next", "reward") not in reader.step_leaves
    assert not table["next", "terminated"].any()
    assert np.flatnonzero(table["next", "truncated"]).tolist() == (ends - 1).tolist()
    assert not np.asarray(reader.episodes["final_observation",]).any()


@pytest.mark.parametrize("form", ["folder", "zip", "zip with a folder"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_every_leaf_of_every_row(
    tmp_path: Path, form: str, compressed: bool, chunk: int, settings: Settings
) -> None:
    if compressed:
        pytest.importorskip("numcodecs")
    arrays = toy_arrays()
    path = write_zarr(tmp_path / "x.zarr", arrays, chunk=chunk, compressed=compressed)
    if form != "folder":
        path = write_zip(tmp_path / "x.zarr.zip", path, "x.zarr/" if "with" in form else "")
    check(arrays, stored(path, settings))


@pytest.mark.parametrize("form", [2, 3])
def test_what_zarr_itself_writes(tmp_path: Path, form: Any, settings: Settings) -> None:
    zarr = pytest.importorskip("zarr", minversion="3")
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=form)
    arrays = toy_arrays()
    for name, values in arrays.items():
        array = group.create_array(name, shape=values.shape, chunks=(2, *values.shape[1:]), dtype=values.dtype)  # fmt: skip
        array[:] = values
    found = zarr.open_group(str(tmp_path / "x.zarr"), mode="r")
    check({name: found[name][:] for name in arrays}, stored(tmp_path / "x.zarr", settings))


@pytest.mark.parametrize("robots", [1, 2])
def test_umi_has_poses_in_place_of_actions(tmp_path: Path, robots: int, settings: Settings) -> None:
    arrays = umi_arrays(robots=robots)
    path = write_zarr(tmp_path / "x.zarr", arrays)
    frames = np.zeros((sum(LENGTHS), 2, 2, 3), np.uint8)
    write_zarr(path, {"data/camera0_rgb": frames}, compressor={"id": "imagecodecs_jpegxl"})
    reader = stored(path, settings)
    check(arrays, reader)
    parts = ("eef_pos", "eef_rot_axis_angle", "gripper_width")
    poses = [arrays[f"data/robot{n}_{part}"] for n in range(robots) for part in parts]
    np.testing.assert_array_equal(reader.step(("action",)), np.concatenate(poses, axis=1))
    (dropped,) = reader.manifest.dropped_leaves
    assert (dropped.key, "imagecodecs_jpegxl" in dropped.reason) == ("data/camera0_rgb", True)
    assert any("data/camera0_rgb" in note for note in reader.manifest.notes)
    assert any("as in UMI's sampler" in note for note in reader.manifest.notes)


def test_columns_of_episodes_and_lost_chunks(tmp_path: Path, settings: Settings) -> None:
    arrays = {**toy_arrays(), "meta/success": np.array([True, False, True, True])}
    path = write_zarr(tmp_path / "x.zarr", arrays)
    (path / "data/state/1.0").unlink()
    reader = stored(path, settings)
    assert np.asarray(reader.episodes["success",]).tolist() == [True, False, True, True]
    arrays["data/state"][3:6] = 0
    check(arrays, reader)
    assert any("fill value: data/state." in note for note in reader.manifest.notes)


def test_columns_of_episodes_with_names_that_have_another_use(
    tmp_path: Path, settings: Settings
) -> None:
    arrays = {**toy_arrays(), "meta/start": np.array([5, 6, 7, 8])}
    reader = stored(write_zarr(tmp_path / "x.zarr", arrays), settings)
    check(arrays, reader)
    assert reader.starts.tolist() == [0, 4, 5, 11]
    assert [dropped.key for dropped in reader.manifest.dropped_leaves] == ["meta/start"]


def test_a_damaged_chunk_is_named_or_skipped(tmp_path: Path, settings: Settings) -> None:
    path = write_zarr(tmp_path / "x.zarr", toy_arrays())
    (path / "data/state/2.0").write_bytes(b"short")
    with pytest.raises(FormatError, match=r"episode 2: .*data/state/2\.0 has 5 bytes"):
        stored(path, settings)
    assert stored(path, settings, skip_bad_episodes=True).lengths.tolist() == [4, 1, 3]


def test_several_buffers_in_one_archive(tmp_path: Path, settings: Settings) -> None:
    first, second = toy_arrays(), toy_arrays((2, 2))
    top = tmp_path / "block_pushing"
    write_zarr(top / "multimodal_push_seed.zarr", first)
    write_zarr(top / "multimodal_push_seed_abs.zarr", second)
    path = write_zip(tmp_path / "block_pushing.zip", top, "block_pushing/")
    release = DiffusionPolicy().resolve("block_pushing_abs", None, settings)
    assert DiffusionPolicy().open(release, path).ends.tolist() == [2, 4]
    release = DiffusionPolicy().resolve("block_pushing", None, settings)
    assert (
        DiffusionPolicy().open(release, path).ends.tolist() == first["meta/episode_ends"].tolist()
    )
    with pytest.raises(FormatError, match="not one replay buffer: it has several: mult"):
        DiffusionPolicy().open(Release("x", "1", local=path), path)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "fewer rows": ({"data/state": np.zeros((3, 2))}, r"'data/state' has shape \[3, 2\], expected 14 rows"),
    "ends that fall": ({"meta/episode_ends": np.array([4, 2, 14])}, "episode 1 has -2 rows"),
    "an empty episode": ({"meta/episode_ends": np.array([4, 4, 14])}, "episode 1 has 0 rows"),
    "ends of another type": ({"meta/episode_ends": np.array([4.0, 14.0])}, "is float64"),
    "no ends": ({"meta/episode_ends": None}, "it has no meta/episode_ends"),
    "no actions": ({"data/action": None}, "no data/action, and no poses"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_buffers(tmp_path: Path, case: str) -> None:
    changed, message = BAD[case]
    arrays = {name: one for name, one in {**toy_arrays(), **changed}.items() if one is not None}
    path = write_zarr(tmp_path / "x.zarr", arrays)
    with pytest.raises(FormatError, match=message):
        DiffusionPolicy().open(DiffusionPolicy().release_of(path, "x"), path)


def test_only_some_of_the_poses_are_no_actions(tmp_path: Path) -> None:
    arrays = umi_arrays()
    del arrays["data/robot0_gripper_width"]
    path = write_zarr(tmp_path / "x.zarr", arrays)
    with pytest.raises(FormatError, match="no data/action, and no poses"):
        DiffusionPolicy().open(DiffusionPolicy().release_of(path, "x"), path)
    metadata = json.loads((path / "data/robot0_eef_pos/.zarray").read_text())
    assert metadata["chunks"] == [3, 3]
