"""Files of AgileRL, written as `minari_to_agile_dataset` of its `agilerl/utils/minari_utils.py` does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

LENGTHS = (4, 1, 6, 3)
TERMINATED = (True, False, False, True)


def write_agilerl(folder: Path, **changed: Any) -> Path:
    """Write episodes of `LENGTHS`; observation `t` of episode `e` has the value `100·(e + 1) + t`.

    `changed`: columns in place of those written, or None to leave one out.
    """
    columns: dict[str, list[Any]] = {}
    for e, (length, terminated) in enumerate(zip(LENGTHS, TERMINATED, strict=True)):
        code = 100.0 * (e + 1) + np.arange(length + 1)
        observations = np.repeat(code[:, None], 3, axis=1)
        flags = np.zeros(length, bool)
        flags[-1] = terminated
        rows: Any = (observations[:-1], observations[1:], -code[:-1, None].astype(np.float32), code[:-1] / 10, flags)  # fmt: skip
        names = ("observations", "next_observations", "actions", "rewards", "terminals")
        for name, column in zip(names, rows, strict=True):
            columns.setdefault(name, []).extend(column)
    path = folder / "data" / "main_data.hdf5"
    path.parent.mkdir(parents=True)
    with h5py.File(path, "w") as file:
        for name, column in {**columns, **changed}.items():
            if column is not None:
                file.create_dataset(name, data=column)
    return folder
