"""The valid transitions are those of D4RL's `qlearning_dataset`, but for four stated reasons.

D4RL leaves out every row that ends an episode by time, and the last row of the file, since it
takes the next row of the file as the next observation. A transition is valid here where its next
observation is known, or where it is terminated, so that nothing bootstraps from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from offline_data.config import Settings
from offline_data.episodes.fields import TERMINATED
from offline_data.sources.d4rl import D4RL
from offline_data.sources.d4rl.catalog import listed
from offline_data.testing.d4rl_toy import TOYS, write_published

if TYPE_CHECKING:
    from offline_data.sources.d4rl.catalog import Listed


@dataclass(frozen=True)
class Flags:
    """What `qlearning_dataset` looks at, as plain lists."""

    terminals: list[bool]
    timeouts: list[bool] | None
    has_next: bool
    horizon: int


def flags_of(path: Path, published: Listed) -> Flags:
    with h5py.File(path) as file:
        timeouts: Any = file["timeouts"][()].tolist() if "timeouts" in file else None
        return Flags(
            [bool(value) for value in file["terminals"][()].ravel()],
            timeouts,
            "next_observations" in file,
            published.rule.horizon or 0,
        )


def qlearning_rows(flags: Flags) -> set[int]:
    """Rows that D4RL 1.1's `qlearning_dataset(terminate_on_end=False)` keeps."""
    kept = set()
    episode_step = 0
    for i in range(len(flags.terminals) - 1):
        if flags.timeouts is not None:
            final_timestep = flags.timeouts[i]
        else:
            final_timestep = episode_step == flags.horizon - 1
        if final_timestep:
            episode_step = 0
            continue
        if flags.terminals[i]:
            episode_step = 0
        kept.add(i)
        episode_step += 1
    return kept


def by_horizon(flags: Flags, after_terminal: int) -> set[int]:
    """Rows at the limit of steps; the row after a terminal is number `after_terminal`."""
    rows, step = set(), 0
    for i, terminal in enumerate(flags.terminals):
        at_limit = step == flags.horizon - 1
        if at_limit:
            rows.add(i)
        step = 0 if at_limit else after_terminal if terminal else step + 1
    return rows


def reasons(flags: Flags) -> dict[str, set[int]]:
    """Rows by the reason for which they are valid here and left out there, and the reverse."""
    last = len(flags.terminals) - 1
    terminal = {i for i, flag in enumerate(flags.terminals) if flag}
    timeout = {i for i, flag in enumerate(flags.timeouts or []) if flag}
    out: dict[str, set[int]] = {
        "next observation is in the file": (timeout | {last}) - terminal
        if flags.has_next
        else set(),
        "terminal and timeout": timeout & terminal - {last},
        "last row of the file is terminal": {last} & terminal,
        "D4RL's limit is one step early": set(),
        "the limit is reached": set(),
    }
    if flags.timeouts is None:
        theirs, ours = by_horizon(flags, 1), by_horizon(flags, 0) - terminal
        out["D4RL's limit is one step early"] = theirs - ours - {last}
        out["the limit is reached"] = ours - theirs
    return out


def valid_rows(path: Path, published: Listed, tmp_path: Path) -> set[int]:
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / published.file).symlink_to(path)
    dataset = D4RL().open(D4RL().resolve(published.name, None, Settings(tmp_path)), folder)
    batch = dataset.read(dataset.parts(1 << 50)[0])
    valid = np.ones(batch.transitions, dtype=bool)
    valid[batch.last_rows] = batch.final_observation
    return set(np.flatnonzero(valid | batch.steps[TERMINATED][:, 0]).tolist())


def assert_explained(path: Path, published: Listed, tmp_path: Path) -> dict[str, int]:
    flags = flags_of(path, published)
    why = reasons(flags)
    added = (
        why["next observation is in the file"]
        | why["terminal and timeout"]
        | why["last row of the file is terminal"]
        | why["D4RL's limit is one step early"]
    )
    theirs, ours = qlearning_rows(flags), valid_rows(path, published, tmp_path)
    assert not added & theirs, "a reason that names a row D4RL has is no reason"
    assert why["the limit is reached"] <= theirs
    assert ours == (theirs | added) - why["the limit is reached"]
    assert len(ours) == len(theirs) + len(added) - len(why["the limit is reached"])
    return {"rows": len(flags.terminals), "d4rl": len(theirs), "ours": len(ours)} | {
        reason: len(rows) for reason, rows in why.items() if rows
    }


def test_real_files(realdata: Path, tmp_path: Path) -> None:
    files = sorted((realdata / "fixtures_generated" / "d4rl").glob("*.hdf5"))
    assert len(files) == 8
    for path in files:
        published = next(one for one in listed().values() if one.file == path.name)
        (tmp_path / path.name).mkdir()
        assert_explained(path, published, tmp_path / path.name)


EXPECTED = {
    "adroit": {"rows": 15, "d4rl": 12, "ours": 12},
    "antmaze": {"rows": 18, "d4rl": 15, "ours": 16, "terminal and timeout": 1},
    "bullet": {
        "rows": 9,
        "d4rl": 7,
        "ours": 9,
        "next observation is in the file": 1,
        "last row of the file is terminal": 1,
    },
    "carla": {"rows": 8, "d4rl": 6, "ours": 6},
    "flow": {"rows": 1003, "d4rl": 1000, "ours": 1000},
    "kitchen": {"rows": 13, "d4rl": 12, "ours": 13, "last row of the file is terminal": 1},
    "maze2d": {"rows": 18, "d4rl": 14, "ours": 14},
    "minigrid": {"rows": 13, "d4rl": 12, "ours": 13, "last row of the file is terminal": 1},
    "mujoco-v0": {
        "rows": 1045,
        "d4rl": 1043,
        "ours": 1043,
        "D4RL's limit is one step early": 1,
        "the limit is reached": 1,
    },
    "mujoco-v2": {"rows": 17, "d4rl": 15, "ours": 17, "next observation is in the file": 2},
}


@pytest.mark.parametrize("family", sorted(TOYS))
def test_toys_of_every_family(tmp_path: Path, family: str) -> None:
    path = write_published(tmp_path / "toy", TOYS[family])
    published = listed()[TOYS[family].dataset]
    assert assert_explained(path, published, tmp_path) == EXPECTED[family]
