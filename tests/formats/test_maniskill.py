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
from offline_data.pipeline.ingest import Options, download
from offline_data.store.reader import open_reader
from offline_data.testing.sources import Damage, Episode, SourceCase, assert_episodes
from tests.formats.contract import Contract
from tests.refusals import Refusals
from tests.toys.maniskill import ENV_INFO, toy_trajectory, write_maniskill
from tests.toys.servers import HubServer
from tests.toys.stored import convert_and_open

REFUSALS = Refusals.beside(__file__)
ENDS = {0: (4, "terminated"), 2: (1, "truncated"), 10: (6, "early"), 11: (3, "none")}


def trajectories(obs: str) -> dict[int, Any]:
    return {n: toy_trajectory(n, rows, obs=obs, end=end) for n, (rows, end) in ENDS.items()}


def episodes_of(path: Path) -> list[Episode]:
    """Read trajectories by h5py; without observations, states of the simulator are in their place."""
    found = []
    with h5py.File(path) as file:
        for name in sorted(file, key=lambda one: int(one[5:])):
            group = file[name]
            rows: dict[str, Any] = {}
            group.visititems(
                lambda place, node, into=rows: into.update(
                    {place: node[()]} if isinstance(node, h5py.Dataset) else {}
                )
            )
            seen = any(place.startswith("obs") for place in rows)
            roots = {"obs": "observation", "env_states": "state" if seen else "observation"}
            rows["truncated"][-1] |= not rows["terminated"][-1]
            episode: Episode = {
                ("episode", "trajectory"): int(name[5:]),
                ("episode", "final_observation"): True,
            }
            for place, column in rows.items():
                root, *rest = place.split("/")
                if root in roots:
                    key = (roots[root], *rest)
                    episode |= {key: column[:-1], ("next", *key): column[1:]}
                elif root == "actions":
                    episode |= {("action", *rest): column}
                else:
                    episode["next", root.replace("rewards", "reward")] = column[:, None]
            found.append(episode)
    return found


def second(**changed: Any) -> Damage:
    """Change a trajectory of four rows."""

    def apply(path: Path) -> None:
        found = trajectories("dict")
        found[0] |= changed
        write_maniskill(path, found)

    return Damage(apply, skipped=(0,))


BAD = {
    "no last observation": second(**{"obs/agent/qpos": np.zeros((4, 3))}),
    "no actions": second(actions=np.zeros((0, 3))),
    "fewer rewards": second(rewards=np.zeros(3)),
    "rewards of two": second(rewards=np.zeros((4, 2))),
    "text": second(success=["x"] * 4),
}


class TestManiSkill(Contract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> SourceCase:
        path = write_maniskill(tmp_path / "trajectory.rgb.h5", trajectories("dict"))
        release = ManiSkill().release_of(path, "x")
        return SourceCase(ManiSkill(), release, path, episodes_of, BAD)


@pytest.mark.parametrize("obs", ["dict", "array", "none"])
def test_every_leaf_of_every_row(tmp_path: Path, obs: str, settings: Settings) -> None:
    path = write_maniskill(tmp_path / "trajectory.h5", trajectories(obs))
    reader = convert_and_open(path, settings)
    assert_episodes(reader, episodes_of(path))
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
    reader = convert_and_open(path, settings)
    assert_episodes(reader, episodes_of(path))
    assert not {("next", "reward"), ("next", "success")} & set(reader.step_leaves)
    assert ("seed",) not in reader.episodes
    assert any("no trajectory.json next to" in note for note in reader.manifest.notes)


def test_actions_of_several_robots(tmp_path: Path, settings: Settings) -> None:
    found = trajectories("dict")
    for columns in found.values():
        actions = columns.pop("actions")
        columns |= {"actions/panda-0": actions, "actions/panda-1": actions[:, :2] - 0.5}
    path = write_maniskill(tmp_path / "trajectory.h5", found)
    reader = convert_and_open(path, settings)
    for robot in ("panda-0", "panda-1"):
        rows = np.concatenate([columns[f"actions/{robot}"] for columns in found.values()])
        np.testing.assert_array_equal(reader.step(("action", robot)), rows)


def test_what_the_json_file_says_otherwise(tmp_path: Path, settings: Settings) -> None:
    path = write_maniskill(tmp_path / "trajectory.h5", trajectories("dict"), elapsed_steps=4, episode_seed=[3])  # fmt: skip
    reader = convert_and_open(path, settings)
    assert any("elapsed_steps differ" in note for note in reader.manifest.notes)
    assert np.asarray(reader.episodes["seed",]).tolist() == [3] * 4
    known = json.loads(path.with_suffix(".json").read_text())
    del known["episodes"][1]
    path.with_suffix(".json").write_text(json.dumps(known))
    with pytest.raises(FormatError, match=r"traj_2: trajectory\.json has no episode 2"):
        convert_and_open(path, settings, force=True)
    assert convert_and_open(
        path, settings, skip_bad_episodes=True, force=True
    ).lengths.tolist() == [4, 6, 3]


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
    expected = episodes_of(tmp_path / "remote/demos/PickCube-v1/rl/trajectory.h5")
    assert_episodes(open_reader(made.path), expected)
    assert open_reader(made.path).manifest.licence == "apache-2.0"
    listed = [entry.name for entry in ManiSkill().remote(hub)]
    assert "PickCube-v1/motionplanning/trajectory" in listed
    assert len(listed) == 3
    assert ManiSkill().resolve("PushT-v1", None, hub).files[0].path == "trajectory.h5"
    for name in ("PickCube-v1", "PickCube-v1/teleop/trajectory"):
        with pytest.raises(NotFoundError, match=f"maniskill:{name} names . files? at") as caught:
            ManiSkill().resolve(name, None, hub)
        assert "maniskill:PickCube-v1/motionplanning/trajectory" in str(caught.value.hint)
