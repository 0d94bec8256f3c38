"""What conversion must give, computed row by row with h5py and numpy alone."""

from __future__ import annotations

import zlib
from math import isnan
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np


class Transition(NamedTuple):
    """One row of a D4RL file, in the file's own dtypes.

    Where `next_observations` has another one than `observations`: both in their common dtype.
    """

    observation: Any
    action: Any
    reward: Any
    next_observation: Any
    """None where the file does not have it."""
    terminated: bool
    truncated: bool
    known: bool
    """Whether the file has the next observation."""


def d4rl_transitions(
    path: Path | str,
    marks: str = "terminals|timeouts",
    horizon: int | None = None,
    *,
    keep_episodes: bool = False,
) -> list[Transition]:
    """Return the transitions of a D4RL file, in the order of its rows.

    Args:
        path: The file; its columns are at the root, or in `virtual/0`, `virtual/1`, …
        marks: The columns that end episodes.
        horizon: Longest episode, where the file lacks the columns of `marks`.
        keep_episodes: Whether episodes go on where `next_observations` is not the next row.
    """
    columns = _columns(path)
    before = columns["observations"]
    rows = len(columns["observations"])
    terminal = columns["terminals"].reshape(-1) != 0
    timeout = columns.get("timeouts", np.zeros(rows)).reshape(-1) != 0
    after = columns.get("next_observations")
    ends = np.zeros(rows, bool)
    if marks != "timeouts":
        ends |= terminal
    if marks != "terminals":
        ends |= timeout
    complete = "timeouts" in columns if marks == "terminals|timeouts" else bool(ends.any())
    length, found = 0, []
    stored = before.dtype if after is None else np.result_type(before, after)
    for row in range(rows):
        length += 1
        end = bool(ends[row]) or row == rows - 1
        if not complete and horizon is not None and length == horizon:
            end = True
        length = 0 if end else length
        if after is not None:
            following = after[row]
            jump = row < rows - 1 and not _equal(following, before[row + 1])
            end |= jump and not keep_episodes
        else:
            following = None if end else before[row + 1]
        found.append(
            Transition(
                before[row].astype(stored),
                columns["actions"][row],
                columns["rewards"].reshape(-1)[row],
                None if following is None else following.astype(stored),
                bool(terminal[row]),
                bool(timeout[row]) or (end and not terminal[row]),
                following is not None,
            )
        )
    return found


def _columns(path: Path | str) -> dict[str, np.ndarray[Any, Any]]:
    names = "observations", "actions", "rewards", "terminals", "timeouts", "next_observations"
    with h5py.File(path, "r") as file:
        if all(name in file for name in names[:4]):
            there = {name: file[name] for name in names if name in file}
            return {name: _all(one) for name, one in there.items() if isinstance(one, h5py.Dataset)}
        pieces = [
            file[f"virtual/{number}"]
            for number in sorted(filter(str.isdigit, file["virtual"]), key=int)
        ]
        return {n: np.concatenate([_all(p[n]) for p in pieces]) for n in names if n in pieces[0]}


def _all(dataset: Any) -> Any:
    """Read a dataset; what was never written and has no fill value is 0."""
    values = np.zeros(dataset.shape, dataset.dtype)
    try:
        if values.size:
            dataset.read_direct(values)
    except OSError:
        if dataset.compression != "gzip" or dataset.shuffle or dataset.fletcher32:
            raise
        for part in dataset.iter_chunks():  # HDF5 refuses sound chunks that state a strange level
            _, raw = dataset.id.read_direct_chunk(tuple(along.start for along in part))
            chunk = np.frombuffer(zlib.decompress(raw), dataset.dtype).reshape(dataset.chunks)
            values[part] = chunk[tuple(slice(n) for n in values[part].shape)]
    return values


def _equal(one: Any, other: Any) -> bool:
    pairs = zip(np.ravel(one).tolist(), np.ravel(other).tolist(), strict=True)
    return all(a == b or (isnan(a) and isnan(b)) for a, b in pairs)  # exact, also int against float
