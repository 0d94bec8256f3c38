"""Hostile files of robots and games, and of TorchRL's buffers."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.mutations import spoil_bytes, spoil_json_file
from tests.fuzz.source_kinds import REFUSED, Leaves, Truth, after_hdf5, source_kind
from tests.toys.aloha import write_aloha
from tests.toys.buffers import BOX, cut, play, write_dump
from tests.toys.calvin import RANGES, SAID, toy_step, write_calvin
from tests.toys.diffusion_policy import toy_arrays, umi_arrays, write_zarr, write_zip
from tests.toys.katakomba import toy_game, write_katakomba
from tests.toys.maniskill import toy_trajectory, write_maniskill


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


def _make_aloha(random: Random, folder: Path) -> Truth:
    images = random.choice(("raw", "padded", "ragged"))
    path = write_aloha(folder / "in", images, mobile=random.random() < 0.5)
    files = sorted(path.iterdir(), key=lambda file: int(file.stem[8:]))
    return after_hdf5(random, folder, files, _recordings)


def _recordings(files: list[Path]) -> list[Leaves]:
    """Read recordings by h5py, without their images; raises `ValueError` for links and other arrays."""
    import h5py

    found: list[Leaves] = []
    for path in files:
        with h5py.File(path) as file:
            names = {"qpos": "observations/qpos", "qvel": "observations/qvel"}
            told: Leaves = {("action",): file["action"][()]}
            for leaf, name in names.items():
                values = file[name][()]
                if values.dtype.kind != "f" or file[name].file.filename != str(path):
                    raise ValueError(name)
                told["observation", leaf] = np.concatenate([values, values[-1:]])
            found.append(told)
    return found


def _make_zarr(random: Random, folder: Path) -> Truth:
    lengths = tuple(random.randint(1, 5) for _ in range(random.randint(1, 4)))
    arrays = random.choice((toy_arrays, umi_arrays))(lengths)
    kinds = (
        "none",
        "ends",
        "ends",
        "json",
        "json",
        "bytes",
        "bytes",
        "chunk",
        "chunk",
        "name",
        "link",
    )
    what = random.choice(kinds)
    ends: Any = arrays["meta/episode_ends"]
    if what == "ends":
        odd = (0, -1, 1, 7, 2**62, -(2**63), 2**63 - 1, int(ends[-1]) + 1)
        ends[random.randrange(len(ends))] = random.choice(odd)
    changed, path = what != "none", folder / "in"
    compressed = random.random() < 0.3
    write_zarr(path, arrays, chunk=random.choice((1, 2, 9)), compressed=compressed)
    name = random.choice(("action", "state") if "data/state" in arrays else ("robot0_eef_pos",))
    if what == "json":
        spoil_json_file(random, random.choice(sorted(path.rglob(".zarray"))))
        return Truth(known=False)
    chunk = random.choice(sorted((path / "data" / name).glob("[0-9]*")))
    if what == "chunk":
        data = spoil_bytes(random, chunk.read_bytes(), head=64)
        unseen = compressed or len(data) == len(chunk.read_bytes())
        chunk.write_bytes(data)
        return Truth(known=False) if unseen else Truth(_buffer(arrays, {("data", name)}))
    if what == "link":
        target = folder / "secret"
        target.write_bytes(chunk.read_bytes())
        chunk.unlink()
        chunk.symlink_to(target)
        return Truth([(REFUSED, False)] * len(lengths))
    if what in {"bytes", "name"} or random.random() < 0.4:
        packed = write_zip(
            folder / "zip", path, random.choice(("", "x/", "../" * (what == "name")))
        )
        shutil.rmtree(path)
        packed = packed.rename(folder / "in.zarr.zip")
        if what == "bytes":
            packed.write_bytes(spoil_bytes(random, packed.read_bytes()))
    if what == "ends" and not ((np.diff(ends, prepend=0) > 0).all() and ends[-1] == sum(lengths)):
        return Truth([(REFUSED, False)] * len(lengths))
    return Truth(_buffer(arrays, set() if what in {"none", "ends"} else {()}), changed=changed)


def _buffer(
    arrays: dict[str, Any], spoiled: set[tuple[str, ...]]
) -> list[tuple[Leaves | None, bool]]:
    """Return the episodes of a replay buffer, and whether there is a change, which may be in any."""
    stops = arrays["meta/episode_ends"].tolist()
    found: list[tuple[Leaves | None, bool]] = []
    for start, stop in zip([0, *stops[:-1]], stops, strict=True):
        leaves: Leaves = {}
        for name, values in arrays.items():
            root, leaf = name.split("/")
            if root == "data":
                leaves[("action",) if leaf == "action" else ("observation", leaf)] = values[
                    start:stop
                ]
        found.append((leaves, bool(spoiled)))
    return found


def _make_calvin(random: Random, folder: Path) -> Truth:
    path = write_calvin(folder / "in")
    steps = [n for first, last in RANGES for n in range(first, last + 1)]
    what = random.choice(("none", "step", "step", "absent", "link", "ranges", "words", "bytes"))
    step = path / f"episode_{random.choice(steps):07d}.npz"
    odd = (0, -1, 1, 7, 2**31, 2**62, -(2**63), 2**63 - 1)
    if what == "step":
        arrays = toy_step(int(step.stem[8:]))
        name = random.choice(sorted(arrays))
        others = (None, np.zeros(3), np.float64(1), arrays[name][:-1], arrays[name].astype("f2"))
        arrays[name] = random.choice(others)
        np.savez(step, **{key: one for key, one in arrays.items() if one is not None})
    elif what == "absent":
        step.unlink()
    elif what == "link":
        step.rename(folder / "secret")
        step.symlink_to(folder / "secret")
        return Truth(known=False)
    elif what == "ranges":
        ranges = np.array(RANGES)
        ranges.flat[random.randrange(ranges.size)] = random.choice(odd)
        np.save(path / "ep_start_end_ids.npy", ranges)
        return Truth(known=False)
    elif what == "words":
        said = [list(one) for one in SAID]
        random.choice(said)[random.randrange(2)] = random.choice(odd)
        shutil.rmtree(path)
        write_calvin(path, said=said)
    elif what == "bytes":
        spoiled = random.choice(sorted(one for one in path.rglob("*") if one.is_file()))
        spoiled.write_bytes(spoil_bytes(random, spoiled.read_bytes()))
        return Truth(known=False)
    refused = what in {"step", "absent"}
    found: list[tuple[Leaves | None, bool]] = []
    for first, last in RANGES:
        rows = [toy_step(number) for number in range(first, last + 1)]
        leaves: Leaves = {
            ("action",): np.stack([row["actions"] for row in rows]),
            ("observation", "robot_obs"): np.stack([row["robot_obs"] for row in rows]),
            ("observation", "rgb_static"): np.stack([row["rgb_static"] for row in rows]),
        }
        found.append((REFUSED, False) if refused else (leaves, False))
    return Truth(found, changed=what != "none")


def _make_katakomba(random: Random, folder: Path) -> Truth:
    numbers = random.sample(range(200), random.randint(1, 3))
    games = {number: toy_game(number, random.randint(1, 5)) for number in numbers}
    path = write_katakomba(folder / "in.hdf5", games)
    return after_hdf5(random, folder, [path], _games)


def _games(files: list[Path]) -> list[Leaves]:
    """Read games by h5py."""
    import h5py

    found: list[Leaves] = []
    with h5py.File(files[0]) as file:
        for name in sorted((name for name in file if name.isdecimal()), key=int):
            game: Any = file[name]
            if len(game["dones"]) != len(game["actions"]):
                raise ValueError(name)
            done = game["dones"][()] != 0
            ended = np.arange(len(done)) == len(done) - 1
            found.append(
                {
                    ("action",): game["actions"][()],
                    ("episodes", "game"): int(name),
                    ("next", "reward"): game["rewards"][()],
                    ("next", "terminated"): ended & done,
                    ("next", "truncated"): ended & ~done,
                    ("observation", "tty_chars"): game["tty_chars"][()],
                }
            )
    return found


def _make_torchrl(random: Random, folder: Path) -> Truth:
    from gymnasium import spaces

    steps = play(BOX, spaces.Discrete(3), random.randint(5, 30), random.randint(1, 99))
    path = write_dump(folder / "in", steps, random.randrange(len(steps)))
    victim = random.choice(sorted(path.rglob("*.memmap")))
    what = random.choice(("none", "json", "json", "json", "bytes", "bytes", "short", "link"))
    if what == "json":
        spoil_json_file(random, random.choice(sorted(path.rglob("*.json"))))
        return Truth(known=False)
    if what == "bytes":
        victim.write_bytes(spoil_bytes(random, victim.read_bytes(), head=64))
        return Truth(known=False)
    episodes: list[tuple[Leaves | None, bool]] = [
        (
            {
                ("observation",): np.stack([*(step[0] for step in one), one[-1][5]]),
                ("action",): np.stack([step[1] for step in one]),
                ("next", "reward"): np.array([step[2] for step in one]),
            },
            False,
        )
        for one in cut(steps)
    ]
    if what == "short":
        victim.write_bytes(victim.read_bytes()[:-1])
    if what == "link":
        victim.rename(folder / "secret")
        victim.symlink_to(folder / "secret")
    return Truth(
        [(REFUSED, False)] * len(episodes) if what != "none" else episodes, changed=what != "none"
    )


ROBOT_KINDS = (
    source_kind("aloha", "aloha", _make_aloha),
    source_kind("calvin", "calvin", _make_calvin),
    source_kind("katakomba", "katakomba", _make_katakomba),
    source_kind("maniskill", "maniskill", _make_maniskill),
    source_kind("torchrl", "torchrl", _make_torchrl),
    source_kind("zarr", "diffusion_policy", _make_zarr),
)
