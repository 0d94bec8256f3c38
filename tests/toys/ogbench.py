"""Toy OGBench files, as `np.savez_compressed` of OGBench's scripts writes them.

Row `t` of trajectory `e` has the code `100·(e + 1) + t`: observations, actions and velocities are made
of it. Positions walk over the goals of the tasks, so that rewards differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

WIDTHS = {
    "pointmaze": 2,
    "antmaze": 15,
    "humanoidmaze": 28,
    "antsoccer": 22,
    "cube": 35,
    "scene": 25,
}
"""Elements of `qpos`; those of cubes are enough for three."""
BUTTONS = {"scene": 2, "puzzle": 9}


def toy_arrays(
    kind: str, rows: Sequence[int], *, image: bool = False, seed: int = 0
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file with so many rows in each trajectory.

    Example:
        >>> arrays = toy_arrays("antmaze", [3, 2])
        >>> arrays["observations"][:, 0].tolist(), arrays["terminals"].tolist()
        ([100.0, 101.0, 102.0, 200.0, 201.0], [False, False, True, False, True])
    """
    code = np.concatenate([100.0 * (e + 1) + np.arange(count) for e, count in enumerate(rows)])
    rng = np.random.default_rng(seed)
    terminals = np.zeros(len(code), bool)
    terminals[np.cumsum(rows) - 1] = True
    observations = np.repeat(code[:, None], 3, axis=1).astype(np.float32)
    if image:
        observations = np.zeros((len(code), 8, 8, 3), np.uint8)
        observations[:, 0, 0, 0], observations[:, 0, 0, 1] = code // 100, code % 100
    arrays = {
        "observations": observations,
        "actions": -np.repeat(code[:, None], 2, axis=1).astype(np.float32),
        "terminals": terminals,
    }
    if kind == "powderworld":
        return {**arrays, "actions": code[:, None].astype(np.int32)}
    if kind in WIDTHS:
        arrays["qpos"] = rng.normal(size=(len(code), WIDTHS[kind])).astype(np.float32)
        arrays["qvel"] = np.repeat(code[:, None], 2, axis=1).astype(np.float32) + np.float32(0.5)
    if kind in BUTTONS:
        arrays["button_states"] = rng.integers(0, 2, (len(code), BUTTONS[kind]))
    return arrays


def write_ogbench(path: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    """Write a file; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


def load_by_hand(
    path: Path, ob_dtype: Any = np.float32, action_dtype: Any = np.float32, *, compact: bool = False
) -> dict[str, NDArray[Any]]:
    """Do what OGBench's `load_dataset` does with a file, one trajectory after the other."""
    with np.load(path) as file:
        seen, actions = file["observations"].astype(ob_dtype), file["actions"].astype(action_dtype)
        ends = np.flatnonzero(file["terminals"]) + 1
    assert ends[-1] == len(seen)
    trajectories = []
    for first, end in zip([0, *ends[:-1]], ends, strict=True):
        marks, valids = np.zeros((2, end - first), np.float32)
        marks[-2:] = valids[:-1] = 1
        one = {"observations": seen[first:end], "actions": actions[first:end], "terminals": marks}
        if compact:
            trajectories.append({**one, "valids": valids})
        else:
            before = {name: column[:-1] for name, column in one.items()}
            trajectories.append({**before, "next_observations": seen[first + 1 : end]})
    return {name: np.concatenate([t[name] for t in trajectories]) for name in trajectories[0]}


def load_by_ogbench(
    path: Path, ob_dtype: Any = np.float32, action_dtype: Any = np.float32, *, compact: bool = False
) -> dict[str, NDArray[Any]]:
    """Load a file with the package itself; skips the test where it is not installed."""
    utils = pytest.importorskip("ogbench.utils")
    found: dict[str, NDArray[Any]] = utils.load_dataset(path, ob_dtype, action_dtype, compact)
    return found


LOADERS = {"by hand": load_by_hand, "ogbench": load_by_ogbench}
