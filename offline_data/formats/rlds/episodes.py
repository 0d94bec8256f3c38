"""Conversion of RLDS records to episodes: leaves of features, and alignment of rows.

Row `t` of a record has the observation before action `t`, the action, and the resulting reward. After
the last action there is either nothing, or one more row of which only the observation is valid
(https://github.com/google-research/rlds#dataset-format):

```
rows of the record      o0 a0 r0   o1 a1 r1   o2 a2 r2     the last action is one
observations            o0         o1         o2    o2     repeated, final_observation False
steps                   a0 r0      a1 r1      a2 r2

rows of the record      o0 a0 r0   o1 a1 r1   o2 0  0      is_last; action, reward, discount zero
observations            o0         o1         o2           final_observation True
steps                   a0 r0      a1 r1                   is_terminal of o2 is that of step 1
```
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural
from offline_data.episode import EpisodeBatch, Key
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.episode.notes import count_episodes
from offline_data.formats.rlds.features import STEPS, Feature
from offline_data.formats.rlds.values import column_of, row_count
from offline_data.raw.tf_example import Value, parse_example

NOTE_FINAL_STEP = (
    "the last step of RLDS only has an observation: is_last is set, and action, reward and discount "
    "are zero; that is the final observation, and no transition."
)
NOTE_NO_FINAL = (
    "the last step has an action; the observation after it is not in the source, and the last one is "
    "repeated there."
)
NOTE_FLAGS = (
    "is_first and is_last are not set on the first and last step, and on no other; an episode is a "
    "whole record."
)
NOTE_UNENDED = "Episodes whose last step is not is_terminal are truncated."
NOTE_TERMINAL = "is_terminal is set before the last step, which is kept."
NOTE_REWARD = "The source has no rewards; they are 0."
NOTE_MISSING = "{name} is missing; it is {nothing} there."

_FLAGS = ("is_first", "is_last", "is_terminal")
_RESERVED = {"next", "done", "terminated", "truncated", "index", "episode"}
_OF_TABLE = {"start", "length", "return", "terminated", "truncated", "final_observation", "split"}


def key_of(path: Key, *, in_steps: bool) -> Key:
    """Return the leaf of a feature: without `steps` for a step, by its own name for an episode.

    Reserved names are put below `steps` or `episode`.
    """
    if in_steps:
        key = path[1:]
        return (STEPS, *key) if key[0] in _RESERVED else key
    return ("episode", *path) if path[0] in _OF_TABLE else path


def read_episode(
    data: bytes, features: Sequence[Feature], split: str, observed: Collection[Key] = ()
) -> EpisodeBatch:
    """Read one record, which is one episode; raises `FormatError`. For the leaves see `align_rows`."""
    record = parse_example(data)
    rows = _rows(record, features)
    columns: dict[bool, dict[Key, Any]] = {True: {}, False: {}}
    for feature in features:
        key = key_of(feature.path, in_steps=feature.in_steps)
        count = rows if feature.in_steps else 1
        columns[feature.in_steps][key] = column_of(record, feature, count)
    missing = [f for f in features if f.optional and row_count(record, f) is None]
    table = {("split",): np.array([split], object), **columns[False]}
    notes = [_missing(feature) for feature in missing]
    return align_rows(columns[True], rows, table, notes, observed)


def align_rows(
    columns: Mapping[Key, Any],
    rows: int,
    table: Mapping[Key, Any],
    more_notes: Sequence[str] = (),
    observed: Collection[Key] = (),
) -> EpisodeBatch:
    """Return the episode of the steps of a record; raises `FormatError`.

    Rewards and flags are `[N, 1]`. Other features of a step are step leaves, except `observation`
    and those `observed`, which have a row for each observation. `columns` are the features of the
    steps, `[rows, …]` each, by `key_of`; `table` those of the episode, `[1, …]`.
    """
    columns = dict(columns)
    flags = {name: _flag(columns.pop((name,), None), name, rows) for name in _FLAGS}
    first, last, terminal = flags.values()
    rewards = columns.pop(("reward",), None)
    observations = {
        key: c for key, c in columns.items() if key[0] == "observation" or key in observed
    }
    steps = {key: column for key, column in columns.items() if key not in observations}
    notes = [NOTE_UNENDED]
    reward = _reward(rewards, rows)
    if rewards is None:
        notes.append(NOTE_REWARD)
    # RLDS calls them invalid where is_last is set; most robots' sets have an action there, and discount 1.
    # Without a discount, zeros are what RLDS says, not an action of zeros: no step of it can be learnt.
    means = [c for key, c in steps.items() if key[0] in {"action", "discount"}]
    only_observation = (
        rows > 1 and last is not None and bool(last[-1]) and all(map(_is_empty, [*means, reward]))
    )
    count = rows - only_observation
    terminated = np.zeros((count, 1), bool) if terminal is None else terminal[:count, None].copy()
    if terminal is not None:
        terminated[-1] |= terminal[-1]
        if terminated[:-1].any():
            notes.append(count_episodes(1, NOTE_TERMINAL))
    truncated = np.zeros((count, 1), bool)
    truncated[-1] = not terminated[-1]
    alone = np.arange(rows)
    if (first is not None and (first != (alone == 0)).any()) or (
        last is not None and (last != (alone == rows - 1)).any()
    ):
        notes.append(count_episodes(1, NOTE_FLAGS))
    notes.append(count_episodes(1, NOTE_FINAL_STEP if only_observation else NOTE_NO_FINAL))
    whole = np.append(alone, [] if only_observation else rows - 1).astype(np.int64)
    return EpisodeBatch(
        np.array([count]),
        {
            **{key: column[:count] for key, column in steps.items()},
            REWARD: reward[:count],
            TERMINATED: terminated,
            TRUNCATED: truncated,
        },
        {key: column[whole] for key, column in observations.items()},
        np.array([only_observation]),
        table,
        notes=(*notes, *more_notes),
    )


def _rows(record: Mapping[str, Value], features: Sequence[Feature]) -> int:
    """Return the number of steps of a record, which must be the same for all features."""
    counts = {f.name: row_count(record, f) for f in features if f.in_steps}
    known = {name: count for name, count in counts.items() if count is not None}
    if not known or not max(known.values()):
        raise FormatError("it has no step")
    most = max(known.values())
    other = next((name for name, count in known.items() if count != most), None)
    if other is not None:
        longest = next(name for name, count in known.items() if count == most)
        raise FormatError(f"{other} has {plural(known[other], 'step')}, and {longest} {most}")
    return most


def _flag(column: Any, name: str, rows: int) -> NDArray[np.bool_] | None:
    if column is None:
        return None
    if column.size != rows or column.dtype.kind not in "biu":
        raise FormatError(
            f"{STEPS}/{name} is {column.dtype} {list(column.shape)}; expected one flag a step"
        )
    return np.asarray(column.reshape(rows), bool)


def _reward(column: Any, rows: int) -> NDArray[Any]:
    if column is None:
        return np.zeros((rows, 1), np.float32)
    if column.size != rows or column.dtype.kind not in "biuf":
        raise FormatError(
            f"{STEPS}/reward is {column.dtype} {list(column.shape)}; expected one number a step"
        )
    return np.asarray(column.reshape(rows, 1))


def _is_empty(column: Any) -> bool:
    """Return True if the last row is RLDS padding: zeros, NaN, no text."""
    row = column[-1:]
    if row.dtype == object:
        return all(value in {None, "", "[]"} for value in row.flat)
    return not np.nan_to_num(row).any()


def _missing(feature: Feature) -> str:
    nothing = "NaN" if feature.dtype.startswith(("float", "bfloat")) else "0"
    if feature.kind == "text" or feature.varies:
        nothing = "None"
    return count_episodes(1, NOTE_MISSING.format(name=feature.name, nothing=nothing))
