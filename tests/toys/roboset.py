"""Toy traces of RoboHive's logger, with values that identify their file, trial and row.

Row `t` of trial `n` in file `f` has the code `100000·f + 1000·n + t + 1`. Observations are the code plus
`j/64`, actions its negative (NaN in the last row), rewards a tenth of it, `qpos` the code plus 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def toy_trial(file: int, trial: int, horizon: int, *, old: bool = False) -> dict[str, NDArray[Any]]:
    """Return the datasets of a trial by path, `horizon + 1` rows each.

    An `old` one is from a logger that did not record the last row: it has `horizon` rows.
    """
    code = 100000.0 * file + 1000 * trial + np.arange(horizon + (not old)) + 1
    actions = -code[:, None] + np.arange(2) / 64
    if not old:
        actions[-1] = np.nan
    none = np.full(len(code), np.nan, np.float16)
    return {
        "observations": code[:, None] + np.arange(5) / 64,
        "actions": actions,
        "rewards": code / 10,
        "done": np.zeros(len(code), bool),
        "time": code / 100,
        "env_infos/time": code / 100,
        "env_infos/solved": code % 3 == 0,
        "env_infos/proprio_dict": none,
        "env_infos/state/qpos": np.repeat(code[:, None] + 0.5, 3, axis=1),
        "env_infos/state/act": none,
    }


def write_trials(path: Path, trials: Mapping[str, Mapping[str, NDArray[Any]]]) -> Path:
    """Write groups of datasets like RoboHive; creates the folder and returns the file."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, datasets in trials.items():
            for place, values in datasets.items():
                packed = {"compression": "gzip", "compression_opts": 4} if values.shape else {}
                file.create_dataset(f"{name}/{place}", data=values, **packed)
    return path


def write_roboset(
    folder: Path, seeds: tuple[int, ...] = (0, 10, 2), trials: tuple[int, ...] = (0, 1, 2, 10)
) -> Path:
    """Write a file per seed, in which trial `n` has a horizon of `2 + n % 4`; returns the folder."""
    for seed in seeds:
        content = {f"Trial{n}": toy_trial(seed, n, 2 + n % 4) for n in trials}
        write_trials(folder / f"toy_seed{seed}.h5", content)
    return folder
