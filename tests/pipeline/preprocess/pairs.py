"""Functions as users write them for TensorDicts, and what they mean for a row in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from offline_data.store.layout import LayoutName
from tests.pipeline.preprocess import oracle
from tests.pipeline.preprocess.oracle import Row

LAYOUTS: tuple[LayoutName, ...] = ("compact", "ted")


CLIP = "clip:action,low=-4004,high=-1002"


def clipped(row: Row) -> Row:
    row["action",] = np.maximum(np.minimum(row["action",], np.float32(-1002)), np.float32(-4004))
    return row


def scaled(td: Any) -> Any:
    td["next", "reward"] = td["next", "reward"] * 30 + td["action"]
    return td


def plain_scaled(row: Row) -> Row:
    row["next", "reward"] = row["next", "reward"] * 30 + row["action",]
    return row


def branching(td: Any) -> Any:
    if td["action"].item() == -5004:
        td["next", "reward"] = td["next", "reward"] + 1000
    return td


def plain_branching(row: Row) -> Row:
    if row["action",][0] == -5004:
        row["next", "reward"] = row["next", "reward"] + 1000
    return row


def root_only(td: Any) -> Any:
    td["observation", "state"] = td["observation", "state"] * 2
    return td


def plain_root_only(row: Row) -> Row:
    row["observation", "state"] = row["observation", "state"] * 2
    return row


def reshaped(td: Any) -> Any:
    for place in (td, td["next"]):
        place["state"] = place["observation", "image"].float().mean(0)
        del place["observation", "image"]
        place["clock"] = place["info", "code"].to(td["action"].dtype).reshape(1) / 4
    td["both"] = td["action"] + td["index"]
    return td


def plain_reshaped(row: Row) -> Row:
    for place in ((), ("next",)):
        image = row.pop((*place, "observation", "image"))
        total = np.zeros(image.shape[1:], np.float32)
        for line in image:
            total += line
        state, clock, code = (
            (*place, *name) for name in (("state",), ("clock",), ("info", "code"))
        )
        row[state] = total / np.float32(len(image))
        row[clock] = row[code].astype(np.float32).reshape(1) / 4
    row["both",] = row["action",] + row["index",].astype(np.float32)
    return row


def flags(td: Any) -> Any:
    """End episodes terminated that ended truncated, and the other way round."""
    after = td["next"]
    after["terminated"], after["truncated"] = after["truncated"], after["terminated"]
    after["reward"] = after["reward"] - 7
    return td


def plain_flags(row: Row) -> Row:
    one, other = row["next", "terminated"], row["next", "truncated"]
    row["next", "terminated"], row["next", "truncated"] = other, one
    row["next", "reward"] = row["next", "reward"] - 7
    return row


def shorter(td: Any) -> Any:
    """Drop episodes of one step, and the last step of the others."""
    return td[:-1] if len(td) > 1 else None


def plain_shorter(episodes: list[oracle.Episode]) -> list[oracle.Episode]:
    out = []
    for one in episodes:
        if len(one.rows) > 1:
            rows = [dict(row) for row in one.rows[:-1]]
            rows[-1]["next", "truncated"] = rows[-1]["next", "done"] = np.array([True])
            out.append(oracle.Episode(one.number, rows, True, one.extras))
    return out


LATE = 22_000 + 2


def late_root(td: Any) -> Any:
    late = (td["observation", "state"] == LATE).float()
    td["observation", "state"] = td["observation", "state"] + late
    return td


def plain_late_root(row: Row) -> Row:
    state = row["observation", "state"]
    row["observation", "state"] = state + (state == LATE).astype(np.float32)
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
    row["next", "reward"] = row["next", "reward"] * 2
    return row


def odd_root(td: Any) -> Any:
    td["info", "code"] = td["info", "code"] + 1
    return td


def plain_odd_root(row: Row) -> Row:
    row["info", "code"] = row["info", "code"] + 1
    return row
