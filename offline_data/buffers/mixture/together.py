"""A whole batch by one compiled call, where every row of it is a dataset's as it is stored."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from offline_data.buffers.mixture.merge import put
from offline_data.buffers.native import NativeGather, gather_mixed
from offline_data.buffers.readahead import Readahead, around
from offline_data.buffers.storage import DatasetStorage
from offline_data.buffers.views.storage import SubsetStorage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import Tensor

    from offline_data.buffers.mixture.members import Draws


def stored_rows(member: Any, draw: Any) -> tuple[DatasetStorage, Tensor] | None:
    """Return where the rows of a draw are stored, if a member's batches are that and nothing else.

    Returns:
        The dataset, and its rows, int64 `[n]`; None for any other member, whose batches are made as
        it makes them.
    """
    if getattr(draw, "info", True):  # leaves that the sampler knows; or the draw of a mixture
        return None
    if member._first or member._derived or member._chain.links or member._pin:
        return None
    whole, rows = member.storage, draw.rows
    if isinstance(whole, SubsetStorage):
        rows, whole = whole.row_map.at(rows), whole.whole
    return (whole, rows) if isinstance(whole, DatasetStorage) else None


def gather_together(
    members: Sequence[Any], draws: Draws, source: Tensor, places: Tensor | None
) -> tuple[list[Tensor], Mapping[Any, int]] | None:
    """Gather straight into the batch: one allocation a leaf, and every row in its place.

    Args:
        members: The buffers.
        draws: What was drawn from which of them, by member.
        source: Member of each row, int64 `[B]`.
        places: Where in the batch the drawn rows go, laid end to end; None: as they stand.

    Returns:
        The leaves, and the number of each among them by its stored key; None where this cannot be
        done so: rows that are not as they are stored, datasets whose leaves lie differently, or
        the compiled gather does not serve one of them.
    """
    gathers: dict[int, NativeGather] = {}
    readaheads: list[Readahead] = []
    rows, slots = [], None
    for number, draw in draws:
        stored = stored_rows(members[number], draw)
        if stored is None or slots not in (None, stored[0].slots):
            return None
        gather = stored[0]._leaves_of or stored[0]._open()
        readahead = stored[0]._readahead
        if not isinstance(gather, NativeGather) or readahead is None:
            return None
        readaheads.append(readahead)
        slots, gathers[number] = stored[0].slots, gather
        rows.append(stored[1])
    if slots is None:
        return None
    some = next(iter(gathers.values()))  # stands for members that have no row in the batch
    numbers = torch.cat(rows) if places is None else put(torch.cat(rows), places)
    everyone = [gathers.get(number, some) for number in range(len(members))]
    mixed = partial(gather_mixed, everyone, source, numbers)
    due = [readahead.due() for readahead in readaheads]
    leaves = around(readaheads, rows, mixed) if any(due) else mixed()
    return None if leaves is None else (leaves, slots)
