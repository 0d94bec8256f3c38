"""Hostile files of robots: ManiSkill's HDF5 and JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.fuzz.mutations import spoil_json_file
from tests.fuzz.source_kinds import Leaves, Truth, after_hdf5, source_kind
from tests.toys.maniskill import toy_trajectory, write_maniskill

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random


def _make_maniskill(random: Random, folder: Path) -> Truth:
    obs = random.choice(("dict", "dict", "array", "none"))
    ends = ("terminated", "truncated", "early", "none")
    numbers = random.sample(range(12), random.randint(1, 3))
    found = {
        n: toy_trajectory(n, random.randint(1, 5), obs=obs, end=random.choice(ends))
        for n in numbers
    }
    path = write_maniskill(folder / "in.h5", found, meta=random.random() < 0.7)
    beside = path.with_suffix(".json")
    if beside.exists() and random.random() < 0.3:
        spoil_json_file(random, beside)
        told = _trajectories([path])
        return Truth([(one, True) for one in told])
    return after_hdf5(random, folder, [path], _trajectories)


def _trajectories(files: list[Path]) -> list[Leaves]:
    """Read trajectories by h5py."""
    import h5py

    found: list[Leaves] = []
    with h5py.File(files[0]) as file:
        names = [name for name in file if re.fullmatch("traj_[0-9]{1,9}", name)]
        for name in sorted(names, key=lambda one: int(one[5:])):
            group: Any = file[name]
            told: Leaves = {
                ("action",): group["actions"][()],
                ("episodes", "trajectory"): int(name[5:]),
                ("next", "reward"): group["rewards"][()],
                ("next", "terminated"): group["terminated"][()] != 0,
            }
            if isinstance(group["obs"], h5py.Dataset):
                told["observation",] = group["obs"][()]
            elif "agent" in group["obs"]:
                told["observation", "agent", "qpos"] = group["obs/agent/qpos"][()]
            elif not len(group["obs"]):
                told["observation", "actors", "cube"] = group["env_states/actors/cube"][()]
            truncated = np.array(group["truncated"][()] != 0)
            truncated[-1] |= not told["next", "terminated"][-1]
            told["next", "truncated"] = truncated
            found.append(told)
    return found


ROBOT_KINDS = (source_kind("maniskill", "maniskill", _make_maniskill),)
