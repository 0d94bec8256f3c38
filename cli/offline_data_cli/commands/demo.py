"""`demo`: a tiny dataset recorded on this machine, converted, checked and sampled offline.

Recording runs as a separate process, this module: Minari's `DataCollector` writes to the folder in
the process's environment variable `MINARI_DATASETS_PATH`.
"""

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from offline_data.base.config import child_environ
from offline_data.base.errors import MissingDependencyError, OfflineDataError
from offline_data_cli.commands.inspection import info_result, sample_result, stats_result
from offline_data_cli.commands.manage import verify_entry
from offline_data_cli.options import Context, option
from offline_data_cli.result import Result, combine

NAME = "demo/cartpole"
BATCH = 32
EPISODES = 20
RECORDED = "demo/cartpole-v0"  # Minari's id of the recorded dataset


def demo(
    context: Context, keep: Annotated[bool, option(f"Keep the dataset as local:{NAME}.")] = False
) -> Result:
    """Record, convert, verify and sample a tiny dataset; works offline."""
    import tempfile

    from offline_data import api
    from offline_data.analysis.info import entry_info
    from offline_data.store.library import entry_at

    say, progress = context.progress.note, context.progress
    with tempfile.TemporaryDirectory(prefix="offline-data-demo-") as folder:
        settings = replace(context.settings, offline=True)
        if not keep:
            settings = replace(settings, root=Path(folder) / "root")
        say(f"recording {EPISODES} episodes of CartPole-v1 with Minari's DataCollector")
        recorded = record(Path(folder))
        say(f"converting them to local:{NAME}, comparing every row with the source")
        stored = api.convert(
            recorded,
            NAME,
            source="minari",
            audit="all",
            force=True,
            settings=settings,
            progress=progress,
        )
        say(f"verifying it, computing statistics and sampling a batch of {BATCH}")
        entry, path = entry_at(stored.path), stored.path
        steps = {
            "info": info_result(entry_info(entry)),
            "verify": verify_entry(replace(context, settings=settings), entry),
            "stats": stats_result(api.stats(path, settings=settings, progress=progress)),
            "sample": sample_result(entry, BATCH),
        }
    say(f"kept in {stored.path}" if keep else "the demo dataset was deleted")
    shown = [
        replace(result, blocks=(f"$ offline-data {name} local:{NAME}", *result.blocks))
        for name, result in steps.items()
    ]
    data = {"id": str(stored.id), **{name: result.data for name, result in steps.items()}}
    return replace(combine(data, shown), ids=(str(stored.id),))


def record(folder: Path) -> Path:
    """Record `EPISODES` episodes with Minari's `DataCollector` under `folder`; returns their folder.

    Raises `MissingDependencyError`, as `DataCollector` uses jax, and `OfflineDataError`.
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
    return folder / RECORDED


def main() -> None:
    """Push the cart in the direction its pole leans, and one time in ten the other way."""
    import numpy as np
    from minari import DataCollector

    from offline_data.formats.environments import make_environment

    collector = DataCollector(make_environment({"id": "CartPole-v1"}), record_infos=False)
    for seed in range(EPISODES):
        noise = np.random.default_rng(seed)
        observation, _ = collector.reset(seed=seed)
        ended = False
        while not ended:
            lean = int(observation[2] + observation[3] > 0)
            action = lean if noise.random() > 0.1 else 1 - lean
            observation, _, terminated, truncated, _ = collector.step(action)
            ended = terminated or truncated
    collector.create_dataset(
        RECORDED,
        algorithm_name="lean",
        author="offline-data demo",
        author_email="none",
        code_permalink="none",
        description="CartPole pushed the way its pole leans, recorded by `offline-data demo`.",
        ref_min_score=0.0,
        ref_max_score=500.0,
    )
    collector.close()


if __name__ == "__main__":
    main()
