"""Steps of random episodes, as TED, and their comparison with an episode that was stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

BOX = spaces.Box(-1, 1, (3,), np.float32)

Step = tuple[Any, Any, float, bool, bool, Any]
"""Observation, action, reward, done, timeout, next observation."""


def play(space: Any, action: Any, count: int, seed: int) -> list[Step]:
    """Return steps of random episodes of one environment."""
    space.seed(seed)
    action.seed(seed)
    rng, steps, seen = np.random.default_rng(seed), list[Step](), space.sample()
    for number in range(count):
        after, done = space.sample(), bool(rng.random() < 0.2)
        timeout = done and bool(rng.random() < 0.5)
        steps.append((seen, action.sample(), number + 1000.0 * seed, done, timeout, after))
        seen = space.sample() if done else after
    return steps


def cut(steps: list[Step]) -> list[list[Step]]:
    episodes: list[list[Step]] = [[]]
    for step in steps:
        episodes[-1].append(step)
        if step[3]:
            episodes.append([])
    return [episode for episode in episodes if episode]


def assert_episode(
    batch: Any, episode: list[Step], space: Any, *, final: bool, timeouts: bool = True
) -> None:
    names: Any = (
        [("observation", name) for name in space.spaces]
        if isinstance(space, spaces.Dict)
        else [("observation",)]
    )
    assert bool(batch.final_observation[0]) == final
    for key in names:
        seen = [one[0] for one in episode] + [episode[-1][5 if final else 0]]
        wanted = np.stack([np.asarray(one[key[1]] if len(key) > 1 else one) for one in seen])
        assert batch.observations[key].dtype == wanted.dtype
        assert np.array_equal(batch.observations[key], wanted)
    assert np.array_equal(batch.steps[("action",)], np.stack([one[1] for one in episode]))
    assert batch.steps[("next", "reward")][:, 0].tolist() == [one[2] for one in episode]
    terminated = episode[-1][3] and not (timeouts and episode[-1][4])
    before = [False] * (len(episode) - 1)
    assert batch.steps[("next", "terminated")][:, 0].tolist() == [*before, terminated]
    assert batch.steps[("next", "truncated")][:, 0].tolist() == [*before, not terminated]


def ted(steps: list[Step], trajectories: list[int] | None = None) -> Any:
    import torch
    from tensordict import TensorDict

    def column(place: int, *shape: int) -> Any:
        return torch.from_numpy(np.stack([np.asarray(one[place]) for one in steps])).reshape(
            -1, *shape
        )

    done, timeout = column(3, 1), column(4, 1)
    ends = {"done": done, "terminated": done & ~timeout, "truncated": timeout}
    after = {"observation": column(5, 3), "reward": column(2, 1), **ends}
    begin = {name: torch.zeros_like(done) for name in ends}
    root = {"observation": column(0, 3), "action": column(1), "next": after, **begin}
    if trajectories is not None:
        root["collector"] = {"traj_ids": torch.tensor(trajectories)}
    return TensorDict(root, [len(steps)])


def write_dump(path: Path, steps: list[Step], cursor: int) -> Path:
    """Write the folder of a full ring as `ReplayBuffer.dumps`; row `cursor` is the oldest."""
    split = len(steps) - cursor
    ted([*steps[split:], *steps[:split]]).memmap(path / "storage")
    (path / "writer").mkdir()
    for name, content in {
        "buffer_metadata.json": {"batch_size": 4, "consume_after_n_samples": None},
        "storage/storage_metadata.json": {"metadata": {}, "is_pytree": False, "len": len(steps)},
        "writer/metadata.json": {"cursor": cursor, "write_count": len(steps) + cursor},
    }.items():
        (path / name).write_text(json.dumps(content))
    return path
