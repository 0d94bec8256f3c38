"""CALVIN's folders, written as `save_step` of calvin_env's `datarenderer.py` and the annotator of CALVIN.

Step `n` has the code `n`: observations are the code plus a fraction, actions its negative.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

RANGES = ((3, 8), (20, 20), (30, 42))
"""First and last step of each recording, both included."""
SAID = (
    (4, 7, "push_blue", "push the blue block"),
    (6, 9, "open_drawer", "pull the handle"),
    (33, 37, "push_blue", "slide the blue one"),
)
"""First step, one past the last, task and instruction."""


def toy_step(number: int) -> dict[str, Any]:
    pixels = np.full((4, 5, 3), number % 251, np.uint8)
    pixels[0, 0] = divmod(number, 251)[0], 7, 9
    return {
        "actions": -number - np.arange(7) / 8,
        "rel_actions": -number / 100 - np.arange(7) / 8,
        "robot_obs": number + np.arange(15) / 16,
        "scene_obs": number + np.arange(24) / 32,
        "rgb_static": pixels,
        "depth_static": np.full((4, 5), number + 0.5, np.float32),
    }


def write_calvin(
    folder: Path,
    ranges: Any = RANGES,
    said: Any = SAID,
    scenes: Any = (("calvin_scene_B", 0, 25), ("calvin_scene_A", 26, 99)),
) -> Path:
    """Write the folder of one split; `said` and `scenes` may be None."""
    folder.mkdir(parents=True)
    np.save(folder / "ep_start_end_ids.npy", np.array(ranges))
    np.save(folder / "ep_lens.npy", np.diff(np.array(ranges), axis=1)[:, 0] + 1)
    for first, last in ranges:
        for number in range(first, last + 1):
            np.savez_compressed(folder / f"episode_{number:07d}.npz", **toy_step(number))
    if scenes is not None:
        found: Any = {name: [first, last] for name, first, last in scenes}
        np.save(folder / "scene_info.npy", found)
    if said is not None:
        language = {
            "ann": [text for *_, text in said],
            "task": [task for _, _, task, _ in said],
            "emb": np.arange(4.0 * len(said)).reshape(len(said), 1, 4),
        }
        indx = [(np.int64(first), np.int64(stop)) for first, stop, *_ in said]
        (folder / "lang_annotations").mkdir()
        words: Any = {"language": language, "info": {"episodes": [], "indx": indx}}
        np.save(folder / "lang_annotations/auto_lang_ann.npy", words)
    return folder
