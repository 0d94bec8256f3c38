"""Lags that `align` finds in MuJoCo rollouts: as recorded, and with actions or rewards shifted.

The environments run in this process. A right answer for rollouts as recorded is 0 or undecided; a shift
counts as found where the leaf was decided before it was shifted.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing import Row
from offline_data.analysis.alignment.find import align_dataset
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED, Key, join_key
from offline_data.store.reader import open_reader
from offline_data.testing.toy import write_toy

ENVIRONMENTS = ("Hopper-v5", "HalfCheetah-v5", "InvertedPendulum-v5", "Reacher-v5", "Ant-v5")
EPISODES, LENGTH = 40, 100
SHIFTS = (-3, -2, -1, 1, 2, 3)
TARGET = "none claimed for rows as recorded; 95 % of shifts found, none with another lag"

Policy = Callable[[NDArray[Any]], NDArray[Any]]


def run(folder: Path, *, repeats: int, scale: float) -> list[Row]:
    """Compare `repeats` random subsets of each set as recorded, and each shift once."""
    if not (find_spec("gymnasium") and find_spec("mujoco")):
        return [Row("align", "MuJoCo", "", "not installed: pip install 'gymnasium[mujoco]'")]
    return list(_rows(folder, repeats, max(8, int(EPISODES * scale))))


def _rows(folder: Path, repeats: int, episodes: int) -> Iterator[Row]:
    for environment in ENVIRONMENTS:
        for policy in ("random", "noisy network", "linear"):
            batch = _record(environment, policy, episodes)
            begin = time.process_time()
            parts = [batch.transitions * (seed + 1) // repeats for seed in range(repeats)]
            recorded = [_lags(folder, batch, rows, seed) for seed, rows in enumerate(parts)]
            seconds = (time.process_time() - begin) / repeats
            false = sum(any(found.values()) for found in recorded)
            notes = [f"{false} of {repeats} claimed"]
            for leaf in (("action",), REWARD):
                name, result = join_key(leaf), "undecided"
                if recorded[-1][name] == 0:
                    lags = {by: _lags(folder, _shift(batch, leaf, by))[name] for by in SHIFTS}
                    right = sum(lag == by for by, lag in lags.items())
                    wrong = sum(lag not in {None, by} for by, lag in lags.items())
                    result = f"{right} of {len(SHIFTS)} found, {wrong} wrong"
                notes.append(f"{name}: {result}")
            notes.append(f"{seconds:.2f} CPU s")
            target = TARGET if policy == "random" else ""
            yield Row(f"align, {environment}", policy, "", "; ".join(notes), target)


def _lags(
    folder: Path, batch: EpisodeBatch, rows: int = 50_000, seed: int = 0
) -> dict[str, int | None]:
    """Return the lag of the action and of the reward of some of these episodes."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        write_toy(Path(place, "set"), [batch])
        found = align_dataset(open_reader(Path(place, "set")), most_rows=rows, seed=seed)
        return {leaf.leaf: leaf.lag for leaf in found.leaves}


def _record(environment: str, policy: str, episodes: int) -> EpisodeBatch:
    import gymnasium

    env: Any = gymnasium.make(environment)
    low, high = env.action_space.low, env.action_space.high
    act = _policy(policy, env.observation_space.shape, low.shape, np.random.default_rng(0))
    seen, acted, rewards, lengths, ends = [], [], [], [], []
    for episode in range(episodes):
        seen.append(env.reset(seed=episode)[0])
        for _ in range(LENGTH):
            acted.append(low + (np.clip(act(seen[-1]), -1, 1) + 1) / 2 * (high - low))
            observation, reward, terminated, _, _ = env.step(acted[-1])
            seen.append(observation)
            rewards.append([float(reward)])
            ends.append([terminated])
            if terminated:
                break
        lengths.append(len(acted) - sum(lengths))
    terminated = np.array(ends, bool)
    last = np.zeros_like(terminated)
    last[np.cumsum(lengths) - 1] = True
    steps: dict[Key, NDArray[Any]] = {
        ("action",): np.array(acted),
        REWARD: np.array(rewards),
        TERMINATED: terminated,
        TRUNCATED: last & ~terminated,
    }
    known = np.ones(episodes, bool)
    return EpisodeBatch(np.array(lengths), steps, {("observation",): np.array(seen)}, known)


def _policy(name: str, seen: Any, acted: Any, draw: np.random.Generator) -> Policy:
    """Return a policy of actions from -1 to 1: random, a network with noise, or a linear one without."""
    wide = draw.normal(size=(*seen, 32)) / np.sqrt(seen[0])
    narrow = draw.normal(size=(32, *acted)) / np.sqrt(32)
    if name == "random":
        return lambda _: draw.uniform(-1, 1, acted)
    if name == "linear":
        return lambda at: 0.7 * np.clip(at, -5, 5) @ wide @ narrow
    return lambda at: np.tanh(np.clip(at, -5, 5) @ wide) @ narrow + 0.3 * draw.normal(size=acted)


def _shift(batch: EpisodeBatch, leaf: Key, by: int) -> EpisodeBatch:
    """Return the batch with a leaf stored `by` rows late; at the ends of episodes values repeat."""
    starts = np.repeat(batch.starts, batch.lengths)
    rows = np.arange(batch.transitions) - by
    rows = np.clip(rows, starts, starts + np.repeat(batch.lengths, batch.lengths) - 1)
    return replace(batch, steps={**batch.steps, leaf: batch.steps[leaf][rows]})
