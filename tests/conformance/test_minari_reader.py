"""Minari's own reader, and h5py by hand, as oracles: the same values, episode for episode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from packaging.version import Version

from offline_data.formats.minari.source import Minari
from tests.toys.minari import STORAGES, read_minari

pytestmark = pytest.mark.skipif(
    Version(version("minari")) < Version("0.5.4"),
    reason="an older Minari refuses to read files of a newer one",
)

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Key

ENVIRONMENTS = [
    "classic/cartpole/random",
    "classic/pendulum/random",
    "mujoco/halfcheetah/random",
    "mujoco/hopper/random",
    "robotics/antmaze-umaze/random",
    "robotics/pointmaze-umaze/random",
    "synth/dict/random",
    "synth/img/random",
    "synth/img/raw",
    "synth/imgchw/random",
    "synth/imggray/random",
    "synth/imgsmall/random",
    "synth/text/random",
    "synth/textdict/random",
    "toytext/frozenlake/random",
    "toytext/taxi/random",
]

NESTED = ["synth/dict/random", "synth/text/random", "synth/img/raw"]
"""One of each kind of leaf, read in every storage; the others in one of them."""


def flat(nest: Any, key: Key) -> Iterator[tuple[Key, Any]]:
    if isinstance(nest, tuple):
        nest = {str(number): part for number, part in enumerate(nest)}
    if isinstance(nest, dict):
        for name, part in nest.items():
            yield from flat(part, (*key, name.removeprefix("_index_")))
    elif nest is not None:
        yield key, np.asarray(nest)


def assert_equals_minari(batch: EpisodeBatch, dataset: minari.MinariDataset) -> None:
    """Compare every leaf of every episode; all leaves of one must be leaves of the other."""
    assert len(dataset) == len(batch.lengths)
    rows = {id(batch.steps): 0, id(batch.observations): 0}
    seen: set[Key] = set()

    def compare(columns: Any, key: Key, values: Any) -> None:
        begin = rows[id(columns)]
        found = columns[key][begin : begin + len(values)]
        expected = values.astype(object) if values.dtype.kind == "U" else values
        np.testing.assert_array_equal(found, expected, err_msg=str(key))
        if key[-1] != "reward":
            assert found.dtype == expected.dtype
        seen.add(key)

    for number, episode in enumerate(dataset.iterate_episodes()):
        steps = len(episode.rewards)
        assert batch.lengths[number] == steps
        for key, values in flat(episode.observations, ("observation",)):
            compare(batch.observations, key, values)
        for key, values in flat(episode.infos, ("info",)):
            compare(batch.observations, key, values)
        for key, values in flat(episode.actions, ("action",)):
            compare(batch.steps, key, values)
        ends = (episode.terminations, episode.truncations)
        for name, end in zip(("terminated", "truncated"), ends, strict=True):
            compare(batch.steps, ("next", name), end[:, None])
        compare(batch.steps, ("next", "reward"), episode.rewards[:, None])
        rows[id(batch.steps)] += steps
        rows[id(batch.observations)] += steps + 1
    assert seen == {*batch.steps, *batch.observations}


@pytest.mark.parametrize(
    ("environment", "storage"),
    [
        *(
            (name, STORAGES[number % 3])
            for number, name in enumerate(ENVIRONMENTS)
            if name not in NESTED
        ),
        *((name, storage) for name in NESTED for storage in STORAGES),
    ],
)
def test_real_environments(realdata: Path, environment: str, storage: str) -> None:
    folder = realdata / "minari" / f"{environment}-{storage}-v0"
    batch = read_minari(folder)
    assert batch.final_observation.all()
    assert not batch.dropped
    assert_equals_minari(batch, minari.MinariDataset(folder / "data"))


def test_episodes_of_door_human_are_those_of_the_file(realdata: Path) -> None:
    folder = realdata / "minari_door_human_v2" / "D4RL" / "door" / "human-v2"
    batch = read_minari(folder, budget=1 << 20)
    assert (batch.transitions, len(batch.lengths)) == (6729, 25)
    assert batch.steps["next", "terminated"].sum() + batch.steps["next", "truncated"].sum() == 25
    with h5py.File(folder / "data" / "main_data.hdf5") as file:
        for number, options in enumerate(batch.episodes["options",]):
            attributes = file[f"episode_{number}"].attrs
            assert batch.episodes["id",][number] == attributes["id"]
            assert np.uint64(batch.episodes["seed",][number]) == np.uint64(attributes["seed"])
            state = json.loads(options)["initial_state_dict"]
            assert set(state) == {"door_body_pos", "qpos", "qvel"}
            for name, values in state.items():
                recorded = attributes[f"options/initial_state_dict/{name}"]
                np.testing.assert_array_equal(np.array(values, "float32"), recorded)


@pytest.mark.parametrize("name", ["cartpole-random-v0", "pendulum-random-v0"])
def test_version_0_4_3(realdata: Path, name: str) -> None:
    folder = realdata / "minari_v043" / name
    batch, source = read_minari(folder), Minari()
    info = source.open(source.release_of(folder, name), folder).info
    assert (info.transitions, info.episodes) == (batch.transitions, len(batch.lengths))
    assert info.environment["id"] in {"CartPole-v1", "Pendulum-v1"}


class Camera(gym.Env):  # type: ignore[misc]
    """Shows noise, which no two frames share, for four steps."""

    observation_space = gym.spaces.Box(0, 255, (40, 36, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def __init__(self) -> None:
        self.noise = np.random.default_rng(0)
        self.steps = 0

    def _frame(self) -> Any:
        return self.noise.integers(0, 256, (40, 36, 3), dtype=np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002 -- the signature is Gymnasium's
        super().reset(seed=seed)
        self.steps = 0
        return self._frame(), {"left": 4.0}

    def step(self, action: int) -> Any:
        self.steps += 1
        return self._frame(), float(self.steps + action), self.steps == 4, False, {"left": 1.0}


def record(storage: str) -> None:
    env = minari.DataCollector(Camera(), record_infos=True, data_format=storage)
    for seed in range(2):
        env.reset(seed=seed, options={"level": seed})
        for step in range(4):
            env.step(step % 3)
    env.reset(seed=2)
    env.step(1)
    env.create_dataset("camera/noise-v0", algorithm_name="noise", author="A. Author")


@pytest.mark.filterwarnings("ignore::UserWarning:minari")  # asks for a permalink, a description
@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")  # the collector's own
@pytest.mark.parametrize("storage", STORAGES)
def test_recorded_here_and_loaded_by_minari(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    record(storage)
    batch = read_minari(tmp_path / "camera" / "noise-v0")
    assert batch.lengths.tolist() == [4, 4, 1]
    assert batch.steps["next", "truncated"][:, 0].tolist() == [False] * 8 + [True]
    assert batch.episodes["seed",].tolist() == [0, 1, 2]
    assert json.loads(batch.episodes["options",][1])["level"] == 1
    assert_equals_minari(batch, minari.load_dataset("camera/noise-v0"))
