"""Every form in which Minari's versions have written metadata ends up in the same fields."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from offline_data.formats.base import SourceInfo
from offline_data.formats.minari.source import Minari
from tests.toys.minari import (
    box,
    discrete,
    read_minari,
    toy_episode,
    write_hdf5,
    write_minari,
)

SPEC = {"id": "Pen-v1", "entry_point": "envs:Pen", "kwargs": {"reward_type": "sparse"}}


def info_of(folder: Path, name: str = "pen/human-v2") -> SourceInfo:
    source = Minari()
    return source.open(source.release_of(folder, name), folder).info


def written(folder: Path, **metadata: Any) -> SourceInfo:
    return info_of(write_minari(folder / "pen-v0", [toy_episode(0, 4)], metadata=metadata))


def test_everything_is_kept(tmp_path: Path) -> None:
    about: Mapping[str, Any] = {
        "author": ["A. Author"],
        "author_email": ["a@example.org"],
        "algorithm_name": "SAC",
        "code_permalink": "https://example.org",
        "description": "Pens.",
        "requirements": ["gymnasium-robotics"],
        "ref_min_score": -1.5,
        "ref_max_score": 10,
        "num_episodes_average_score": 100,
        "dataset_size": 3.5,
        "jpeg_encoding": False,
        "something_new": {"a": 1},
    }
    specs = {"env_spec": json.dumps(SPEC), "eval_env_spec": json.dumps({**SPEC, "id": "Eval-v1"})}
    about = {**about, "combined_datasets": ["a-v0", "b-v0"]}
    info = written(tmp_path, **about, **specs)
    assert any("combination" in note for note in info.notes)
    assert (info.transitions, info.episodes) == (4, 1)
    assert info.environment == SPEC
    assert info.spaces["action"] == box(2)
    assert info.spaces["observation"]["low"] == [-math.inf] * 3
    assert {name: info.about[name] for name in about} == about
    assert info.about["eval_env_spec"] == {**SPEC, "id": "Eval-v1"}
    assert info.about["minari_version"] == "0.5.4"
    assert info.about["data_format"] == "hdf5"
    assert not info.about.keys() & {"env_spec", "observation_space", "total_steps"}


def test_almost_nothing_is_stated(tmp_path: Path) -> None:
    gone = dict.fromkeys(
        ["total_episodes", "total_steps", "observation_space", "action_space", "minari_version"]
    )
    info = written(tmp_path, **gone)
    assert (info.transitions, info.episodes, info.spaces, info.environment) == (None, None, {}, {})
    assert read_minari(tmp_path / "pen-v0").lengths.tolist() == [4]


EVIL = {"type": "Evil", "shape": [2], "dtype": "float32"}


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (EVIL, "'Evil'"),
        ({"type": "Tuple", "subspaces": [{"type": "Dict", "subspaces": {"a": EVIL}}]}, "'Evil'"),
        ({"type": "Graph", "node_space": box(2)}, "'Graph'"),
    ],
)
@pytest.mark.parametrize("flat", [False, True])
def test_a_space_of_an_unknown_type_is_not_kept(
    space: Any, kind: str, flat: bool, tmp_path: Path
) -> None:
    more = {"observation_space": json.dumps(space), "flatten_observation": flat}
    info = written(tmp_path, **more)
    assert info.spaces == {"action": box(2)}
    assert any(re.search(f"observation space is not kept: .* {kind}", note) for note in info.notes)


def old(tmp_path: Path, episodes: int, **attributes: Any) -> Path:
    """Write a dataset whose metadata are in the HDF5 file."""
    data = tmp_path / "old-v0" / "data"
    data.mkdir(parents=True)
    toys = [toy_episode(n, 2 + n, attributes={"total_timesteps": 2}) for n in range(episodes)]
    write_hdf5(data / "main_data.hdf5", toys, {"action_space": json.dumps(box(2)), **attributes})
    return data.parent


def test_attributes_of_the_file(tmp_path: Path) -> None:
    more = {"minari_version": "~=0.4", "author": "A. Author"}
    counts = {"total_episodes": "2", "total_steps": "5"}
    spaces = {"observation_space": json.dumps(box(3)), "env_spec": json.dumps(SPEC)}
    info = info_of(old(tmp_path, 2, **counts, **spaces, **more))
    assert (info.transitions, info.episodes) == (5, 2)
    assert info.environment == SPEC
    assert info.spaces == {"observation": box(3), "action": box(2)}
    assert info.about == more
    assert any("0.4" in note for note in info.notes)


def test_flattened_observations_of_version_0_3(tmp_path: Path) -> None:
    space = {"type": "Dict", "subspaces": {"a": box(1), "b": box(2)}}
    flags = {"flatten_observation": True, "flatten_action": False}
    counts = {"total_timesteps": 2, "total_episodes": 1}
    folder = old(tmp_path, 1, observation_space=json.dumps(space), **flags, **counts)
    info = info_of(folder)
    assert info.transitions == 2
    assert any("flattened the observations" in note for note in info.notes)
    batch = read_minari(folder)
    assert batch.observations["observation",].shape == (3, 3)
    assert ("metadata",) not in batch.episodes


@pytest.mark.parametrize(
    ("name", "licence"), [("D4RL/door/human-v2", "CC-BY-4.0"), ("mujoco/ant/expert-v0", None)]
)
def test_licence(tmp_path: Path, name: str, licence: str | None) -> None:
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 1)])
    assert info_of(folder, name).licence == licence


def test_notes_of_the_catalogue(tmp_path: Path) -> None:
    folder = write_minari(tmp_path / "t-v0", [toy_episode(0, 1)])
    assert "Images are lossy JPEG in the source." in info_of(folder, "atari/pong/expert-v0").notes


def test_catalogue() -> None:
    entries = {entry.name: entry for entry in Minari().catalog()}
    assert len(entries) == 392
    assert entries["D4RL/door/human-v2"].transitions == 6729
    assert entries["D4RL/kitchen/complete-v1"].episodes == 19
    assert entries["minigrid/BabyAI-Pickup/optimal-fullobs-v0"].summary == (
        "Dict(direction, image (22, 22, 3), mission) → Discrete(7)"
    )


def test_parts_are_of_the_size_asked_for(tmp_path: Path) -> None:
    episodes = [toy_episode(n, 50, action=discrete()) for n in range(20)]
    folder = write_minari(tmp_path / "t-v0", episodes, action=discrete())
    source = Minari()
    dataset = source.open(source.release_of(folder, "t-v0"), folder)
    per_step = 3 * 4 + 8 + 8 + 2
    parts = dataset.parts(5 * 50 * per_step)
    assert [(part.first, part.stop) for part in parts] == [(0, 5), (5, 10), (10, 15), (15, 20)]
