"""Replaying recordings of Gymnasium's classic control, as recorded and changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

import offline_data
from offline_data.analysis.replay import Replay, replay_dataset
from offline_data.base.errors import (
    AccessError,
    IntegrityError,
    ManifestError,
    NotFoundError,
)
from offline_data.base.progress import SILENT
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import Key
from offline_data.reports.pages.report import report_page
from offline_data.store.layout import MANIFEST
from offline_data.store.library import entry_at
from offline_data.store.manifest import check_digest, dump_manifest, read_manifest
from offline_data.store.publish import amend_manifest
from offline_data.store.reader import open_reader
from offline_data.testing.toy import write_toy
from offline_data_cli.main import main

ENVIRONMENTS = (
    "CartPole-v1",
    "Pendulum-v1",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Acrobot-v1",
)
Change = Callable[[EpisodeBatch], EpisodeBatch]

ACTION = ("action",)
STATE = ("observation",)


def record(
    env: gymnasium.Env[Any, Any], seeds: list[int | None], steps: int = 25, scale: float = 1.0
) -> EpisodeBatch:
    """Play random actions, `scale` times those of a `Box`."""
    rng = np.random.default_rng(0)
    lengths: list[int] = []
    seen, acts, rewards, ends = [], [], [], []
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        seen.append(observation)
        for _ in range(steps):
            space: Any = env.action_space
            if hasattr(space, "n"):
                action: Any = np.int64(rng.integers(space.n))
            else:
                action = (scale * rng.uniform(space.low, space.high)).astype(np.float32)
            observation, reward, terminated, _, _ = env.step(action)
            seen.append(observation)
            acts.append(action)
            rewards.append([float(reward)])
            ends.append([terminated])
            if terminated:
                break
        lengths.append(len(seen) - len(lengths) - 1 - sum(lengths))
    env.close()
    flags = np.array(ends)
    return EpisodeBatch(
        np.array(lengths),
        {
            ACTION: np.array(acts),
            ("next", "reward"): np.array(rewards),
            ("next", "terminated"): flags,
            ("next", "truncated"): np.zeros_like(flags),
        },
        {STATE: np.array(seen)},
        np.ones(len(lengths), bool),
        episodes={("seed",): np.array([-1 if seed is None else seed for seed in seeds])},
    )


def store(folder: Path, batch: EpisodeBatch, name: str | None, **spec: Any) -> Path:
    """Write a dataset of an environment."""
    write_toy(folder, [batch])
    environment = {**({} if name is None else {"id": name}), **spec}
    manifest = replace(read_manifest(folder), environment=environment)
    (folder / MANIFEST).write_text(dump_manifest(manifest), encoding="utf-8")
    return folder


def changed(batch: EpisodeBatch, **columns: Any) -> EpisodeBatch:
    steps = {**batch.steps}
    if "action" in columns:
        steps[ACTION] = columns["action"]
    if "reward" in columns:
        steps["next", "reward"] = columns["reward"]
    seen = columns.get("observation", batch.observations[STATE])
    observations: dict[Key, Any] = {**batch.observations, STATE: seen}
    return replace(batch, steps=steps, observations=observations)


def shifted(batch: EpisodeBatch, by: int) -> EpisodeBatch:
    """Move the actions of each episode by some rows."""
    parts = np.split(batch.steps[ACTION], np.cumsum(batch.lengths)[:-1])
    return changed(batch, action=np.concatenate([np.roll(part, by, axis=0) for part in parts]))


def played(data: Any, **options: Any) -> Replay:
    return offline_data.replay(data, progress=False, **options)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_recordings_are_exact(tmp_path: Path, name: str) -> None:
    env: Any = gymnasium.make(name)
    with offline_data.Recorder(env, "mine", root=tmp_path, progress=False) as recorder:
        for number in range(4):
            recorder.reset(seed=7 if number in {0, 2} else None)  # others continue
            for _ in range(40):
                action = recorder.action_space.sample()
                _, _, terminated, truncated, _ = recorder.step(action)
                if terminated or truncated:
                    break
    found = offline_data.replay("local:mine", root=tmp_path)
    assert found.counts == {"exact": 4}
    assert found.reproduced
    assert (found.recorded, found.environment) == (name, name)
    assert [one.first for one in found.episodes] == [None] * 4
    assert len(offline_data.replay("local:mine", root=tmp_path, episodes=2).episodes) == 2


def test_rounding(tmp_path: Path) -> None:
    batch = record(gymnasium.make("Pendulum-v1"), [1, 2])
    moved = batch.observations[STATE].copy()
    moved[5, 1] += np.float32(4e-6)
    found = played(store(tmp_path / "x", changed(batch, observation=moved), "Pendulum-v1"))
    first, second = found.episodes
    assert (first.outcome, first.first, first.leaf) == ("rounding", 4, "observation")
    assert first.difference == pytest.approx(4e-6, rel=0.1)
    assert (first.beyond, second.outcome, found.reproduced) == (None, "exact", True)
    strict = played(tmp_path / "x", tolerance=0)
    assert strict.episodes[0].outcome == "diverging"
    assert strict.episodes[0].beyond == 4


def test_a_changed_observation_is_found(tmp_path: Path) -> None:
    batch = record(gymnasium.make("Acrobot-v1"), [3])
    moved = batch.observations[STATE].copy()
    moved[11, 2] += 0.25
    found = played(store(tmp_path / "x", changed(batch, observation=moved), "Acrobot-v1"))
    (one,) = found.episodes
    assert (one.outcome, one.first, one.beyond, one.leaf) == ("diverging", 10, 10, "observation")
    assert one.difference == pytest.approx(0.25, rel=1e-6)
    assert one.cause == "another version of the environment, or actions that were changed"


def test_no_explanation_leaves_out_the_row_that_differs(tmp_path: Path) -> None:
    batch = record(gymnasium.make("Pendulum-v1"), [3], scale=0)
    moved = batch.observations[STATE].copy()
    moved[-1] += 0.25
    (one,) = played(
        store(tmp_path / "x", changed(batch, observation=moved), "Pendulum-v1")
    ).episodes
    assert one.beyond == one.steps - 1
    assert one.cause == "another version of the environment, or actions that were changed"


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_shifted_actions(tmp_path: Path, name: str) -> None:
    batch = record(gymnasium.make(name), [1, 2])
    late = played(store(tmp_path / "late", shifted(batch, 1), name))
    early = played(store(tmp_path / "early", shifted(batch, -1), name))
    for one in late.episodes:
        assert one.outcome in {"different", "diverging"}
        assert one.cause == "actions are shifted by one row: row t has the action of t - 1"
    for one in early.episodes:
        assert one.outcome in {"different", "diverging"}
        if hasattr(gymnasium.make(name).action_space, "n"):
            assert one.cause == "actions are shifted by one row: row t has the action of t + 1"
        else:
            assert one.cause == "another version of the environment, or actions that were changed"


class Clips(gymnasium.Wrapper):  # type: ignore[misc]
    def step(self, action: Any) -> Any:
        space: Any = self.env.action_space
        return self.env.step(np.clip(action, space.low, space.high))


def test_actions_before_they_were_clipped(tmp_path: Path) -> None:
    batch = record(Clips(gymnasium.make("MountainCarContinuous-v0")), [1, 2], scale=3)
    found = played(store(tmp_path / "x", batch, "MountainCarContinuous-v0"))
    assert {one.cause for one in found.episodes} == {
        "actions are stored before they were clipped to the space"
    }
    assert {one.leaf for one in found.episodes} == {"next/reward"}  # which costs the action


class Skips(gymnasium.Wrapper):  # type: ignore[misc]
    def step(self, action: Any) -> Any:
        total = 0.0
        for _ in range(4):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated:
                break
        return observation, total, terminated, truncated, info


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_frame_skip(tmp_path: Path, name: str) -> None:
    batch = record(Skips(gymnasium.make(name)), [1, 2])
    found = played(store(tmp_path / "x", batch, name))
    assert {one.cause for one in found.episodes} == {
        "frame skip: a row is 4 steps of the environment"
    }


def test_another_version(tmp_path: Path) -> None:
    batch = record(gymnasium.make("MountainCar-v0"), [1])
    moved = changed(batch, observation=batch.observations[STATE] * np.float32(1.01))
    path = store(tmp_path / "x", moved, "MountainCar-v9")
    (one,) = played(path, env="MountainCar-v0").episodes
    assert (one.outcome, one.first) == ("different", -1)
    assert one.cause == "another environment or version: recorded in 'MountainCar-v9'"
    store(tmp_path / "y", moved, "MountainCar-v0", kwargs={"goal_velocity": 1})
    cause = played(tmp_path / "y").episodes[0].cause
    assert cause == "recorded with kwargs, which are not used here"
    store(tmp_path / "z", moved, "MountainCar-v0")
    cause = played(tmp_path / "z").episodes[0].cause
    assert cause == "the seed gives another first observation: another version, or a wrapper"


def test_without_a_seed(tmp_path: Path) -> None:
    batch = record(gymnasium.make("CartPole-v1"), [None, 4, None])
    found = played(store(tmp_path / "x", batch, "CartPole-v1"))
    assert [one.outcome for one in found.episodes] == ["failed", "exact", "exact"]
    assert found.episodes[0].cause is not None
    assert found.episodes[0].cause.startswith("no seed and no state is stored")
    other = replace(batch, episodes={("seed",): np.array([-1, 5, -1])})
    found = played(store(tmp_path / "y", other, "CartPole-v1"))
    assert [one.outcome for one in found.episodes] == ["failed", "different", "failed"]


def test_rewards_that_were_changed(tmp_path: Path) -> None:
    batch = record(gymnasium.make("Pendulum-v1"), [1])
    half = changed(batch, reward=np.asarray(batch.steps["next", "reward"], float) / 2)
    (one,) = played(store(tmp_path / "x", half, "Pendulum-v1")).episodes
    assert (one.outcome, one.beyond, one.leaf) == ("different", 0, "next/reward")
    assert one.cause == "observations agree so far and next/reward does not: changed, or a wrapper"


def test_actions_that_the_environment_refuses(tmp_path: Path) -> None:
    batch = record(gymnasium.make("CartPole-v1"), [1])
    (one,) = played(store(tmp_path / "x", changed(batch, action=batch.steps[ACTION] + 9), "CartPole-v1")).episodes  # fmt: skip
    assert one.outcome == "failed"
    assert one.cause is not None
    assert one.cause.startswith("the environment fails: ")


def test_an_unknown_last_observation_is_not_compared(tmp_path: Path) -> None:
    batch = record(gymnasium.make("Pendulum-v1"), [1])
    moved = batch.observations[STATE].copy()
    moved[-1] = moved[-2]
    part = replace(changed(batch, observation=moved), final_observation=np.zeros(1, bool))
    assert played(store(tmp_path / "x", part, "Pendulum-v1")).counts == {"exact": 1}


def test_nothing_of_the_file_is_imported_or_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Any, Any]] = []
    real = gymnasium.make

    def make(*arguments: Any, **options: Any) -> Any:
        made.append((arguments, options))
        return real(*arguments, **options)

    monkeypatch.setattr(gymnasium, "make", make)
    batch = record(real("CartPole-v1"), [1])
    hostile = {"kwargs": {"render_mode": "human"}, "entry_point": "os:abort"}
    path = store(
        tmp_path / "x", batch, "CartPole-v1", **hostile, additional_wrappers=[{"name": "x"}]
    )
    assert played(path).counts == {"exact": 1}
    limits = {"max_episode_steps": -1, "disable_env_checker": True}
    assert made == [(("CartPole-v1",), limits)]
    for name in ("os:abort", "gymnasium.envs:CartPole-v1", None):
        with pytest.raises(NotFoundError):
            played(store(tmp_path / f"y{name}", batch, name))
    assert len(made) == 1


def test_an_environment_that_is_not_named(tmp_path: Path) -> None:
    path = store(tmp_path / "x", record(gymnasium.make("CartPole-v1"), [1]), None)
    assert played(path, env="CartPole-v1").counts == {"exact": 1}


def test_an_environment_of_ones_own_is_not_closed(tmp_path: Path) -> None:
    batch = record(gymnasium.make("CartPole-v1"), [1])
    env: Any = gymnasium.make("CartPole-v1")
    reader = open_reader(store(tmp_path / "x", batch, None))
    assert replay_dataset(reader, env=env).counts == {"exact": 1}
    env.reset()
    env.step(0)


class Switches(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """Counts how often each of two switches was on."""

    observation_space = gymnasium.spaces.Box(0, 100, (2,), np.float64)
    action_space = gymnasium.spaces.MultiBinary(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        self.count = np.zeros(2)
        return self.count.copy(), {}

    def step(self, action: Any) -> Any:
        self.count += action
        return self.count.copy(), 0.0, False, False, {}


def test_actions_of_several_bits(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).integers(0, 2, (20, 2)).astype(np.int8)
    counts = np.concatenate([np.zeros((1, 2)), np.cumsum(bits, axis=0)])
    env = Switches()
    steps: dict[Key, Any] = {ACTION: bits, ("next", "reward"): np.zeros((20, 1))}
    steps |= {("next", name): np.zeros((20, 1), bool) for name in ("terminated", "truncated")}
    seeds: dict[Key, Any] = {("seed",): np.array([1])}
    batch = EpisodeBatch(np.array([20]), steps, {STATE: counts}, np.ones(1, bool), episodes=seeds)
    assert played(store(tmp_path / "x", batch, None), env=env).counts == {"exact": 1}
    late = replace(batch, steps={**batch.steps, ACTION: np.roll(bits, -1, axis=0)})
    (one,) = played(store(tmp_path / "y", late, None), env=env).episodes
    assert (one.outcome, "the environment fails" in str(one.cause)) == ("different", False)


def test_leaves_that_the_environment_does_not_have(tmp_path: Path) -> None:
    batch = record(gymnasium.make("CartPole-v1"), [1])
    (one,) = played(store(tmp_path / "x", batch, "Pendulum-v1")).episodes
    assert one.outcome == "failed"
    assert "observation is [4] here, in the environment (3,)" in str(one.cause)


def test_a_loaded_dataset_and_a_view(tmp_path: Path) -> None:
    batch = record(gymnasium.make("CartPole-v1"), [1, None, 2, None, 3])
    ds = offline_data.open_dataset(store(tmp_path / "x", batch, "CartPole-v1"))
    assert [one.episode for one in played(ds).episodes] == [0, 1, 2, 3, 4]
    assert played(ds).counts == {"exact": 5}
    view = ds.episodes_at([4, 0, 1])
    assert [(one.episode, one.outcome) for one in played(view).episodes] == [
        (0, "exact"), (1, "exact"), (4, "exact"),
    ]  # fmt: skip
    assert [one.episode for one in played(view, episodes=2).episodes] == [0, 1]
    cut = played(ds.subset([int(batch.lengths[0]) + 1])).episodes
    assert [(one.episode, one.steps, one.outcome) for one in cut] == [
        (1, batch.lengths[1], "failed")
    ]
    assert played(ds.episodes_at([0, 3])).counts == {"exact": 1, "failed": 1}


def test_a_summary_in_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = record(gymnasium.make("Pendulum-v1"), [1, 2])
    moved = batch.observations[STATE].copy()
    moved[5, 1] += np.float32(0.25)
    path = store(tmp_path / "x", changed(batch, observation=moved), "Pendulum-v1")
    before = read_manifest(path)
    assert "replay" not in before.to_json()
    found = played(path, save=True, root=tmp_path / "root")
    after = read_manifest(path)
    assert replace(after, replay=None) == before
    assert check_digest(path, after) is None
    assert after.replay is not None
    assert {**after.replay, "date": "", "difference": 0} == {
        "environment": "Pendulum-v1",
        "gymnasium": gymnasium.__version__,
        "date": "",
        "tolerance": 1e-5,
        "counts": {"exact": 1, "diverging": 1},
        "difference": 0,
    }
    assert after.replay["difference"] == found.episodes[0].difference
    assert main(["info", str(path)]) == 0
    shown = (
        "2 of 2 episodes in Pendulum-v1: 1 exact, 1 diverging, difference up to 0.25 (gymnasium "
    )
    assert f"replayed\t{shown}" in capsys.readouterr().out
    assert main(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replay"] == after.replay
    card = offline_data.card(path, progress=False)
    assert "replayed: 2 of 2 episodes in Pendulum-v1: 1 exact, 1 div" in card
    assert shown.encode() in report_page(entry_at(path))
    played(path, save=True, root=tmp_path / "root", episodes=1, tolerance=1)
    again = read_manifest(path).replay
    assert again is not None
    assert (again["counts"], again["tolerance"]) == ({"rounding": 1}, 1)


def test_an_exported_part_has_no_summary_of_the_whole(tmp_path: Path) -> None:
    path = store(tmp_path / "x", record(gymnasium.make("CartPole-v1"), [1, 2]), "CartPole-v1")
    played(path, save=True, root=tmp_path / "root")
    part = offline_data.load_dataset(path, batch_size=4).episodes_at([0])
    for name, data in (("whole", path), ("part", part)):
        offline_data.export(data, tmp_path / name, to="ted", root=tmp_path / "root", progress=False)
    assert read_manifest(tmp_path / "whole").replay == read_manifest(path).replay is not None
    assert read_manifest(tmp_path / "part").replay is None


def test_a_summary_is_not_written_for_other_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = record(gymnasium.make("CartPole-v1"), [1])
    path = store(tmp_path / "x", batch, "CartPole-v1")
    whole = (path / MANIFEST).read_bytes()
    entry = entry_at(path)
    (path / MANIFEST).write_bytes(whole.replace(b"CartPole-v1", b"CartPole-v0"))
    with pytest.raises(IntegrityError, match=r"its digest is .*; nothing was recorded"):
        amend_manifest(entry, tmp_path, SILENT, replay=None)
    (path / MANIFEST).write_bytes(whole)
    other = store(tmp_path / "y", record(gymnasium.make("CartPole-v1"), [2]), "CartPole-v1")
    with pytest.raises(IntegrityError, match="the dataset was replaced meanwhile"):
        amend_manifest(replace(entry, path=other), tmp_path, SILENT, replay=None)
    with pytest.raises(ManifestError, match=r"replay\.gymnasium"):
        amend_manifest(entry, tmp_path, SILENT, replay={**SUMMARY, "gymnasium": "\x1b[2J"})
    assert (path / MANIFEST).read_bytes() == whole
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(gymnasium, "make", None)  # nothing is played
    with pytest.raises(AccessError, match="x is read-only") as error:
        played(path, save=True)
    assert "convert(" in str(error.value.hint)
    assert (path / MANIFEST).read_bytes() == whole


SUMMARY = {
    "environment": "CartPole-v1",
    "gymnasium": "1.2.1",
    "date": "2026-01-31",
    "tolerance": 0,
    "counts": {"exact": 1},
    "difference": None,
}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = record(gymnasium.make("Pendulum-v1"), [1, 2])
    path = str(store(tmp_path / "x", shifted(batch, 1), "Pendulum-v1"))
    assert main(["replay", path]) == 0
    shown = capsys.readouterr()
    assert "actions are shifted by one row" in shown.out
    assert "2 episodes in Pendulum-v1: 2 different" in shown.err
    assert main(["replay", path, "--episodes", "1", "--fail", "--json"]) == 1
    assert '"counts"' in capsys.readouterr().out
    good = str(store(tmp_path / "y", batch, "Pendulum-v1"))
    assert main(["replay", good, "--fail"]) == 0
    assert "Pendulum-v1" in repr(played(tmp_path / "x"))


def test_mujoco_states(tmp_path: Path) -> None:
    pytest.importorskip("mujoco")
    env: Any = gymnasium.make("InvertedPendulum-v5")
    rng, seen, acts, rewards, places, speeds = np.random.default_rng(0), [], [], [], [], []
    observation, _ = env.reset()

    def note() -> None:
        seen.append(observation)
        places.append(env.unwrapped.data.qpos.copy())
        speeds.append(env.unwrapped.data.qvel.copy())

    note()
    for _ in range(8):
        acts.append(rng.uniform(-0.1, 0.1, 1).astype(np.float32))
        observation, reward, _, _, _ = env.step(acts[-1])
        rewards.append([float(reward)])
        note()
    env.close()
    flags = np.zeros((8, 1), bool)
    batch = EpisodeBatch(
        np.array([8]),
        {
            ACTION: np.array(acts),
            ("next", "reward"): np.array(rewards),
            ("next", "terminated"): flags,
            ("next", "truncated"): flags,
        },
        {
            STATE: np.array(seen),
            ("info", "qpos"): np.array(places),
            ("info", "qvel"): np.array(speeds),
        },
        np.ones(1, bool),
    )
    assert played(store(tmp_path / "x", batch, "InvertedPendulum-v5")).counts == {"exact": 1}
    (one,) = played(store(tmp_path / "y", shifted(batch, 1), "InvertedPendulum-v5")).episodes
    assert one.cause == "actions are shifted by one row: row t has the action of t - 1"


@pytest.fixture(autouse=True)
def _no_warning_is_an_error_here(recwarn: pytest.WarningsRecorder) -> Iterator[None]:
    yield
    unexpected = [one for one in recwarn if "wrappers" not in str(one.message)]
    assert not unexpected, [str(one.message) for one in unexpected]
