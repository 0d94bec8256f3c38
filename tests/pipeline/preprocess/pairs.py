"""Functions as users write them for TensorDicts, and what they mean for a row in plain Python.

Most do the same to a row of arrays, and are called with both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from offline_data.episode import Key
from offline_data.store.layout import LayoutName
from tests.pipeline.preprocess.oracle import REWARD, TERMINATED, TRUNCATED, Episode, Row

LAYOUTS: tuple[LayoutName, ...] = ("compact", "ted")
CLIP = "clip:action,low=-4004,high=-1002"
ACTION, STATE, CODE = ("action",), ("observation", "state"), ("info", "code")


def clipped(row: Row) -> Row:
    row[ACTION] = np.maximum(np.minimum(row[ACTION], np.float32(-1002)), np.float32(-4004))
    return row


def scaled(row: Any) -> Any:
    row[REWARD] = row[REWARD] * 30 + row[ACTION]
    return row


def branching(row: Any) -> Any:
    if row[ACTION].item() == -5004:
        row[REWARD] = row[REWARD] + 1000
    return row


def root_only(row: Any) -> Any:
    row[STATE] = row[STATE] * 2
    return row


def doubled(row: Any) -> Any:
    for key in (STATE, ("next", *STATE)):
        row[key] = row[key] * 2
    return row


def silent(row: Any) -> Any:
    row["observation", "mission"] = row["observation", "mission"] - row["observation", "mission"]
    return row


def odd_root(row: Any) -> Any:
    row[CODE] = row[CODE] + 1
    return row


def flags(row: Any) -> Any:
    """End episodes terminated that ended truncated, and the other way round."""
    row[TERMINATED], row[TRUNCATED] = row[TRUNCATED], row[TERMINATED]
    row[REWARD] = row[REWARD] - 7
    return row


def alike(row: Any) -> Any:
    """Let episodes of one length and one ending be the same."""
    for state, code in ((STATE, CODE), (("next", *STATE), ("next", *CODE))):
        row[state] = row[state] * 0 + 3
        row[code] = row[code] * 0 + 5
    row[ACTION], row[REWARD] = row[ACTION] * 0 + 7, row[REWARD] * 0 + 9
    return row


def bare(td: Any) -> Any:
    """Leave out all that may be left out."""
    return td.select("done")


def plain_bare(row: Row) -> Row:
    needed = {"action", "reward", "done", "terminated", "truncated"}
    return {key: value for key, value in row.items() if key[-1] in needed}


def reshaped(td: Any) -> Any:
    for place in (td, td["next"]):
        place["state"] = place["observation", "image"].float().mean(0)
        del place["observation", "image"]
        place["clock"] = place["info", "code"].to(td["action"].dtype).reshape(1) / 4
    td["both"] = td["action"] + td["index"]
    return td


def plain_reshaped(row: Row) -> Row:
    places: list[Key] = [(), ("next",)]
    for place in places:
        image = row.pop((*place, "observation", "image"))
        total = np.zeros(image.shape[1:], np.float32)
        for line in image:
            total += line
        state, clock, code = (*place, "state"), (*place, "clock"), (*place, *CODE)
        row[state] = total / np.float32(len(image))
        row[clock] = row[code].astype(np.float32).reshape(1) / 4
    row["both",] = row[ACTION] + row["index",].astype(np.float32)
    return row


def shorter(td: Any) -> Any:
    """Drop episodes of one step, and the last step of the others."""
    return td[:-1] if len(td) > 1 else None


def plain_shorter(episodes: list[Episode]) -> list[Episode]:
    out = []
    for one in episodes:
        if len(one.rows) > 1:
            rows = [dict(row) for row in one.rows[:-1]]
            rows[-1][TRUNCATED] = rows[-1]["next", "done"] = np.array([True])
            out.append(Episode(one.number, rows, True, one.extras))
    return out


LATE = 22_000 + 2


def late_root(td: Any) -> Any:
    td[STATE] = td[STATE] + (td[STATE] == LATE).float()
    return td


def plain_late_root(row: Row) -> Row:
    row[STATE] = row[STATE] + (row[STATE] == LATE).astype(np.float32)
    return row


def late_random(td: Any) -> Any:
    """Vectorised, all rows are asked about at once: `all` is of the row by itself."""
    import torch

    if torch._C._functorch.maybe_get_level(td["action"]) >= 0 and _seen(td):
        td["next", "reward"] = td["next", "reward"] * 5
    td["next", "reward"] = td["next", "reward"] * 2
    return td


def _seen(td: Any) -> bool:
    import torch

    values = td["info", "code"]
    while torch._C._functorch.is_batchedtensor(values):
        values = torch._C._functorch.get_unwrapped(values)
    return bool((values == LATE).any())


def plain_late_random(row: Row) -> Row:
    row[REWARD] = row[REWARD] * 2
    return row
