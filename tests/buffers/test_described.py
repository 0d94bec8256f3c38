"""Spaces, environments, scores and figures of datasets, as users of Minari and D4RL ask for them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from minari.serialization import deserialize_space

import offline_data
from offline_data.analysis.figures import LeafStats
from offline_data.base.config import Settings
from offline_data.base.errors import (
    FormatError,
    MissingDependencyError,
    NotFoundError,
    OfflineDataError,
    UsageError,
)
from offline_data.buffers.dataset import Dataset
from offline_data.formats.catalogues.d4rl import read_table
from offline_data.formats.d4rl.environments import SUCCESSORS, successor_of
from offline_data.pipeline.ingest import Options, convert
from offline_data.store.layout import LAYOUTS
from offline_data.testing.toy import toy_batch, write_toy
from tests.toys.minari import box, toy_episode, write_minari

from .declared import acting, declaring

EXTREMES = [-(2**63), 2**63 - 1]
FLOATS = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)


def value_of(space: Any, leaf: Any) -> Any:
    """Return a row of a batch in the form that the environment gave it in."""
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: value_of(part, leaf[name]) for name, part in space.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(value_of(part, leaf[str(n)]) for n, part in enumerate(space))
    return leaf if isinstance(leaf, str) else leaf.numpy()


@pytest.fixture
def real(realdata: Path, settings: Settings) -> Any:
    """Convert a real Minari dataset, and open it."""

    def opened(name: str, **options: Any) -> Dataset:
        found = convert(realdata / name, "real", settings, Options(), source="minari")
        return offline_data.open_dataset(found.path, **options)

    return opened


REAL = [
    "classic/cartpole",
    "classic/pendulum",
    "mujoco/hopper",
    "robotics/pointmaze-umaze",
    "synth/dict",
    "synth/img",
    "synth/text",
    "toytext/frozenlake",
]


@pytest.mark.parametrize("name", REAL)
def test_spaces_are_minaris_and_hold_the_rows(real: Any, realdata: Path, name: str) -> None:
    ds = real(f"minari/{name}/random-hdf5-v0", decode_text=True)
    file = realdata / f"minari/{name}/random-hdf5-v0/data/metadata.json"
    metadata = json.loads(file.read_text("utf-8"))
    view = ds.filter(lambda episodes: episodes["length"] > 0)
    for root in ("observation", "action"):
        space = getattr(ds, f"{root}_space")
        assert (
            space == deserialize_space(metadata[f"{root}_space"]) == getattr(view, f"{root}_space")
        )
        for row in range(0, len(ds), len(ds) // 5):
            assert space.contains(value_of(space, ds[row][root]))


@pytest.mark.parametrize("name", ["classic/cartpole", "classic/pendulum", "toytext/frozenlake"])
def test_the_environment_again(real: Any, name: str) -> None:
    """Replayed from its seed with the stored actions, it gives the stored observations."""
    ds = real(f"minari/{name}/random-hdf5-v0")
    env = ds.make_env()
    assert env.observation_space == ds.observation_space
    assert env.action_space == ds.action_space
    episode = ds.episode(1)
    recorded = episode.to_numpy()
    for time, action in enumerate([None, *recorded["actions"][:5]]):
        if action is None:
            observation, _ = env.reset(seed=int(episode.seed))
        else:
            observation, reward, *_ = env.step(action)
            assert reward == pytest.approx(recorded["rewards"][time - 1], rel=1e-5)
        np.testing.assert_allclose(observation, recorded["observations"][time], rtol=1e-5)
    env.close()


def test_a_policy_acts_on_normalized_observations(real: Any) -> None:
    ds = real("minari/classic/pendulum/random-hdf5-v0")
    scale = offline_data.normalize("observation").fit(ds)
    rows = ds[:]["observation"].double().numpy()
    env = ds.make_env()
    observation, _ = env.reset(seed=0)
    for _ in range(3):
        seen = scale.normalized("observation", observation)
        want = (observation - rows.mean(0)) / (rows.std(0) + 1e-3)
        np.testing.assert_allclose(seen, want, rtol=1e-5, atol=1e-6)
        observation, *_ = env.step(np.tanh(seen[:1]))
    env.close()


def test_keywords_and_limits_of_the_spec(tmp_path: Path) -> None:
    spec = {"id": "FrozenLake-v1", "max_episode_steps": 7, "kwargs": {"map_name": "8x8"}}
    other = {"id": "FrozenLake-v1", "kwargs": {"map_name": "4x4", "is_slippery": False}}
    ds = declaring(tmp_path / "toy", environment=spec, about={"eval_env_spec": other})
    env = ds.make_env()
    assert (env.spec.max_episode_steps, env.observation_space.n) == (7, 64)
    assert ds.make_env(eval_env=True).observation_space.n == 16
    assert ds.recover_environment(True).spec.kwargs["is_slippery"] is False
    assert ds.recover_environment(map_name="4x4", max_episode_steps=9).observation_space.n == 16
    view = ds.subset(range(2)).make_env(max_episode_steps=9, render_mode="ansi")
    assert (view.spec.max_episode_steps, view.render_mode) == (9, "ansi")
    with pytest.raises(UsageError, match=r"FrozenLake-v1 cannot be made: .*'depth'"):
        ds.make_env(depth=3)
    with pytest.raises(UsageError, match="FrozenLake-v1 cannot be made: '9x9'"):
        ds.make_env(map_name="9x9")


def test_no_evaluation_environment_is_the_other_one(tmp_path: Path) -> None:
    ds = declaring(tmp_path / "toy", environment={"id": "CartPole-v1"})
    assert ds.make_env(eval_env=True).spec.id == "CartPole-v1"
    assert ds.make_env().spec.max_episode_steps == 500


@pytest.fixture
def bait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name a module that would leave a file behind if it was imported."""
    (tmp_path / "bait_of_a_test.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n"
        "def make(*arguments, **keywords): raise AssertionError\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return "bait_of_a_test"


HOSTILE: list[dict[str, Any]] = [
    {"id": "BAIT:Thing-v0"},
    {"id": "Thing-v0", "entry_point": "BAIT:make"},
    {"id": "BAIT", "entry_point": "os:system", "kwargs": {"command": "touch BAIT.ran"}},
    {"id": ["BAIT:Thing-v0"]},
    {"id": {"entry_point": "BAIT:make"}},
    {"id": "GymV21Environment-v0", "kwargs": {"env_id": "BAIT:Thing-v0"}},
    {"id": "GymV26Environment-v0", "kwargs": {"env_id": "BAIT:Thing-v0"}},
    {"id": "GymV26Environment", "kwargs": {"env_id": "BAIT:Thing-v0"}},
    {"id": "CartPole-v1", "kwargs": {"id": "BAIT:Thing-v0"}},
    {"id": "CartPole-v1", "kwargs": ["BAIT:make"]},
    {"id": "CartPole-v1", "kwargs": {"entry_point": "BAIT:make"}},
    {"id": "CartPole-v1", "max_episode_steps": "BAIT"},
    {"id": "CartPole-v1", "max_episode_steps": -5},
    {"entry_point": "BAIT:make"},
]


@pytest.mark.parametrize("spec", HOSTILE, ids=json.dumps)
def test_a_hostile_spec_runs_nothing(tmp_path: Path, bait: str, spec: dict[str, Any]) -> None:
    spec = json.loads(json.dumps(spec).replace("BAIT", bait))
    ds = declaring(
        tmp_path / "toy", environment=spec, about={"requirements": [f"{bait}>=1\n\x1b[31m"]}
    )
    with pytest.raises(OfflineDataError) as caught:
        ds.make_env()
    assert caught.type in {NotFoundError, FormatError, UsageError}
    assert "\x1b" not in f"{caught.value} {caught.value.hint}"
    assert bait not in sys.modules
    assert not list(tmp_path.rglob("*.ran"))


def test_entry_points_and_wrappers_beside_a_registered_id(tmp_path: Path, bait: str) -> None:
    wrapper = {"name": "Flat", "entry_point": f"{bait}:make", "kwargs": {}}
    spec = {
        "id": "CartPole-v1",
        "entry_point": f"{bait}:make",
        "vector_entry_point": f"{bait}:make",
    }
    assert declaring(tmp_path / "one", environment=spec).make_env().spec.id == "CartPole-v1"
    ds = declaring(tmp_path / "two", environment={**spec, "additional_wrappers": [wrapper]})
    with pytest.warns(UserWarning, match="without the wrappers .*'Flat'"):
        env = ds.make_env()
    assert env.unwrapped.__class__.__module__.startswith("gymnasium.")
    assert bait not in sys.modules


def test_what_is_not_registered_is_named_with_what_it_needs(real: Any, tmp_path: Path) -> None:
    ds = real("minari_door_human_v2/D4RL/door/human-v2")
    with pytest.raises(NotFoundError, match="No environment 'AdroitHandDoor-v1'") as caught:
        ds.make_env()
    assert "gymnasium-robotics>=1.2.4" in str(caught.value.hint)
    with pytest.raises(NotFoundError, match="does not say which environment"):
        declaring(tmp_path / "toy").make_env()


def test_without_gymnasium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = declaring(tmp_path / "toy", environment={"id": "CartPole-v1"})
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    for name in ("make_env", "observation_space", "action_space"):
        with pytest.raises(MissingDependencyError, match=f"{name} needs gymnasium") as caught:
            getattr(ds, name)()
        assert caught.value.hint == "pip install 'offline-data[envs]'"


def test_spaces_of_what_is_stored(tmp_path: Path) -> None:
    """Nothing is declared: shapes and dtypes, in which every row is."""
    ds = declaring(tmp_path / "toy")
    assert ds.action_space == gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert not ds.action_space.is_bounded()
    assert sorted(ds.observation_space) == ["image", "mission", "state"]
    assert ds.observation_space["state"] == FLOATS
    assert ds.observation_space["image"] == gymnasium.spaces.Box(0, 255, (48, 48, 3), np.uint8)
    for row in range(len(ds)):
        assert ds.action_space.contains(ds[row]["action"].numpy())
        assert ds.observation_space.contains(value_of(ds.observation_space, ds[row]["observation"]))
    whole = acting(tmp_path / "whole", np.array([3, 2**62]))
    assert [whole.action_space.low.item(), whole.action_space.high.item()] == EXTREMES
    assert whole.action_space.contains(whole[1]["action"].numpy())
    bits = acting(tmp_path / "bits", np.array([[True, False], [False, False]]))
    assert bits.action_space.contains(bits[0]["action"].numpy())
    with pytest.raises(NotFoundError, match="no space of complex128"):
        _ = acting(tmp_path / "complex", np.array([1j, 2])).action_space


def test_spaces_that_are_declared_in_part(tmp_path: Path) -> None:
    """As those of Atari and Procgen, and those of Open X, which are words."""
    spaces = {
        "observation": {"type": "Box", "dtype": "uint8", "shape": [84, 84]},
        "action": {"type": "Discrete", "n": 15},
    }
    ds = declaring(tmp_path / "toy", spaces=spaces)
    assert ds.observation_space == gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
    assert ds.action_space == gymnasium.spaces.Discrete(15)
    words = {"observation": {"state": "float32 [3]"}, "action": "float32 [1]"}
    ds = declaring(tmp_path / "words", spaces=words)
    assert (ds.observation_space["state"], ds.action_space.shape) == (FLOATS, (1,))


INVALID: list[dict[str, Any]] = [
    {"type": "Graph"},
    {"type": "Box"},
    {"type": ["Box"]},
    *(
        {"type": "Box", "dtype": "float32", **wrong}
        for wrong in (
            {"shape": 3},
            {"shape": [-1]},
            {"shape": ["a"]},
            {"shape": [1 << 40]},
            {"shape": [1 << 31, 1 << 31, 1 << 31]},
            {"shape": [2], "low": [1, 2, 3]},
            {"shape": [2], "low": "low"},
            {"shape": [1], "low": [2.0], "high": [1.0]},
            {"shape": [1], "dtype": "no dtype"},
            {"shape": [1], "dtype": "object", "low": [{}], "high": [{}]},
        )
    ),
    *({"type": "Discrete", "n": wrong} for wrong in (0, 10**30, "x")),
    {"type": "MultiDiscrete", "nvec": [0]},
    {"type": "MultiBinary", "n": "x"},
    {"type": "Text", "max_length": "x"},
    *({"type": "Dict", "subspaces": wrong} for wrong in ([1], {"a": None})),
    {"type": "Tuple", "subspaces": 5},
]


@pytest.mark.parametrize("space", INVALID, ids=json.dumps)
def test_spaces_that_are_none(tmp_path: Path, space: dict[str, Any]) -> None:
    ds = declaring(tmp_path / "toy", spaces={"action": space})
    with pytest.raises(FormatError, match="The action space of local:toy@1 cannot be read"):
        _ = ds.action_space
    assert sorted(ds.observation_space) == ["image", "mission", "state"]


def test_normalized_score(real: Any, tmp_path: Path) -> None:
    ds = real("minari_door_human_v2/D4RL/door/human-v2")
    low, high = -45.80706024169922, 2940.578369140625
    returns = ds.episodes["return"]
    want = (returns.numpy() - low) / (high - low)
    scores = ds.normalized_score(returns)
    assert isinstance(scores, torch.Tensor)
    np.testing.assert_allclose(scores, want)
    np.testing.assert_allclose(ds.normalized_score(returns.numpy()), want)
    np.testing.assert_allclose(ds.normalized_score(returns.tolist()), want)
    assert ds.normalized_score(high) == 1.0
    assert ds.filter(lambda episodes: episodes["length"] > 250).normalized_score(low) == 0.0
    for about in ({}, {"ref_min_score": 1.0}, {"ref_min_score": 1, "ref_max_score": 1},
                  {"ref_min_score": "0", "ref_max_score": 1}):  # fmt: skip
        ds = declaring(tmp_path / f"toy{len(str(about))}", about=about)
        with pytest.raises(NotFoundError, match="has no reference scores"):
            ds.normalized_score(3.0)


def test_scores_of_d4rl(tmp_path: Path) -> None:
    """As D4RL publishes them: 100 times 0.4 or so is in every table of papers."""
    ds = declaring(tmp_path / "toy", about=read_table()["halfcheetah-medium-v2"].about)
    assert ds.normalized_score(-280.178953) == 0
    assert ds.normalized_score(12135.0) == 1
    assert 100 * ds.normalized_score(5000.0) == pytest.approx(42.5301, abs=1e-4)


def figures(values: Any) -> list[Any]:
    """Return count, least, greatest, mean and deviation of each feature, from all values at once."""
    kept = np.where(np.isfinite(values.astype(float)), values.astype(float), np.nan)
    return [
        np.isfinite(kept).sum(0),
        *(f(kept, axis=0) for f in (np.nanmin, np.nanmax, np.nanmean, np.nanstd)),
    ]


def assert_features(found: Any, values: Any, ranges: Any = None) -> None:
    """Compare with numpy; `ranges`: values of the minimum and the maximum, with final observations."""
    each, wanted = found.features, [*figures(values)]
    wanted[1:3] = [*figures(values if ranges is None else ranges)][1:3]
    for one, want in zip(
        (each.count, each.min, each.max, each.mean, each.std), wanted, strict=True
    ):
        assert one.shape == values.shape[1:]
        np.testing.assert_allclose(one, want, rtol=1e-9, atol=1e-12)


def test_describe(real: Any) -> None:
    ds = real("minari_door_human_v2/D4RL/door/human-v2")
    found = ds.describe()
    assert (found.transitions, found.episodes) == (6729, 25)
    observations = np.concatenate([one.observations.numpy() for one in ds.iter_episodes()])
    assert observations.shape == (6729 + 25, 39)
    assert_features(found["observation"], ds[:]["observation"].numpy(), observations)
    assert_features(found["action"], ds[:]["action"].numpy())
    assert found["next", "reward"].mean == pytest.approx(float(ds[:]["next", "reward"].mean()))
    mean = float(ds.episodes["return"].mean())
    assert found.per_episode.returns.mean == pytest.approx(mean)
    table = [line.split() for line in str(found).splitlines()]
    assert ["FEATURE", "TYPE", "MIN", "MAX", "MEAN", "STD", "NAN", "INF"] in table
    assert [row[0] for row in table if len(row) == 8][1:] == [leaf.key for leaf in found.leaves]
    assert ["action", "float32[28]"] in [row[:2] for row in table]
    lines = str(found["action"]).splitlines()
    last = ds[:]["action"].double().mean(0)[27]
    assert lines[-1].split()[0] == "action[27]"
    assert lines[-1].split()[1] == "6,729"
    assert float(lines[-1].split()[4]) == pytest.approx(float(last), rel=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_describe_a_view(tmp_path: Path, layout: Any) -> None:
    """Whole episodes in another order, parts of some, and rows in any order."""
    batch = toy_batch([4, 1, 7, 3, 5], text=True, unknown_final=[1, 3])
    write_toy(tmp_path / "toy", [batch], layout=layout)
    ds = offline_data.open_dataset(tmp_path / "toy")
    views = [
        (ds.episodes_at([3, 0, 1]), {3: (0, 3), 0: (0, 4), 1: (0, 1)}),
        (ds.subset(range(2, 9)), {0: (2, 4), 1: (0, 1), 2: (0, 4)}),
        (ds.subset(range(10, 14)), {2: (5, 7), 3: (0, 2)}),
    ]
    for view, parts in views:
        found: Any = view.describe()
        actions = [-1000 * (e + 1) - t - 1 for e, (a, b) in parts.items() for t in range(a, b)]
        states = [
            1000 * (e + 1) + t + 1
            for e, (a, b) in parts.items()
            for t in range(a, b + (e not in {1, 3} or b < [4, 1, 7, 3, 5][e]))
        ]
        assert (found.transitions, found.episodes) == (len(actions), len(parts))
        assert_features(found["action"], np.array(actions)[:, None])
        assert_features(
            found["observation.state"],
            -np.array(actions)[:, None].repeat(3, 1),
            np.array(states)[:, None].repeat(3, 1),
        )
        assert found["observation.mission"].rows == len(actions)
        assert found.per_episode.length.max == max(b - a for a, b in parts.values())
        assert found.per_episode.returns.max == pytest.approx(max(batch.returns[list(parts)]))
        assert found.per_episode.truncated == pytest.approx(sum(e % 2 for e in parts) / len(parts))
    assert views[0][0].describe().per_episode.without_final_observation == 2
    shuffled = ds.subset([5, 2, 5, 19]).describe()
    assert_features(shuffled["action"], np.array([-3001.0, -1003, -3001, -5005])[:, None])
    assert (shuffled.transitions, shuffled.episodes) == (4, 3)
    assert shuffled["observation.state"].rows == 4


def test_figures_of_each_number(tmp_path: Path) -> None:
    """Values that are not finite, integers that float64 cannot hold, and images, which have none."""
    batch = toy_batch([4, 3], images=True)
    values = np.array(batch.steps["action",]).repeat(2, 1)
    values[[0, 3, 6], 0] = np.nan, np.inf, -np.inf
    values[:, 1] = np.nan
    big = 2**62 + np.arange(14).reshape(7, 2)
    steps = {**batch.steps, ("action",): values, ("info", "big"): big}
    write_toy(tmp_path / "toy", [replace(batch, steps=steps)])
    found = offline_data.open_dataset(tmp_path / "toy").describe()
    action: Any = found["action"]
    each = action.features
    assert each.count.tolist() == [4, 0]
    kept = values[[1, 2, 4, 5], 0].astype(float)
    assert (each.min[0], each.max[0]) == (kept.min(), kept.max())
    assert each.mean[0] == pytest.approx(kept.mean())
    assert each.std[0] == pytest.approx(kept.std())
    for one in (each.min, each.max, each.mean, each.std):
        assert np.isnan(one[1])
    assert (action.nan, action.inf, action.min) == (8, 2, kept.min())
    assert action.std == pytest.approx(kept.std())
    exact: Any = found["info/big"]
    assert exact.features.min.tolist() == [2**62, 2**62 + 1]
    assert (exact.min, exact.max) == (2**62, 2**62 + 13)
    image = found["observation/image"]
    assert isinstance(image, LeafStats)
    assert image.features is None
    assert str(image).count("\n") == 1


def test_minari_recorded_under_an_older_version(tmp_path: Path, settings: Settings) -> None:
    """A `MultiDiscrete` without `start`, parts of tuples, as toys of every storage have them."""
    space = {"type": "Tuple", "subspaces": [box(2), {"type": "MultiDiscrete", "nvec": [3, 5]}]}
    space["subspaces"][1]["dtype"] = "int32"  # type: ignore[index]
    folder = write_minari(tmp_path / "x-v0", [toy_episode(0, 3, action=space)], action=space)
    found = convert(folder, "older", settings, Options(), source="minari")
    whole = gymnasium.spaces.MultiDiscrete([3, 5], dtype=np.int32)
    want = gymnasium.spaces.Tuple([gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32), whole])
    assert offline_data.open_dataset(found.path).action_space == want


class Anywhere(gymnasium.Env[Any, Any]):  # type: ignore[misc]
    """Takes the keywords that the environments which succeed D4RL's take."""

    observation_space = action_space = FLOATS

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords


@pytest.fixture
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register every successor, as their packages do when they are imported."""
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    for one in SUCCESSORS.values():
        gymnasium.registry.pop(one.id, None)
        gymnasium.register(one.id, Anywhere, max_episode_steps=1)


def of_d4rl(folder: Path, name: str) -> Dataset:
    return declaring(folder / name, environment=read_table()[name].environment)


@pytest.mark.usefixtures("_registered")
@pytest.mark.filterwarnings("ignore:.*(is out of date|Overriding environment)")  # Gymnasium's own
@pytest.mark.parametrize(
    ("name", "made", "steps", "keywords", "difference"),
    [
        ("hopper-medium-v2", "Hopper-v4", 1000, {}, "instead of mujoco-py"),
        ("ant-random-v0", "Ant-v4", 1000, {"use_contact_forces": True}, "contact forces"),
        (
            "antmaze-medium-play-v2",
            "AntMaze_Medium-v4",
            1000,
            {"continuing_task": False},
            r"'reset_cell': \[1, 1\], 'goal_cell': \[6, 6\]",
        ),
        ("antmaze-umaze-v2", "AntMaze_UMaze-v4", 700, {"continuing_task": False}, "achieved_goal"),
        ("maze2d-large-v1", "PointMaze_Large-v3", 800, {}, r"'goal_cell': \[7, 9\]"),
        ("maze2d-open-dense-v0", "PointMaze_OpenDense-v3", 150, {}, "row and column"),
        (
            "kitchen-mixed-v0",
            "FrankaKitchen-v1",
            280,
            {"tasks_to_complete": ["microwave", "kettle", "bottom burner", "light switch"]},
            "dict of 59 numbers",
        ),
        ("pen-human-v1", "AdroitHandPen-v1", 100, {}, "instead of mujoco-py"),
        ("door-human-longhorizon-v0", "AdroitHandDoor-v1", 300, {}, "wrong sign"),
    ],
)
def test_environments_of_d4rl(
    tmp_path: Path, name: str, made: str, steps: int, keywords: Any, difference: str
) -> None:
    ds = of_d4rl(tmp_path, name)
    with pytest.warns(UserWarning, match=f"{name} of D4RL is {made} now: .*{difference}"):
        env = ds.make_env()
    assert (env.spec.id, env.spec.max_episode_steps) == (made, steps)
    assert env.unwrapped.keywords == keywords
    with pytest.warns(UserWarning, match="of D4RL"):
        assert ds.make_env(max_episode_steps=5).spec.max_episode_steps == 5


def test_every_set_of_these_families_has_a_successor() -> None:
    """The mazes of `eval` have another form, which no registered environment has."""
    without = [name for name in read_table() if successor_of(name) is None]
    families = ("bullet-", "carla-", "flow-", "minigrid-", "antmaze-eval-", "maze2d-eval-")
    assert without == [name for name in read_table() if name.startswith(families)]


def test_environments_by_their_id(tmp_path: Path, bait: str) -> None:
    """A registered one, whatever the dataset names; D4RL's own where somebody registered it."""
    ds = of_d4rl(tmp_path, "hopper-medium-v2")
    assert ds.make_env(id="CartPole-v1", max_episode_steps=7).spec.max_episode_steps == 7
    assert declaring(tmp_path / "toy").make_env(id="CartPole-v1").spec.max_episode_steps == 500
    for name in (f"{bait}:Thing-v0", "Thing-v0", "CartPole-v1:x"):
        with pytest.raises(NotFoundError, match="No environment"):
            ds.make_env(id=name)
    assert bait not in sys.modules
    with pytest.raises(NotFoundError, match="'AntMaze_UMaze-v4'") as caught:
        ds.make_env(id="antmaze-umaze-v2")
    assert "gymnasium-robotics" in str(caught.value.hint)
    gymnasium.register("hopper-medium-v2", "gymnasium.envs.classic_control:CartPoleEnv")
    try:
        assert ds.make_env().spec.id == "hopper-medium-v2"
    finally:
        del gymnasium.registry["hopper-medium-v2"]
