"""Files of ManiSkill, written as `RecordEpisode` of its `mani_skill/utils/wrappers/record.py` does.

Row `t` of trajectory `n` has the code `100·(n + 1) + t`: observations and states are the code, actions its
negative, rewards a tenth of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ENV_INFO: dict[str, Any] = {
    "env_id": "PickCube-v1",
    "env_kwargs": {"obs_mode": "rgb", "control_mode": "pd_joint_delta_pos"},
    "max_episode_steps": 50,
}


def toy_trajectory(number: int, rows: int, *, obs: str = "dict", end: str = "terminated") -> Any:
    """Return the datasets of a trajectory; `obs`: `dict`, `array`, or `none`.

    `end`: the flag of the last row, or `early`: terminated is set from the middle on, `none`: nowhere.
    """
    code = 100.0 * (number + 1) + np.arange(rows + 1)
    wide = np.repeat(code[:, None], 3, axis=1).astype(np.float32)
    flags = {name: np.zeros(rows, bool) for name in ("terminated", "truncated", "success")}
    if end in {"terminated", "truncated"}:
        flags[end][-1] = True
    if end == "early":
        flags["terminated"][rows // 2 :] = True
    flags["success"] = flags["terminated"].copy()
    image = np.repeat(np.stack([code // 100, code % 100], -1)[:, None, None], 2, axis=1)
    seen: dict[str, Any] = {
        "dict": {
            "obs/agent/qpos": wide,
            "obs/extra/tcp_pose": wide + 0.25,
            "obs/sensor_data/base_camera/rgb": image.astype(np.uint8),
            "obs/sensor_data/base_camera/depth": (image[..., :1] * 300).astype(np.uint16),
            "obs/sensor_data/base_camera/segmentation": (image[..., :1] - 50).astype(np.int16),
        },
        "array": {"obs": wide},
        "none": {"obs/": None},
    }
    return {
        **seen[obs],
        "actions": -wide[:-1],
        **flags,
        "env_states/actors/cube": wide + 0.5,
        "env_states/articulations/panda": wide[:, :2] + 0.75,
        "rewards": (code[:-1] / 10).astype(np.float32),
    }


def write_maniskill(
    path: Path, trajectories: dict[int, Any], *, meta: bool = True, **changed: Any
) -> Path:
    """Write trajectories by their numbers, and the JSON file; `changed`: of its episodes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for number, columns in trajectories.items():
            group = file.create_group(f"traj_{number}", track_order=True)
            for name, column in columns.items():
                if column is None:
                    group.create_group(name.strip("/"), track_order=True)
                    continue
                packed = name.rpartition("/")[2] in {"rgb", "depth"}
                how: Any = {"compression": "gzip", "compression_opts": 5} if packed else {}
                group.create_dataset(name, data=column, **how)
    episodes = [
        {
            "episode_id": number,
            "episode_seed": 7 * number,
            "control_mode": "pd_joint_delta_pos",
            "elapsed_steps": len(columns["terminated"]),
            "reset_kwargs": {"options": {}, "seed": 7 * number},
            "success": bool(columns["success"][-1]) if "success" in columns else None,
            **changed,
        }
        for number, columns in trajectories.items()
    ]
    if meta:
        known: dict[str, Any] = {"env_info": ENV_INFO, "commit_info": None, "episodes": episodes}
        known |= {"source_type": "rl", "source_desc": "a toy"}
        path.with_suffix(".json").write_text(json.dumps(known, indent=2))
    return path
