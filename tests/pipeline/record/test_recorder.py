"""What one environment returned is what the dataset has, and how episodes end, are marked and dropped."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import offline_data
from offline_data.base.errors import FormatError, UsageError
from offline_data.pipeline.record import log
from offline_data.store.library import entry_at
from offline_data.store.manifest import Manifest
from offline_data.store.reader import open_reader
from tests.pipeline.record.games import BOX, IMAGE, NESTED, Game, assert_recorded, ended
from tests.syncs import Syncs

TEXT = spaces.Text(5)
SPACES = (BOX, IMAGE, NESTED, spaces.Discrete(4), spaces.MultiBinary([2, 3]), TEXT)


def manifest(env: Any) -> Manifest:
    return entry_at(env.stored.path).manifest


def play(env: Any, steps: int, **reset: Any) -> None:
    env.action_space.seed(0)
    env.reset(**reset)
    for _ in range(steps):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()


@pytest.mark.parametrize("space", SPACES, ids=str)
@pytest.mark.parametrize("role", ["observation", "action"])
def test_every_value_is_recorded(tmp_path: Path, space: Any, role: Any) -> None:
    game = Game(**{role: space})
    with offline_data.Recorder(game, "mine", root=tmp_path) as env:
        play(env, 12, seed=7, options={"level": 2})
    assert_recorded(env.stored.path, ended(game), game)
    assert offline_data.verify("local:mine", root=tmp_path).problems == ()
    if space is not TEXT:
        ds = offline_data.open_dataset(env.stored.path)
        assert getattr(ds, f"{role}_space") == space


def test_it_is_a_wrapper(tmp_path: Path) -> None:
    with offline_data.Recorder(gymnasium.make("CartPole-v1"), "mine", root=tmp_path) as env:
        assert isinstance(env, gymnasium.Wrapper)
        assert isinstance(env, offline_data.Recorder)
        assert gymnasium.wrappers.TransformReward(env, float).unwrapped is env.unwrapped
        result = env.reset()
        assert env.observation_space.contains(result[0])
    with pytest.raises(UsageError, match="not published: it has no episode"):
        _ = env.stored
    assert not offline_data.list_datasets(root=tmp_path)


def test_an_array_that_is_written_over_later(tmp_path: Path) -> None:
    class Reusing(Game):
        seen = np.zeros(3, np.float32)

        def _see(self) -> Any:
            self.seen += 1
            return self.seen

    game = Reusing()
    with offline_data.Recorder(game, "mine", root=tmp_path) as env:
        play(env, 9)
    assert_recorded(env.stored.path, ended(game), game)


def test_an_episode_that_reset_or_close_ends(tmp_path: Path) -> None:
    game = Game(first=2)
    with offline_data.Recorder(game, "mine", root=tmp_path) as env:
        env.reset(seed=1)
        env.step(0)
        env.step(1)
        env.reset(seed=2)
        env.step(2)
    games = ended(game)
    assert [game.terminated or game.truncated for game in games] == [False, False]
    assert_recorded(env.stored.path, games, game)
    assert any("interrupted" in note for note in manifest(env).notes)


def test_marks_and_discarded_episodes(tmp_path: Path) -> None:
    game = Game()
    with offline_data.Recorder(game, "mine", root=tmp_path) as env:
        env.reset()
        env.mark(success=True, task="lift")
        env.step(0)
        env.step(0)
        env.step(0)  # 0: ended
        env.mark(score=1)
        env.reset()
        env.step(0)
        env.discard()  # 1: ended
        env.reset()
        env.step(0)
        env.discard()  # 2: under way
        env.step(0)
        env.reset()
        env.step(0)
        env.mark(score=np.float32(0.5))
        env.discard()  # 3: marked
        env.reset()
        env.step(0)  # 4
        env.mark(score=0.25)
    kept = [ended(game)[at] for at in (0, 4)]
    marks = {"success": [True, False], "task": ["lift", None], "score": [1.0, 0.25]}
    assert_recorded(env.stored.path, kept, game, marks)


def test_values_that_the_space_does_not_hold(tmp_path: Path) -> None:
    class Wider(Game):
        def _see(self) -> Any:
            return super()._see().astype(np.float64) / 3

    game = Wider(action=BOX, first=2)
    with offline_data.Recorder(game, "mine", root=tmp_path) as env:
        env.reset()
        env.step(game.action_space.sample())
        env.reset()
        env.step(game.action_space.sample())
        with pytest.raises(
            FormatError, match="action is float64, and a value does not fit float32"
        ) as error:
            env.step([0.1, 0.2, 0.3])
        assert "astype('float32')" in str(error.value.shell_hint)
        with pytest.raises(FormatError, match=r"action is float32 \[2\]; expected float32 \[3\]"):
            env.step(np.zeros(2, np.float32))
        env.step([0.5, 1, 0])
    games, game.observation_space = ended(game), spaces.Box(-1, 1, (3,), np.float64)
    assert_recorded(env.stored.path, games, game)
    notes = manifest(env).notes
    assert "observation has the recorded dtype, float64; its space says float32." in notes


@pytest.mark.parametrize("large", [2**53, 2**53 + 1])
def test_integers_of_earlier_steps_become_floats(tmp_path: Path, large: int) -> None:
    class Mixed(Game):
        seen = 0

        def _see(self) -> Any:
            self.seen += 1
            return np.array([large]) if self.seen == 1 else np.array([0.5])

    env = offline_data.Recorder(Mixed(spaces.Box(0, 2**62, (1,), np.int64)), "mine", root=tmp_path)
    env.reset()
    if large == 2**53:
        env.step(1)
    else:
        with pytest.raises(
            FormatError, match=r"int64 in earlier steps .* does not hold 9007199254740993"
        ):
            env.step(1)
    env._held.close()


@pytest.mark.parametrize("first", [2**53 + 1, 0.5])
@pytest.mark.parametrize("resume", [False, True])
def test_marks_of_integers_and_floats(tmp_path: Path, first: float, *, resume: bool) -> None:
    env = offline_data.Recorder(Game(), "mine", root=tmp_path)
    play(env, 1)
    env.mark(score=first)
    if resume:
        env.close()
        env = offline_data.Recorder(Game(), "mine", root=tmp_path, resume=True)
        play(env, 1)
    if first == 0.5:
        with pytest.raises(UsageError, match="score is 9007199254740993; expected float64"):
            env.mark(score=2**53 + 1)
        env.mark(score=float("nan"))
        env.close()
        return
    env.mark(score=0.5) if resume else play(env, 9)
    env.mark(score=0.5)
    with pytest.raises(FormatError, match="9007199254740993 and floats, and float64 does not hold"):
        env.close()
    env._held.close()


@pytest.mark.parametrize("large", [2**53, 2**53 + 1])
def test_infos_of_integers_and_floats(tmp_path: Path, large: int) -> None:
    class Mixed(Game):
        def step(self, action: Any) -> Any:
            *result, info = super().step(action)
            return (*result, {**info, "mixed": large if len(self.played[-1].actions) == 1 else 0.5})

    with offline_data.Recorder(Mixed(first=2), "mine", root=tmp_path) as env:
        play(env, 9)
    found = env.stored.manifest.tables["steps"].by_key
    assert (("next", "info", "mixed") in found) == (large == 2**53)


def test_a_step_that_cannot_be_recorded_drops_its_episode(tmp_path: Path) -> None:
    class Shrinking(Game):
        def _see(self) -> Any:
            return super()._see()[
                : 2 if len(self.played) == 3 and len(self.played[-1].actions) == 1 else 3
            ]

    game = Shrinking(first=2)
    with offline_data.Recorder(game, "mine", root=tmp_path) as env:
        for _ in range(2):
            env.reset()
            env.step(0)
        env.reset()
        with pytest.raises(FormatError, match=r"observation is float32 \[2\]"):
            env.step(0)
        env.step(0)
        env.reset()
        env.step(0)
    games = [one for one in ended(game) if one is not game.played[2]]
    assert_recorded(env.stored.path, games, game)


def test_infos_that_are_not_kept_are_listed(tmp_path: Path) -> None:
    game = Game()
    with offline_data.Recorder(game, "mine", root=tmp_path) as env:
        play(env, 9)
    dropped = {leaf["key"]: leaf["reason"] for leaf in manifest(env).dropped}
    assert dropped == {
        "infos/name": "Its values are not numbers of one shape.",
        "infos/score": "Not all steps of the first episode have it.",
    }
    with offline_data.Recorder(Game(), "bare", root=tmp_path, record_infos=False) as env:
        play(env, 9)
    tables = manifest(env).tables.values()
    assert not any("info" in leaf.key for table in tables for leaf in table.leaves)


def test_an_info_that_changes_later_is_filled(tmp_path: Path) -> None:
    class Changing(Game):
        def step(self, action: Any) -> Any:
            *rest, _ = super().step(action)
            changed = {"speed": "none"} if len(self.played) == 2 else {"speed": 1.5}
            return *rest, {**changed, **({} if len(self.played) < 3 else {"late": 1})}

    with offline_data.Recorder(Changing(), "mine", root=tmp_path) as env:
        play(env, 5)
    ds = offline_data.open_dataset(env.stored.path)
    speed = ds[:]["next", "info", "speed"]
    assert speed.isnan().tolist() == [False, False, False, True, False]
    assert speed[[0, 1, 2, 4]].tolist() == [1.5] * 4
    assert any("speed is missing" in note for note in ds.manifest.notes)
    assert "infos/late" in {leaf["key"] for leaf in ds.manifest.dropped}


def test_autoreset_of_one_environment(tmp_path: Path) -> None:
    game = Game()
    with offline_data.Recorder(gymnasium.wrappers.Autoreset(game), "mine", root=tmp_path) as env:
        env.reset(seed=3)
        for _ in range(14):
            env.step(1)
    assert_recorded(env.stored.path, ended(game), game)


@pytest.mark.filterwarnings("ignore:`eval_env` is set to None")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a folder that Minari replaces
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_equal_to_a_conversion_of_minaris_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    made = [gymnasium.make("Pendulum-v1", max_episode_steps=9) for _ in range(2)]
    collector = minari.DataCollector(made[0])
    with offline_data.Recorder(made[1], "mine", root=tmp_path) as recorder:
        for env in (collector, recorder):
            for seed in range(3):
                env.action_space.seed(seed)
                env.reset(seed=seed, options={"x_init": 0.5})
                for _ in range(9):
                    env.step(env.action_space.sample())
    facts = ("algorithm_name", "author", "author_email", "code_permalink", "description")
    scores = {"ref_min_score": 0.0, "ref_max_score": 1.0}
    collector.create_dataset("pendulum/test-v0", **dict.fromkeys(facts, "none"), **scores)
    collector.close()
    theirs = offline_data.convert(tmp_path / "minari/pendulum/test-v0", "theirs", root=tmp_path)
    mine, other = (offline_data.open_dataset(one.path) for one in (recorder.stored, theirs))
    assert mine.manifest.spaces == other.manifest.spaces
    for name in ("id", "seed", "options"):
        assert list(mine.episodes[name]) == list(other.episodes[name])
    assert (mine[:] == other[:]).all()
    assert mine.manifest.environment == other.manifest.environment
    assert mine.make_env().spec.max_episode_steps == 9


@pytest.mark.slow
def test_memory_is_that_of_an_episode(tmp_path: Path) -> None:
    big = spaces.Box(-1, 1, (1000,), np.float64)
    seen = big.sample()

    class Big(Game):
        def _see(self) -> Any:
            return seen

        def reset(self, **_: Any) -> Any:
            self.played.clear()
            return super().reset()

    env = offline_data.Recorder(Big(big), "mine", root=tmp_path)
    play(env, 100)
    tracemalloc.start()
    play(env, 2_000)  # 16 MB
    assert tracemalloc.get_traced_memory()[1] < 2e6
    tracemalloc.stop()
    env.close()
    assert env.stored.transitions > 2_000


def test_long_episodes(tmp_path: Path) -> None:
    class Long(Game):
        def step(self, action: Any) -> Any:
            seen, reward, _, _, info = super().step(action)
            self.played[-1].terminated = self.played[-1].truncated = False
            return seen, reward, False, False, info

    game = Long()
    with offline_data.Recorder(game, "mine", root=tmp_path) as env:
        play(env, 5000)
        play(env, 3000)
    assert_recorded(env.stored.path, ended(game), game)


def test_it_is_synced_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(log, "SYNC_SECONDS", 0.05)
    syncs = Syncs(monkeypatch)
    env = offline_data.Recorder(Game(), "mine", root=tmp_path)
    play(env, 5)
    files = [*(tmp_path / ".recordings").glob("*.log")]
    end = time.monotonic() + 10
    while syncs.lacks(files) and time.monotonic() < end:
        time.sleep(0.01)
    assert len(files) == 1
    assert syncs.lacks(files) == []
    for _ in range(2):  # the second time is nothing
        env.close()


def test_a_vector_of_any_version_of_gymnasium(tmp_path: Path) -> None:
    games = [Game(first=0), Game(first=1002)]
    vector = gymnasium.vector.SyncVectorEnv([lambda game=game: game for game in games])
    with offline_data.Recorder(vector, "mine", root=tmp_path) as env:
        env.reset(seed=[1, 2])
        for _ in range(30):
            env.step(env.action_space.sample())
    reader = open_reader(env.stored.path)
    rewards = reader.step(("next", "reward"))[:, 0].tolist()
    played = [game for game in ended(*games) if game.rewards]
    assert set(rewards) >= {reward for game in played for reward in game.rewards}
    assert len(set(rewards)) == len(rewards)


def test_a_spec_that_json_cannot_hold(tmp_path: Path) -> None:
    spec = gymnasium.envs.registration.EnvSpec(
        "Odd-v0",
        entry_point=Game,
        disable_env_checker=True,
        kwargs={"first": 2, "action": spaces.Discrete(2)},
    )
    with offline_data.Recorder(gymnasium.make(spec), "mine", root=tmp_path) as env:
        play(env, 4)
    manifest = offline_data.open_dataset(env.stored.path).manifest
    assert manifest.environment["id"] == "Odd-v0"
    assert manifest.environment["kwargs"] == {"first": 2}
    left = {leaf["key"] for leaf in manifest.dropped}
    assert {"environment/entry_point", "environment/kwargs/action"} <= left
