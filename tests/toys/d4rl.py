"""Toy D4RL files of every family, with values that identify their episode and step.

Step `t` of episode `e` has the code `1000·e + t + 1`. An observation is its step's code, plus
`j/64` in its `j`-th element; an action is its negative; a reward a tenth of it; an info of width
`w` is the code plus 0.5 in every element. All rows differ, and none is zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.formats.catalogues.d4rl import read_table


@dataclass(frozen=True)
class ToyD4RL:
    """Description of a toy file.

    Attributes:
        dataset: Published dataset whose rule and file name it has.
        episodes: Length of each episode, and the flags of its last row: `terminal`, `timeout`,
            `both`, or `none`.
        timeouts: Whether there is a column `timeouts`; likewise `next_observations` and `metadata`.
        infos: Names under `infos`, with the shape of a row.
        demonstrations: Whether `infos` is kitchen's column of demonstration numbers.
        goals: Other rows with `terminals` set: episode and step.
        flags: dtype of `terminals`.
        as_columns: Whether `rewards` and `terminals` are `[N, 1]`.
    """

    dataset: str
    episodes: tuple[tuple[int, str], ...]
    observation: tuple[int, ...] = (5,)
    action: tuple[int, ...] = (2,)
    timeouts: bool = True
    next_observations: bool = False
    infos: tuple[tuple[str, tuple[int, ...]], ...] = ()
    demonstrations: bool = False
    goals: tuple[tuple[int, int], ...] = ()
    flags: str = "bool"
    as_columns: bool = False
    metadata: bool = False

    @property
    def lengths(self) -> list[int]:
        """Number of rows of each episode."""
        return [length for length, _ in self.episodes]

    @property
    def codes(self) -> NDArray[np.float64]:
        """`[N]` code of each row."""
        return np.concatenate([1000.0 * e + np.arange(n) + 1 for e, n in enumerate(self.lengths)])

    @property
    def terminals(self) -> NDArray[np.bool_]:
        """`[N]` True for rows whose flag is set."""
        flags = _last_rows(self.episodes, ("terminal", "both"))
        for episode, step in self.goals:
            flags[sum(self.lengths[:episode]) + step] = True
        return flags


TOYS = {
    "adroit": ToyD4RL(
        "door-human-v1",
        ((4, "timeout"), (6, "timeout"), (5, "timeout")),
        infos=(("door_body_pos", (3,)), ("qpos", (4,))),
    ),
    "antmaze": ToyD4RL(
        "antmaze-umaze-v2",
        ((6, "both"), (6, "timeout"), (6, "timeout")),
        infos=(("goal", (2,)), ("qpos", (3,))),
        goals=((0, 3), (0, 4), (2, 1)),
        flags="float32",
    ),
    "bullet": ToyD4RL(
        "bullet-hopper-medium-v0",
        ((3, "terminal"), (4, "timeout"), (2, "both")),
        next_observations=True,
    ),
    "carla": ToyD4RL(
        "carla-lane-v0", ((4, "timeout"), (1, "terminal"), (3, "none")), observation=(12,)
    ),
    "flow": ToyD4RL(
        "flow-ring-random-v0", ((500, "none"), (500, "none"), (3, "none")), timeouts=False
    ),
    "kitchen": ToyD4RL(
        "kitchen-complete-v0",
        ((4, "terminal"), (6, "terminal"), (3, "terminal")),
        timeouts=False,
        demonstrations=True,
        flags="float32",
    ),
    "maze2d": ToyD4RL(
        "maze2d-umaze-v1",
        ((5, "timeout"), (4, "timeout"), (6, "timeout"), (3, "none")),
        observation=(4,),
        infos=(("goal", (2,)),),
    ),
    "minigrid": ToyD4RL(
        "minigrid-fourrooms-v0",
        ((5, "terminal"), (7, "terminal"), (1, "terminal")),
        observation=(7, 7, 3),
        action=(),
        timeouts=False,
        infos=(("goal", (2,)), ("orientation", ()), ("pos", (2,))),
        flags="float32",
        as_columns=True,
    ),
    "mujoco-v0": ToyD4RL(
        "hopper-medium-replay-v0",
        ((20, "terminal"), (1000, "none"), (25, "none")),
        timeouts=False,
    ),
    "mujoco-v2": ToyD4RL(
        "hopper-medium-v2",
        ((5, "terminal"), (7, "timeout"), (1, "terminal"), (4, "none")),
        next_observations=True,
        infos=(("action_log_probs", ()), ("qpos", (3,)), ("deep/qvel", (3,))),
        metadata=True,
    ),
}
"""One toy of each family."""


def write_published(folder: Path, toy: ToyD4RL, *, pieces: tuple[int, ...] = ()) -> Path:
    """Write a toy file under its published name in `folder`, created if missing; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_d4rl_hdf5(folder / read_table()[toy.dataset].file, toy, pieces=pieces)


def write_d4rl_hdf5(
    path: Path, toy: ToyD4RL = TOYS["adroit"], *, pieces: tuple[int, ...] = ()
) -> Path:
    """Write a toy file, split at the rows `pieces` in D4RL's chunked variant if any; returns `path`."""
    import h5py

    with h5py.File(path, "w") as file:
        for name, values in columns_of(toy).items():
            for number, piece in enumerate(np.split(values, pieces)):
                where = f"virtual/{number}/{name}" if pieces else name
                file.create_dataset(where, data=piece, compression="gzip", chunks=True)
        if toy.metadata:
            file["metadata/algorithm"] = np.bytes_("SAC")
            file["metadata/iteration"] = np.int32(600)
            file["metadata/policy/fc0/weight"] = np.ones((3, 2), np.float32)
    return path


def columns_of(toy: ToyD4RL) -> dict[str, NDArray[Any]]:
    """Return the columns of a toy file by name, `[N, …]` each."""
    code = toy.codes
    columns = {
        "observations": _spread(code, toy.observation),
        "actions": _repeat(-code, toy.action),
        "rewards": (code / 10).astype(np.float32),
        "terminals": toy.terminals.astype(toy.flags),
    }
    if toy.as_columns:
        columns |= {name: columns[name][:, None] for name in ("rewards", "terminals")}
    if toy.timeouts:
        columns["timeouts"] = _last_rows(toy.episodes, ("timeout", "both"))
    if toy.next_observations:
        columns["next_observations"] = _spread(code + 1, toy.observation)
    if toy.demonstrations:
        columns["infos"] = np.repeat(np.arange(len(toy.lengths)), toy.lengths)
    for name, shape in toy.infos:
        columns[f"infos/{name}"] = _repeat(code + 0.5, shape).astype(np.float64)
    return columns


def _spread(code: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float32]:
    size = int(np.prod(shape))
    rows = code[:, None] + np.arange(size) / 64
    return rows.reshape(len(code), *shape).astype(np.float32)


def _repeat(code: NDArray[np.float64], shape: tuple[int, ...]) -> NDArray[np.float32]:
    rows = np.broadcast_to(code.reshape(-1, *(1 for _ in shape)), (len(code), *shape))
    return rows.astype(np.float32)


def _last_rows(episodes: tuple[tuple[int, str], ...], marks: tuple[str, ...]) -> NDArray[np.bool_]:
    return np.concatenate(
        [np.arange(n) == n - 1 if e in marks else [False] * n for n, e in episodes]
    )
