"""An environment that keeps what it returned in plain lists, and what a dataset of it must hold."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from offline_data.store.reader import open_reader

BOX = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (8, 9, 3), np.uint8)
NESTED = spaces.Dict(
    {
        "camera": IMAGE,
        "pose": spaces.Tuple([spaces.Discrete(5, start=-2), spaces.Box(0, 9, (2, 2), np.float64)]),
        "flags": spaces.MultiBinary(4),
        "levels": spaces.MultiDiscrete([3, 7]),
    }
)


@dataclass
class Played:
    """One episode, as the environment saw it."""

    seed: int
    options: Any
    observations: list[Any]
    infos: list[dict[str, Any]]
    actions: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False


class Game(gymnasium.Env):  # type: ignore[misc]
    """Random observations, and episodes of 3, 1, 4, 2, 3, … steps that end in both ways.

    The observation and an array of the info are written over by the next step.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, observation: Any = BOX, action: Any = None, *, first: int = 0) -> None:
        self.observation_space = copy.deepcopy(observation)
        self.action_space = copy.deepcopy(spaces.Discrete(3) if action is None else action)
        self.observation_space.seed(first)
        self.played: list[Played] = []
        self._number, self._position = first, np.zeros(2, np.float32)

    def _see(self) -> Any:
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        seen, info = self._see(), {"count": len(self.played), "nest": {"level": 0.5}}
        start = Played(
            -1 if seed is None else seed, copy.deepcopy(options), [copy.deepcopy(seen)], [info]
        )
        self.played.append(copy.deepcopy(start))
        self._number += 1
        return seen, info

    def step(self, action: Any) -> Any:
        game = self.played[-1]
        game.actions.append(copy.deepcopy(action))
        seen, reward = self._see(), 10.25 * self._number + len(game.actions)
        self._position += 1
        left = (2, 3, 1, 4)[self._number % 4] - len(game.actions)
        game.terminated, game.truncated = (
            left <= 0 and self._number % 3 > 0,
            left <= 0 and self._number % 3 == 0,
        )
        info = {"count": -left, "nest": {"level": reward}, "position": self._position, "name": "a"}
        if left <= 0:
            info["score"] = 1.0
        game.observations.append(copy.deepcopy(seen))
        game.rewards.append(reward)
        game.infos.append(copy.deepcopy(info))
        return seen, reward, game.terminated, game.truncated, info


def rows(values: list[Any], space: Any, key: tuple[str, ...]) -> Iterator[tuple[Any, np.ndarray]]:
    """Yield the leaves of values of a space, stacked."""
    if isinstance(space, spaces.Dict):
        for name, part in space.spaces.items():
            yield from rows([value[name] for value in values], part, (*key, name))
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space.spaces):
            yield from rows([value[number] for value in values], part, (*key, str(number)))
    else:
        dtype = object if isinstance(space, spaces.Text) else space.dtype
        yield key, np.array(values, dtype)


def assert_recorded(
    path: Path, games: list[Played], env: Any, marks: Mapping[str, Any] = {}
) -> None:
    """A dataset has these episodes, value by value."""
    reader = open_reader(path)
    assert reader.episode_count == len(games)
    for number, game in enumerate(games):
        batch = reader.episode_batch(number, number + 1)
        count = len(game.actions)
        expected = {
            **dict(rows(game.actions, env.action_space, ("action",))),
            ("next", "reward"): np.array(game.rewards)[:, None],
            ("next", "terminated"): np.array([[False]] * (count - 1) + [[game.terminated]]),
            ("next", "truncated"): np.array(
                [[False]] * (count - 1) + [[game.truncated or not game.terminated]]
            ),
            ("next", "info", "position"): np.stack([i["position"] for i in game.infos[1:]]),
        }
        seen = {
            **dict(rows(game.observations, env.observation_space, ("observation",))),
            ("info", "count"): np.array([i["count"] for i in game.infos]),
            ("info", "nest", "level"): np.array([i["nest"]["level"] for i in game.infos]),
        }
        for found, wanted in ((batch.steps, expected), (batch.observations, seen)):
            assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
            for key, column in wanted.items():
                assert (found[key].dtype, found[key].shape) == (column.dtype, column.shape), key
                assert np.array_equal(found[key], column), key
        assert batch.final_observation.all()
        columns = {
            key[0]: None if column[0] != column[0] else column[0]  # NaN
            for key, column in batch.episodes.items()
        }
        interrupted = not (game.terminated or game.truncated)
        told = None if not game.options else json.dumps(game.options)
        facts = {"id": number, "seed": game.seed, "options": told, "interrupted": interrupted}
        expected_columns = {**facts, **{name: values[number] for name, values in marks.items()}}
        assert columns == expected_columns, (columns, expected_columns)


def ended(*envs: Any) -> list[Played]:
    """Return the episodes with at least one step, environment by environment."""
    return [game for env in envs for game in env.unwrapped.played if game.actions]
