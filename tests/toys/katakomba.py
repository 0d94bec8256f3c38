"""Files of Katakomba, written as its `scripts/generate_small_dataset.py` does.

Row `t` of game `n` has the code `100·n + t`, which is in the first cells of the screen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np


def toy_game(number: int, rows: int) -> dict[str, Any]:
    code = 100 * number + np.arange(rows)
    chars = np.full((rows, 24, 80), ord(" "), np.uint8)
    chars[:, 0, 0], chars[:, 0, 1] = code // 100, code % 100
    rewards = (code % 7).astype(np.int32)
    rewards[-1] = rewards[max(0, rows - 2)]
    return {
        "tty_chars": chars,
        "tty_colors": (chars % 16).astype(np.int8),
        "tty_cursor": np.stack([code % 24, code % 80], -1).astype(np.int16),
        "actions": (code % 121).astype(np.int16),
        "rewards": rewards,
        "dones": np.arange(rows) == rows - 1,
        "@role": "Mon",
        "@points": 10 * number,
        "@death": "killed by a jackal",
    }


def write_katakomba(path: Path, games: dict[int, dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", track_order=True) as file:
        for number, columns in games.items():
            group = file.create_group(str(number))
            for name, column in columns.items():
                if name.startswith("@"):
                    group.attrs[name[1:]] = column
                else:
                    group.create_dataset(name, data=column, compression="gzip")
    return path
