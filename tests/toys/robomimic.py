"""Toy files in robomimic's layout, with values that identify demonstration and row.

Row `t` of demonstration `d` has the code `100·(d + 1) + t`. Observations are the code plus `j/64`,
actions its negative, rewards a tenth of it, simulator states the code plus a half. Of LIBERO's layout,
the arm follows the actions as a damped mass does, and joints have the code of the state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    Demo = dict[str, Any]

ENV_ARGS = {
    "env_name": "Lift",
    "env_version": "1.5.1",
    "type": 1,
    "env_kwargs": {"robots": ["Panda"]},
}
LANGUAGE = "put the bowl on the plate"


def toy_demo(number: int, rows: int, *, next_obs: bool = True, dones: Sequence[int] = (1,)) -> Demo:
    """Return a demonstration as `dataset_states_to_obs.py` writes it, attributes below `@`.

    `dones` are those of the last rows.

    Example:
        >>> demo = toy_demo(2, 3)
        >>> demo["obs/object"][:, 0].tolist(), demo["next_obs/object"][:, 0].tolist()
        ([300.0, 301.0, 302.0], [301.0, 302.0, 303.0])
        >>> demo["dones"].tolist(), demo["@num_samples"]
        ([0, 0, 1], 3)
    """
    code = 100.0 * (number + 1) + np.arange(rows + 1)
    every = {
        "object": code[:, None] + np.arange(3) / 64,
        "gripper": code,
        "image": np.repeat(
            np.stack([code // 100, code % 100], -1)[:, None, None], 2, axis=1
        ).astype("u1"),
    }
    marks = np.zeros(rows, np.int64)
    marks[rows - len(dones) :] = dones[-rows:]
    return {
        "actions": -code[:-1, None] + np.arange(2) / 64,
        "rewards": code[:-1] / 10,
        "dones": marks,
        "states": code[:-1, None] + 0.5,
        "action_dict/rel_pos": code[:-1, None] + np.arange(3) / 8,
        **{f"obs/{name}": column[:-1] for name, column in every.items()},
        **(
            {f"next_obs/{name}": column[1:].copy() for name, column in every.items()}
            if next_obs
            else {}
        ),
        "@num_samples": rows,
        "@model_file": "<mujoco/>",
    }


def follow(actions: NDArray[Any]) -> NDArray[Any]:
    """Return the places `[T + 1, 3]` of an arm that follows actions `[T, 7]` slowly, as OSC lets it."""
    place, speed, places = np.zeros(3), np.zeros(3), [np.zeros(3)]
    for action in actions:
        goal = place + 0.05 * action[:3]
        for _ in range(25):
            speed = speed + 0.002 * (150 * (goal - place) - 2 * 150**0.5 * speed)
            place = place + 0.002 * speed
        places.append(place)
    return np.array(places)


def libero_demo(number: int, rows: int, *, raw: bool, smooth: float = 0.8) -> Demo:
    """Return a demonstration of LIBERO's script, or of one that records observations before the step."""
    rng = np.random.default_rng(number)
    actions, now, goal = np.zeros((rows + 1, 7)), np.zeros(3), np.zeros(3)
    for row in actions:
        goal = rng.uniform(-1, 1, 3) if rng.random() < 0.2 else goal
        now = smooth * now + (1 - smooth) * goal
        row[:3] = now
    places, code = follow(actions), 100.0 * (number + 1) + np.arange(rows + 2)
    first = int(raw)  # row 0 of a raw file is after action 0; of the other, before it
    seen = slice(first, first + rows)
    ends = np.zeros(rows, np.uint8)
    ends[-1] = 1
    image = np.repeat(np.stack([code // 100, code % 100], -1)[:, None, None], 2, axis=1).astype(
        "u1"
    )
    return {
        "actions": actions[:rows],
        "rewards": ends,
        "dones": ends,
        "states": code[:rows, None],
        "robot_states": code[seen, None] + 0.25,
        "obs/ee_states": np.concatenate([places[seen], np.zeros((rows, 3))], -1),
        "obs/joint_states": code[seen, None] + np.arange(7) / 64,
        "obs/agentview_rgb": image[seen],
        "@num_samples": rows,
    }


def isaac_demo(number: int, rows: int, *, success: bool) -> Demo:
    """Return a demonstration of IsaacLab: no rewards, and states after the step."""
    code = 100.0 * (number + 1) + np.arange(rows + 1, dtype=np.float32)
    return {
        "actions": -code[:-1, None],
        "processed_actions": code[:-1, None] / 2,
        "obs/policy/joint_pos": code[:-1, None] + np.arange(2, dtype=np.float32),
        "obs/actions": code[:-1, None],
        "states/articulation/robot/joint_position": code[1:, None] + np.float32(0.5),
        "initial_state/articulation/robot/joint_position": code[:1, None] + np.float32(0.5),
        "@num_samples": rows,
        "@success": np.bool_(success),
        "@seed": 7 + number,
    }


def write_demos(
    path: Path,
    demos: Mapping[int, Mapping[str, Any]],
    masks: Mapping[str, Sequence[int]] | None = None,
    env_args: Any = ENV_ARGS,
    **attributes: str,
) -> Path:
    """Write a file; demonstrations lie in the order of their names, as h5py lists them."""
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for name, text in attributes.items():
            data.attrs[name] = text
        if env_args is not None:
            data.attrs["env_args"] = json.dumps(env_args)
        data.attrs["total"] = sum(len(demo["actions"]) for demo in demos.values())
        for number, demo in demos.items():
            group = data.create_group(f"demo_{number}")
            for name, value in demo.items():
                if name.startswith("@"):
                    group.attrs[name[1:]] = value
                else:
                    group.create_dataset(name, data=value)
        for name, numbers in (masks or {}).items():
            file[f"mask/{name}"] = np.array([f"demo_{n}" for n in numbers], "S")
    return path


def write_libero(path: Path, count: int = 3, rows: int = 40, *, raw: bool = True) -> Path:
    """Write a file of LIBERO's script with the attributes that it has, or a regenerated one without."""
    demos = {n: libero_demo(n, rows + n, raw=raw) for n in range(count)}
    if not raw:
        return write_demos(path, demos, env_args=None)
    said = json.dumps({"language_instruction": [LANGUAGE]})
    return write_demos(path, demos, problem_info=said)
