"""Steps a second of CartPole, played alone, with `Recorder`, and with Minari's `DataCollector`.

Each plays the same random actions, in episodes of about 22 steps, and closing is part of the time: of
`Recorder` the conversion and its audit, of `DataCollector` `create_dataset`.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

import offline_data
from benchmarks.timing import Row, interleaved

STEPS = 20_000
FACTS = ("algorithm_name", "author", "author_email", "code_permalink", "description")


def play(env: Any, steps: int) -> None:
    """Play random actions."""
    actions = np.random.default_rng(0).integers(0, 2, steps).tolist()
    env.reset(seed=0)
    for action in actions:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()


def record(root: Path, steps: int, *, close: bool = True) -> None:
    """Record with this package."""
    env = offline_data.Recorder(
        gymnasium.make("CartPole-v1"), "cartpole", root=root, force=True, progress=False
    )
    play(env, steps)
    if close:
        env.close()


def collect(folder: Path, steps: int) -> None:
    """Record with Minari."""
    from minari import DataCollector

    shutil.rmtree(folder / "cartpole", ignore_errors=True)
    env = DataCollector(gymnasium.make("CartPole-v1"))
    play(env, steps)
    scores = {"ref_min_score": 0.0, "ref_max_score": 1.0}
    env.create_dataset("cartpole/bench-v0", **dict.fromkeys(FACTS, "none"), **scores)
    env.close()


def run(folder: Path, *, repeats: int = 5, scale: float = 1.0) -> Iterator[Row]:
    """Measure playing, recording with and without closing, and Minari's collector."""
    warnings.simplefilter("ignore")
    steps = max(2_000, int(STEPS * scale))
    collected = folder / "minari"
    collected.mkdir()
    os.environ["MINARI_DATASETS_PATH"] = str(collected)
    alone = gymnasium.make("CartPole-v1")
    jobs = {
        "env.step alone": partial(play, alone, steps),
        "Recorder": partial(record, folder, steps),
        "Recorder, without closing": partial(record, folder / "open", steps, close=False),
        "Minari's DataCollector": partial(collect, collected, steps // 4),
    }
    seconds = interleaved(jobs, repeats=repeats)
    each = {name: time / steps * 1e6 for name, time in seconds.items()}
    each["Minari's DataCollector"] *= 4
    for name, time in each.items():
        over = f", {time - each['env.step alone']:.1f} µs over env.step"
        yield Row(
            "record CartPole",
            name,
            f"{time / each['Recorder']:.1f}×",
            f"{time:.1f} µs a step ({1e6 / time:,.0f} steps/s){'' if name == 'env.step alone' else over}",
            "≥ 5× Minari's steps/s" if name == "Recorder" else "",
        )
