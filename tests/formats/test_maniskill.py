"""ManiSkill: every leaf of every row against h5py, its observation modes, bad files, the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import FormatError, NotFoundError
from offline_data.base.ids import parse_id
from offline_data.formats.maniskill import ManiSkill
from offline_data.formats.registry import source_accepting
from offline_data.pipeline.ingest import Options, download
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.testing.sources import SourceCase, SourceContract
from tests.toys.maniskill import ENV_INFO, toy_trajectory, write_maniskill
from tests.toys.servers import HubServer
from tests.toys.stored import convert_and_open

ENDS = {0: (4, "terminated"), 2: (1, "truncated"), 10: (6, "early"), 11: (3, "none")}


def trajectories(obs: str) -> dict[int, Any]:
    return {n: toy_trajectory(n, rows, obs=obs, end=end) for n, (rows, end) in ENDS.items()}


class TestManiSkill(SourceContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_maniskill(tmp_path / "trajectory.rgb.h5", trajectories("dict"))
        return SourceCase(ManiSkill(), ManiSkill().release_of(path, "x"), path)


def stored(path: Path, settings: Settings, **options: Any) -> DatasetReader:
    assert source_accepting(path).name == "maniskill"
    return convert_and_open(path, settings, **options)


def check(path: Path, reader: DatasetReader) -> None:
    """Compare every leaf of every row with the file, which h5py reads."""
    table = reader.transitions_at(np.arange(reader.transitions))
    before: dict[tuple[str, ...], list[Any]] = {}
    after: dict[tuple[str, ...], list[Any]] = {}
    steps: dict[tuple[str, ...], list[Any]] = {}
    with h5py.File(path) as file:
        names = sorted(file, key=lambda one: int(one[5:]))
        empty = isinstance(file[names[0]]["obs"], h5py.Group) and not len(file[names[0]]["obs"])
        for name in names:
            group = file[name]

            def add(place: str, found: Any, group: Any = group) -> None:
                if not isinstance(found, h5py.Dataset):
                    return
                rows, (root, *rest) = found[()], place.split("/")
                if root in {"obs", "env_states"}:
                    known = {
                        "obs": "observation",
                        "env_states": "observation" if empty else "state",
                    }
                    key = (known[root], *rest)
                    before.setdefault(key, []).append(rows[:-1])
                    after.setdefault(("next", *key), []).append(rows[1:])
                elif root == "actions":
                    steps.setdefault(("action",), []).append(rows)
                else:
                    rows = rows[:, None].copy()
                    if root == "truncated":
                        rows[-1] |= not group["terminated"][-1]
                    steps.setdefault(("next", root.replace("rewards", "reward")), []).append(rows)

            group.visititems(add)
        lengths = [len(file[name]["actions"]) for name in names]
    assert reader.lengths.tolist() == lengths
    expected = {key: np.concatenate(parts) for key, parts in {**before, **after, **steps}.items()}
    assert expected.keys() <= table.keys()
    for key, column in expected.items():
        assert table[key].dtype == column.dtype, key
        np.testing.assert_array_equal(table[key], column, err_msg=str(key))
    assert np.asarray(reader.episodes["final_observation",]).all()


@pytest.mark.parametrize("obs", ["dict", "array", "none"])
def test_every_leaf_of_every_row(tmp_path: Path, obs: str, settings: Settings) -> None:
    path = write_maniskill(tmp_path / "trajectory.h5", trajectories(obs))
    reader = stored(path, settings)
    check(path, reader)
    assert np.asarray(reader.episodes["trajectory",]).tolist() == list(ENDS)
    assert np.asarray(reader.episodes["seed",]).tolist() == [7 * n for n in ENDS]
    texts = reader.episode_batch(0, 4).episodes
    assert list(texts["control_mode",]) == ["pd_joint_delta_pos"] * 4
    assert json.loads(str(texts["reset_kwargs",][1])) == {"options": {}, "seed": 14}
    manifest = reader.manifest
    assert manifest.environment == ENV_INFO
    assert (manifest.about["env_name"], manifest.about["source_type"]) == ("PickCube-v1", "rl")
    assert any("state of the simulator" in note for note in manifest.notes) == (obs == "none")


def test_without_the_json_file_rewards_and_success(tmp_path: Path, settings: Settings) -> None:
    found = trajectories("dict")
    for columns in found.values():
        for name in ("rewards", "success"):
            del columns[name]
    path = write_maniskill(tmp_path / "trajectory.h5", found, meta=False)
    reader = stored(path, settings)
    check(path, reader)
    assert not {("next", "reward"), ("next", "success")} & set(reader.step_leaves)
    assert ("seed",) not in reader.episodes
    assert any("no trajectory.json beside" in note for note in reader.manifest.notes)


def test_actions_of_several_robots(tmp_path: Path, settings: Settings) -> None:
    found = trajectories("dict")
    for columns in found.values():
        actions = columns.pop("actions")
        columns |= {"actions/panda-0": actions, "actions/panda-1": actions[:, :2] - 0.5}
    path = write_maniskill(tmp_path / "trajectory.h5", found)
    reader = stored(path, settings)
    with h5py.File(path) as file:
        for robot in ("panda-0", "panda-1"):
            rows = np.concatenate([file[f"traj_{n}/actions/{robot}"][()] for n in ENDS])
            np.testing.assert_array_equal(reader.step(("action", robot)), rows)


def test_what_the_json_file_says_otherwise(tmp_path: Path, settings: Settings) -> None:
    path = write_maniskill(tmp_path / "trajectory.h5", trajectories("dict"), elapsed_steps=4, episode_seed=[3])  # fmt: skip
    reader = stored(path, settings)
    assert any("elapsed_steps differ" in note for note in reader.manifest.notes)
    assert np.asarray(reader.episodes["seed",]).tolist() == [3] * 4
    known = json.loads(path.with_suffix(".json").read_text())
    del known["episodes"][1]
    path.with_suffix(".json").write_text(json.dumps(known))
    with pytest.raises(FormatError, match=r"traj_2: trajectory\.json has no episode 2"):
        stored(path, settings, force=True)
    assert stored(path, settings, skip_bad_episodes=True, force=True).lengths.tolist() == [4, 6, 3]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no last observation": ({"obs/agent/qpos": np.zeros((4, 3))}, "'obs/agent/qpos' cannot be read: .* expected 5 rows"),
    "no actions": ({"actions": np.zeros((0, 3))}, "it has no actions"),
    "fewer rewards": ({"rewards": np.zeros(3)}, "'rewards' cannot be read: .* expected 4 rows"),
    "rewards of two": ({"rewards": np.zeros((4, 2))}, r"'rewards' has shape \[4, 2\]"),
    "text": ({"success": ["x"] * 4}, "'success' cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path: Path, case: str) -> None:
    changed, message = BAD[case]
    path = write_maniskill(
        tmp_path / "x.h5", {5: {**toy_trajectory(5, 4), **changed}, 6: toy_trajectory(6, 2)}
    )
    dataset = ManiSkill().open(ManiSkill().release_of(path, "x"), path)
    with pytest.raises(FormatError, match=rf"x\.h5 traj_5: .*{message}"):
        list(dataset.read(dataset.shards()[0]))


@pytest.fixture
def hub(tmp_path: Path, settings: Settings) -> Iterator[Settings]:
    """Return settings for a hub with two files of one environment, and one of another."""
    remote = tmp_path / "remote"
    for name in ("PickCube-v1/rl", "PickCube-v1/motionplanning", "PushT-v1/rl"):
        write_maniskill(remote / "demos" / name / "trajectory.h5", trajectories("none"))
        (remote / "demos" / name / "sample.mp4").write_bytes(b"video")
    (remote / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    with HubServer({"haosulab/ManiSkill_Demonstrations": remote}) as server:
        yield replace(settings, offline=False, hub_endpoint=server.url)


def test_downloads_from_the_hub(hub: Settings, tmp_path: Path) -> None:
    made = download(parse_id("maniskill:PickCube-v1/rl/trajectory"), hub, Options(audit="all"))
    check(tmp_path / "remote/demos/PickCube-v1/rl/trajectory.h5", open_reader(made.path))
    assert open_reader(made.path).manifest.licence == "apache-2.0"
    listed = [entry.name for entry in ManiSkill().remote(hub)]
    assert "PickCube-v1/motionplanning/trajectory" in listed
    assert len(listed) == 3
    assert ManiSkill().resolve("PushT-v1", None, hub).files[0].path == "trajectory.h5"
    for name in ("PickCube-v1", "PickCube-v1/teleop/trajectory"):
        with pytest.raises(NotFoundError, match=f"maniskill:{name} names . files? at") as caught:
            ManiSkill().resolve(name, None, hub)
        assert "maniskill:PickCube-v1/motionplanning/trajectory" in str(caught.value.hint)
