"""Trials of RoboHive's logger, in HDF5: a group per trial, a row per state.

```
row of a trial                0      1       2       3         a horizon of 3
observations, env_infos       s0     s1      s2      s3        and time
actions                       a0     a1      a2      NaN
rewards, done                 (r0)   r1      r2      r3        of the state in their row

row of steps                  0      1       2
action                        a0     a1      a2
next reward, terminated       r1     r2      r3                r0 belongs to no action
row of observations           s0     s1      s2      s3
```

Logs from before March 2023 may lack the last row: there the last action is a number, and its reward and
next state are missing. It is left out, and the last row is also the final observation.

Source: `examine_policy_new` and `logger/` of https://github.com/vikashplus/robohive.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode import Dropped, EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.fields import REWARD, Key, check_key
from offline_data.formats.groups import GroupEpisodes, names_in_first
from offline_data.raw import hdf5_tree

TRIAL = re.compile(r"Trial([0-9]{1,9})")

NOTES = (
    "Trials follow each other in the order of their numbers, file after file.",
    (
        "Rewards and done are of the state of their row; they are put to the action that led to it, and "
        "those of the first row are left out."
    ),
    "The last row of a trial has the final observation; its action is NaN in the file.",
    "Trials are recorded for a fixed number of steps: the last one is truncated unless done is set.",
)
OLD_LOG = (
    "The last action of some trials is not NaN, as in logs of RoboHive from before March 2023; its "
    "reward and next observation are not in the file, and it is left out."
)

_HARDWARE = "data"
_PLACEHOLDER = "NaN (float16) in every row: RoboHive writes missing values so."


def leaf_of(path: tuple[str, ...]) -> Key:
    """Return the leaf of a dataset of a trial, with TorchRL's names.

    Raises `FormatError` if a part is not a valid file name.

    Example:
        >>> leaf_of(("observations",)), leaf_of(("env_infos", "state", "qpos"))
        (('observation',), ('info', 'state', 'qpos'))
        >>> leaf_of(("time",)), leaf_of(("user_cmt",))
        (('time',), ('extra', 'user_cmt'))
    """
    roots = {"observations": "observation", "actions": "action", "env_infos": "info"}
    if path[0] in roots:
        return check_key((roots[path[0]], *path[1:]))
    return path if path == ("time",) else check_key(("extra", *path))


def has_trials(path: Path) -> bool:
    """Return True if an HDF5 file has trials, of the simulation or of the hardware."""
    names = names_in_first(path, TRIAL)
    return _HARDWARE in names or {"observations", "actions"} <= names


def natural(path: str) -> list[tuple[int, str]]:
    """Return a sort key that orders `seed2` before `seed10`."""
    return [(int(one), "") if one.isdecimal() else (-1, one) for one in re.split(r"(\d+)", path)]


class RoboHiveTrials(GroupEpisodes):
    """The trials in some files."""

    name, place = TRIAL, "{file} {name}"

    def listed(self, opened: Any, file: str) -> list[tuple[int, str, str | None]]:
        if trials := super().listed(opened, file):
            return trials
        there = ", ".join(sorted(name for name, _ in hdf5_tree.members(opened))[:8]) or "nothing"
        raise FormatError(f"{file} has no group Trial0, Trial1, …; it has {there}")

    def read_group(self, group: Any, number: int, file: str) -> EpisodeBatch:
        return _read_trial(group, number, file)


def _read_trial(group: Any, number: int, file_name: str) -> EpisodeBatch:
    if _HARDWARE in (inside := {one for one, _ in hdf5_tree.members(group)}):
        raise FormatError(
            "it was recorded by a real robot: the hardware layout of RoboSet (data, derived, config) "
            "is not read, only that of the simulation (observations, actions, rewards)"
        )
    if missing := {"observations", "actions", "rewards"} - inside:
        raise FormatError(f"it has no {min(missing)!r}; it has {', '.join(sorted(inside))}")
    columns, dropped = _columns(group)
    rows = len(columns["rewards",])
    for path in (("rewards",), ("done",)):
        if path in columns and columns[path].shape[1:] not in {(), (1,)}:
            found = list(columns[path].shape)
            raise FormatError(f"{path[0]!r} has shape {found}, expected [{rows}]")
    if rows < 2:
        raise FormatError(f"it has {plural(rows, 'row')}, too few for a step; expected at least 2")
    actions = {path: columns.pop(path) for path in list(columns) if path[0] == "actions"}
    last = [column[-1] for column in actions.values()]
    old = not all(row.dtype.kind == "f" and np.isnan(row).all() for row in last)
    done = columns.pop(("done",), None)
    steps = {
        **{leaf_of(path): column[:-1] for path, column in actions.items()},
        REWARD: columns.pop(("rewards",))[1:].reshape(-1, 1),
    }
    seed = re.search(r"seed[_-]?(\d{1,9})", file_name)
    return assemble(
        np.array([rows - 1]),
        steps,
        {leaf_of(path): column for path, column in columns.items()},
        terminated=None if done is None else done[1:],
        episodes={
            ("file",): np.array([file_name], object),
            ("trial",): np.array([number]),
            ("seed",): np.array([int(seed[1]) if seed else -1]),
        },
        dropped=dropped,
        notes=(OLD_LOG,) if old else (),
    )


def _columns(group: Any) -> tuple[dict[tuple[str, ...], NDArray[Any]], tuple[Dropped, ...]]:
    """Return the datasets of a trial with one row per state, by path, and why others are dropped."""
    found = dict(hdf5_tree.walk(group))
    rewards = found.get(("rewards",))
    if rewards is None or not any(path[0] == "actions" for path in found):
        raise FormatError("its 'rewards' or 'actions' hold no values")
    count = hdf5_tree.describe(rewards).rows
    columns: dict[tuple[str, ...], NDArray[Any]] = {}
    dropped = []
    for path, dataset in found.items():
        leaf, needed = (
            hdf5_tree.describe(dataset),
            path[0] in {"observations", "actions", "rewards"},
        )
        reason = None
        if leaf.form != "array":
            reason = f"It has HDF5 type {dataset.dtype}, which is not a number."
        elif leaf.rows != count:
            reason = f"It has {plural(leaf.rows or 0, 'row')}, and rewards have {count}."
        else:
            values = hdf5_tree.read_numbers(dataset)
            if values.dtype == np.float16 and not needed and np.isnan(values).all():
                reason = _PLACEHOLDER
            else:
                columns[path] = values
        if reason is not None:
            if needed:
                raise FormatError(f"{'/'.join(path)!r} cannot be read. {reason}")
            dropped.append(Dropped("/".join(path), reason))
    return columns, tuple(dropped)
