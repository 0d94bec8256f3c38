"""Each environment of a vector has the episodes that it returned, in every autoreset mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.errors import FormatError, UsageError
from offline_data.store.reader import open_reader
from tests.pipeline.record.games import BOX, NESTED, Game, Played, assert_recorded, ended

gymnasium = pytest.importorskip("gymnasium", "1.1", reason="version 1.0 has no AutoresetMode")
AutoresetMode: Any = gymnasium.vector.AutoresetMode
SyncVectorEnv: Any = gymnasium.vector.SyncVectorEnv

MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


def in_order_of_the_file(path: Path, games: list[Played]) -> list[Played]:
    """Return the episodes in the order in which they ended, told by their rewards, which all differ."""
    reader, by_rewards = open_reader(path), {tuple(game.rewards): game for game in games}
    assert len(by_rewards) == len(games)
    batches = [reader.episode_batch(n, n + 1) for n in range(reader.episode_count)]
    return [by_rewards.pop(tuple(b.steps[("next", "reward")][:, 0].tolist())) for b in batches]


def play(env: Any, steps: int) -> None:
    env.action_space.seed(0)
    env.reset(seed=[11, 12, 13], options={"level": 1})
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        done = terminated | truncated
        if env.metadata["autoreset_mode"] is AutoresetMode.DISABLED and done.any():
            env.reset(options={"reset_mask": done})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("space", [BOX, NESTED], ids=["box", "nested"])
@pytest.mark.parametrize("steps", [13, pytest.param(300, marks=pytest.mark.slow)])
def test_every_value_is_recorded(tmp_path: Path, mode: Any, space: Any, steps: int) -> None:
    games = [Game(space, space, first=first) for first in (0, 1002, 2003)]
    vector = SyncVectorEnv([lambda game=game: game for game in games], autoreset_mode=mode)
    with offline_data.Recorder(vector, "mine", root=tmp_path) as env:
        assert isinstance(env, gymnasium.vector.VectorWrapper)
        play(env, steps)
    played = ended(*games)
    assert len(played) > 10
    assert_recorded(env.stored.path, in_order_of_the_file(env.stored.path, played), games[0])


@pytest.mark.parametrize("mode", MODES[:2])
def test_marks_and_discarded_episodes(tmp_path: Path, mode: Any) -> None:
    """Lengths are 3, 1, 4, 2, … and 4, 2, …: what is marked or dropped is what the last step belonged to."""
    games = [Game(first=0), Game(first=1002)]
    vector = SyncVectorEnv([lambda game=game: game for game in games], autoreset_mode=mode)
    with offline_data.Recorder(vector, "mine", root=tmp_path) as env:
        env.reset()
        env.mark(good=True)
        for _ in range(3):
            env.step(np.array([0, 0]))
        env.mark(0, good=False)  # the ended one of 0
        env.discard(1)  # under way
        while len(games[1].played) == 1:
            env.step(np.array([0, 0]))
        while not games[1].played[1].rewards[1:]:
            env.step(np.array([0, 0]))
        env.discard(1)  # ended
        env.step(np.array([0, 0]))
        env.step(np.array([0, 0]))
        env.mark(1, good=True)
    dropped = [id(game) for game in games[1].played[:2]]
    played = [game for game in ended(*games) if id(game) not in dropped]
    path = env.stored.path
    ordered = in_order_of_the_file(path, played)
    good = [game is games[1].played[2] for game in ordered]
    assert sum(good) == 1
    assert_recorded(path, ordered, games[0], {"good": good})


def test_a_vector_of_gymnasiums_own_is_replayed(tmp_path: Path) -> None:
    env: Any
    with offline_data.Recorder(
        gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"),
        "mine",
        root=tmp_path,
    ) as env:
        env.action_space.seed(0)
        env.reset(seed=5)
        for _ in range(60):
            env.step(env.action_space.sample())
    ds = offline_data.open_dataset(env.stored.path)
    for episode, seed in (
        (e, int(ds.episodes["seed"][e])) for e in range(len(ds.episodes["seed"]))
    ):
        if seed < 0:
            continue
        made, found = ds.make_env(), ds.episode(episode).to_numpy()
        seen = [made.reset(seed=seed)[0]]
        seen += [made.step(int(action))[0] for action in found["actions"]]
        assert np.array_equal(np.stack(seen), found["observations"])


@pytest.mark.parametrize("mode", MODES[:2])
def test_processes_and_another_kind_of_vector(tmp_path: Path, mode: Any) -> None:
    """What CartPole's own vector says of the end of an episode is like that of others."""
    lengths = []
    for way in ("sync", "async", "vector_entry_point"):
        more = {"vector_kwargs": {"autoreset_mode": mode}} if way != "vector_entry_point" else {}
        vector = gymnasium.make_vec("CartPole-v1", num_envs=2, vectorization_mode=way, **more)
        with offline_data.Recorder(vector, way, root=tmp_path) as env:
            env.action_space.seed(0)
            env.reset(seed=5)
            for _ in range(80):
                env.step(env.action_space.sample())
        reader = open_reader(env.stored.path)
        lengths.append(reader.lengths.tolist())
        flags = reader.step(("next", "terminated"))[:, 0].astype(bool)
        assert flags.sum() == len(lengths[-1]) - reader.episodes[("interrupted",)].sum()
    assert lengths[0] == lengths[1]


def test_a_vector_without_the_last_observation(tmp_path: Path) -> None:
    class Silent(SyncVectorEnv):  # type: ignore[misc]
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            return *rest, {name: info for name, info in infos.items() if name != "final_obs"}

    game = Game()
    vector = Silent([lambda: game], autoreset_mode=AutoresetMode.SAME_STEP)
    env = offline_data.Recorder(vector, "mine", root=tmp_path)
    env.reset()
    with pytest.raises(FormatError, match="has no final_obs"):
        [env.step(np.array([0])) for _ in range(3)]
    env.close()
    with pytest.raises(UsageError, match="no episode"):
        _ = env.stored
