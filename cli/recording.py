"""Record a small Minari dataset on CartPole; a program of its own, for Minari's folder is global.

`DataCollector` writes where the environment variable `MINARI_DATASETS_PATH` of its process says.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from offline_data.config import child_environ
from offline_data.errors import MissingDependencyError, OfflineDataError

if TYPE_CHECKING:
    from pathlib import Path

DATASET = "demo/cartpole-v0"
"""Minari's id of what is recorded."""

EPISODES = 20


def record(folder: Path) -> Path:
    """Record `EPISODES` episodes with Minari's `DataCollector`; returns the dataset's folder.

    Args:
        folder: An existing folder that Minari's datasets go to.

    Raises:
        MissingDependencyError: gymnasium, or jax, which `DataCollector` uses, is not installed.
        OfflineDataError: Recording failed; the message has its last words.
    """
    missing = [name for name in ("gymnasium", "jax") if find_spec(name) is None]
    if missing:
        raise MissingDependencyError(
            f"Recording with Minari needs {' and '.join(missing)}",
            hint="pip install 'offline-data[demo]'",
        )
    done = subprocess.run(  # noqa: S603 - this package's own module
        [sys.executable, "-W", "ignore", "-m", __name__],
        env=child_environ(MINARI_DATASETS_PATH=str(folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise OfflineDataError(f"Recording with Minari failed: {last[0]}")
    return folder / DATASET


def main() -> None:
    """Record in this process."""
    import gymnasium
    from minari import DataCollector

    collector = DataCollector(gymnasium.make("CartPole-v1"), record_infos=False)
    for episode in range(EPISODES):
        _play(collector, seed=episode)
    collector.create_dataset(
        DATASET,
        algorithm_name="lean",
        author="offline-data demo",
        author_email="none",
        code_permalink="none",
        description="CartPole pushed the way its pole leans, recorded by `offline-data demo`.",
        ref_min_score=0.0,
        ref_max_score=500.0,
    )
    collector.close()


def _play(collector: Any, seed: int) -> None:
    """Play one episode: push the way the pole leans, and one time in ten the other way."""
    import numpy as np

    noise = np.random.default_rng(seed)
    observation, _ = collector.reset(seed=seed)
    ended = False
    while not ended:
        lean = int(observation[2] + observation[3] > 0)
        action = lean if noise.random() > 0.1 else 1 - lean
        observation, _, terminated, truncated, _ = collector.step(action)
        ended = terminated or truncated


if __name__ == "__main__":
    main()
