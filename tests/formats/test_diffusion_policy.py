"""Replay buffers in zarr: every leaf of every row against what was written, zarr's own files, bad ones."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError
from offline_data.episode.fields import TERMINATED, TRUNCATED
from offline_data.formats.base import Release
from offline_data.formats.zarr.source import DiffusionPolicy
from offline_data.store.reader import DatasetReader
from offline_data.testing.sources import Damage, Episode, SourceCase, assert_episodes
from tests.formats.contract import Contract
from tests.refusals import Refusals
from tests.toys.diffusion_policy import LENGTHS, toy_arrays, umi_arrays, write_zarr, write_zip
from tests.toys.stored import convert_and_open

REFUSALS = Refusals.beside(__file__)


def episodes_of(arrays: dict[str, Any]) -> list[Episode]:
    """Cut the arrays at the ends of episodes; the last observation is given twice."""
    found = []
    ends = arrays["meta/episode_ends"]
    for start, stop in zip([0, *ends], ends, strict=False):
        last = np.arange(start, stop)[:, None] == stop - 1
        episode: Episode = {TERMINATED: last & False, TRUNCATED: last}
        episode["episode", "final_observation"] = False
        for name, values in arrays.items():
            rows, (root, short) = values[start:stop], name.split("/")
            if short == "action":
                episode["action",] = rows
            elif root == "data":
                episode["observation", short] = rows
                episode["next", "observation", short] = np.concatenate([rows[1:], rows[-1:]])
        found.append(episode)
    return found


def changed(**new: Any) -> Damage:
    """Write a buffer with other arrays, or without those that are None."""

    def apply(path: Path) -> None:
        shutil.rmtree(path)
        arrays = {**toy_arrays(), **{name.replace("__", "/"): one for name, one in new.items()}}
        write_zarr(path, {name: one for name, one in arrays.items() if one is not None})

    return Damage(apply)


def some_poses(path: Path) -> None:
    shutil.rmtree(path)
    write_zarr(path, {k: v for k, v in umi_arrays().items() if "gripper" not in k})


BAD = {
    "fewer rows": changed(data__state=np.zeros((3, 2))),
    "ends that fall": changed(meta__episode_ends=np.array([4, 2, 14])),
    "an empty episode": changed(meta__episode_ends=np.array([4, 4, 14])),
    "ends of another type": changed(meta__episode_ends=np.array([4.0, 14.0])),
    "no ends": changed(meta__episode_ends=None),
    "no actions": changed(data__action=None),
    "only some of the poses": Damage(some_poses),
    "a chunk": Damage(lambda path: (path / "data/state/2.0").write_bytes(b"short"), skipped=(2,)),
}


class TestFolder(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_zarr(tmp_path / "x.zarr", toy_arrays())
        release = DiffusionPolicy().release_of(path, "x")
        return SourceCase(
            DiffusionPolicy(), release, path, lambda _: episodes_of(toy_arrays()), BAD
        )


class TestPublishedZip(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        release = DiffusionPolicy().resolve("pusht", None, Settings(tmp_path))
        folder = write_zarr(tmp_path / "x.zarr", toy_arrays())
        (tmp_path / "raw").mkdir()
        path = write_zip(tmp_path / "raw/pusht.zip", folder, "pusht/pusht_cchi_v7_replay.zarr/")
        return SourceCase(DiffusionPolicy(), release, path, lambda _: episodes_of(toy_arrays()))


def check(arrays: dict[str, Any], reader: DatasetReader) -> None:
    assert_episodes(reader, episodes_of(arrays))
    assert ("next", "reward") not in reader.step_leaves


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
    check(arrays, convert_and_open(path, settings))


@pytest.mark.parametrize("form", [2, 3])
def test_what_zarr_itself_writes(tmp_path: Path, form: Any, settings: Settings) -> None:
    zarr = pytest.importorskip("zarr", minversion="3")
    group = zarr.open_group(str(tmp_path / "x.zarr"), mode="w", zarr_format=form)
    arrays = toy_arrays()
    for name, values in arrays.items():
        array = group.create_array(name, shape=values.shape, chunks=(2, *values.shape[1:]), dtype=values.dtype)  # fmt: skip
        array[:] = values
    found = zarr.open_group(str(tmp_path / "x.zarr"), mode="r")
    check(
        {name: found[name][:] for name in arrays}, convert_and_open(tmp_path / "x.zarr", settings)
    )


@pytest.mark.parametrize("robots", [1, 2])
def test_umi_has_poses_in_place_of_actions(tmp_path: Path, robots: int, settings: Settings) -> None:
    arrays = umi_arrays(robots=robots)
    path = write_zarr(tmp_path / "x.zarr", arrays)
    frames = np.zeros((sum(LENGTHS), 2, 2, 3), np.uint8)
    write_zarr(path, {"data/camera0_rgb": frames}, compressor={"id": "imagecodecs_jpegxl"})
    reader = convert_and_open(path, settings)
    parts = ("eef_pos", "eef_rot_axis_angle", "gripper_width")
    poses = [arrays[f"data/robot{n}_{part}"] for n in range(robots) for part in parts]
    check({**arrays, "data/action": np.concatenate(poses, axis=1)}, reader)
    (dropped,) = reader.manifest.dropped_leaves
    assert (dropped.key, "imagecodecs_jpegxl" in dropped.reason) == ("data/camera0_rgb", True)
    assert any("data/camera0_rgb" in note for note in reader.manifest.notes)
    assert any("as in UMI's sampler" in note for note in reader.manifest.notes)


def test_columns_of_episodes_and_lost_chunks(tmp_path: Path, settings: Settings) -> None:
    arrays = {**toy_arrays(), "meta/success": np.array([True, False, True, True])}
    path = write_zarr(tmp_path / "x.zarr", arrays)
    (path / "data/state/1.0").unlink()
    reader = convert_and_open(path, settings)
    assert np.asarray(reader.episodes["success",]).tolist() == [True, False, True, True]
    arrays["data/state"][3:6] = 0
    check(arrays, reader)
    assert any("fill value: data/state." in note for note in reader.manifest.notes)


def test_columns_of_episodes_with_names_that_have_another_use(
    tmp_path: Path, settings: Settings
) -> None:
    arrays = {**toy_arrays(), "meta/start": np.array([5, 6, 7, 8])}
    reader = convert_and_open(write_zarr(tmp_path / "x.zarr", arrays), settings)
    check(arrays, reader)
    assert reader.starts.tolist() == [0, 4, 5, 11]
    assert [dropped.key for dropped in reader.manifest.dropped_leaves] == ["meta/start"]


def test_several_buffers_in_one_archive(tmp_path: Path, settings: Settings) -> None:
    first, second = toy_arrays(), toy_arrays((2, 2))
    top = tmp_path / "block_pushing"
    write_zarr(top / "multimodal_push_seed.zarr", first)
    write_zarr(top / "multimodal_push_seed_abs.zarr", second)
    path = write_zip(tmp_path / "block_pushing.zip", top, "block_pushing/")
    release = DiffusionPolicy().resolve("block_pushing_abs", None, settings)
    assert DiffusionPolicy().open(release, path).ends.tolist() == [2, 4]
    release = DiffusionPolicy().resolve("block_pushing", None, settings)
    ends = first["meta/episode_ends"].tolist()
    assert DiffusionPolicy().open(release, path).ends.tolist() == ends
    with pytest.raises(FormatError, match="not one replay buffer: it has several: mult"):
        DiffusionPolicy().open(Release("x", "1", local=path), path)
