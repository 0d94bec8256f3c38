"""Toy V-D4RL files in both formats, with values that identify their episode and row.

Row `t` of episode `e` has the code `1000·e + t + 1`. An image begins with the bytes `e + 1`, `t // 256`
and `t % 256`; an action is `-code + j/64` in its `j`-th element, a reward a tenth of the code, a height
the code plus 0.5: all rows differ. The action and reward of row 0 are 0, as in the published files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 6
ACTIONS = 4


def toy_rows(
    episode: int, steps: int, *, terminal: bool = False, states: bool = True
) -> dict[str, NDArray[Any]]:
    """Return the arrays of an episode written by DreamerV2, `steps + 1` rows each.

    Example:
        >>> rows = toy_rows(2, 3)
        >>> rows["height"].tolist(), rows["is_last"].tolist()
        ([2001.5, 2002.5, 2003.5, 2004.5], [False, False, False, True])
    """
    t = np.arange(steps + 1)
    code = 1000.0 * episode + t + 1
    image = np.full((steps + 1, WIDTH, WIDTH, 3), episode + 1, np.uint8)
    image[:, 0, 0] = np.stack([np.full_like(t, episode + 1), t // 256, t % 256], axis=1)
    action = (-code[:, None] + np.arange(ACTIONS) / 64).astype(np.float32)
    reward = (code / 10).astype(np.float32)
    action[0], reward[0] = 0, 0
    ends = terminal & (t == steps)
    rows = {
        "image": image,
        "action": action,
        "reward": reward,
        "discount": 1 - ends.astype(np.float32),
        "is_first": t == 0,
        "is_last": t == steps,
        "is_terminal": ends,
    }
    if states:
        rows["height"] = (code + 0.5).astype(np.float32)
        rows["orientations"] = np.repeat(code[:, None], 3, axis=1) + 0.25
    return rows


def write_vd4rl_npz(
    folder: Path,
    lengths: Sequence[int] = (5, 3, 4),
    *,
    terminal: Collection[int] = (),
    stateless: Collection[int] = (),
    old: Collection[int] = (),
) -> Path:
    """Write an npz file per episode; returns the folder.

    Args:
        folder: Created if missing.
        lengths: Number of steps of each episode.
        terminal: Episodes that end in a terminal state.
        stateless: Episodes whose files have no states.
        old: Episodes whose files have no `is_terminal`, like old ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for episode, steps in enumerate(lengths):
        terminates, states = episode in terminal, episode not in stateless
        rows = toy_rows(episode, steps, terminal=terminates, states=states)
        if episode in old:
            del rows["is_terminal"]
        name = f"20220101T{120000 + episode}-{episode:032x}-{steps + 1}.npz"
        np.savez_compressed(folder / name, **rows)  # type: ignore[arg-type] # numpy's stub
    return folder


def write_vd4rl_hdf5(
    folder: Path,
    lengths: Sequence[int] = (5, 3, 4),
    cuts: Sequence[int] = (9,),
    *,
    name: str = "{}_walker_walk_random.hdf5",
    first: int = 0,
) -> Path:
    """Write all rows concatenated, split at these rows into numbered files; returns the folder."""
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    episodes = [toy_rows(e, steps, states=False) for e, steps in enumerate(lengths)]
    columns = {key: np.concatenate([e[key] for e in episodes]) for key in episodes[0]}
    columns["observation"] = columns.pop("image").transpose(0, 3, 1, 2)
    kinds = [columns.pop(key) for key in ("is_first", "is_last", "is_terminal")]
    columns["step_type"] = np.where(kinds[0], 0.0, np.where(kinds[1], 2.0, 1.0))
    pieces = {key: np.split(column, cuts) for key, column in columns.items()}
    for number in range(len(cuts) + 1):
        with h5py.File(folder / name.format(first + number), "w") as file:
            for key, piece in pieces.items():
                file.create_dataset(key, data=piece[number], compression="gzip")
    return folder
