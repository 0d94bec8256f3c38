"""A whole batch by one compiled call, where every row of it is a dataset's as it is stored."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from offline_data.buffers.mixture.merge import put
from offline_data.buffers.native import NativeGather, gather_mixed
from offline_data.buffers.plan import INDEX
from offline_data.buffers.readahead import Readahead, around
from offline_data.buffers.storage import DatasetStorage
from offline_data.buffers.views.storage import DATASET_EPISODE, DATASET_INDEX, SubsetStorage
from offline_data.store.layout import EPISODE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch import Tensor

    from offline_data.buffers.mixture.members import Draws
    from offline_data.episodes import Key


def stored_rows(member: Any, draw: Any) -> tuple[DatasetStorage | SubsetStorage, Tensor] | None:
    """Return where the rows of a draw are stored, if a member's batches are that and nothing else.

    Returns:
        The dataset or the view, and its rows, int64 `[n]`; None for any other member, whose batches
        are made as it makes them.
    """
    if getattr(draw, "info", True):  # leaves that the sampler knows; or the draw of a mixture
        return None
    if member._first or member._derived or member._chain.links or member._pin:
        return None
    storage = member.storage
    whole = storage.whole if isinstance(storage, SubsetStorage) else storage
    return (storage, draw.rows) if isinstance(whole, DatasetStorage) else None


def gather_together(
    members: Sequence[Any], draws: Draws, source: Tensor, places: Tensor | None
) -> tuple[list[Tensor], Mapping[Any, int]] | None:
    """Gather straight into the batch: one allocation a leaf, and every row in its place.

    Args:
        members: The buffers.
        draws: Rows drawn from each of them, by member.
        source: Member of each row, int64 `[B]`.
        places: Positions in the batch of the drawn rows, laid end to end; None: in their order.

    Returns:
        The leaves, and the number of each among them by its stored key; None where this cannot be
        done so: rows that are not as they are stored, datasets whose leaves lie differently, or
        the compiled gather does not serve one of them.
    """
    gathers: dict[int, NativeGather] = {}
    readaheads: list[Readahead] = []
    drawn: list[tuple[DatasetStorage | SubsetStorage, Tensor]] = []
    rows, slots = [], None
    for number, draw in draws:
        stored = stored_rows(members[number], draw)
        if stored is None:
            return None
        storage, own = stored
        steps = storage.steps if isinstance(storage, SubsetStorage) else storage
        if slots not in (None, steps.slots):
            return None
        gather = steps._leaves_of or steps._open()
        readahead = steps._readahead
        if not isinstance(gather, NativeGather) or readahead is None:
            return None
        readaheads.append(readahead)
        slots, gathers[number] = steps.slots, gather
        rows.append(storage.row_map.at(own) if isinstance(storage, SubsetStorage) else own)
        drawn.append(stored)
    if slots is None:
        return None
    some = next(iter(gathers.values()))  # stands for members that have no row in the batch
    numbers = torch.cat(rows) if places is None else put(torch.cat(rows), places)
    everyone = [gathers.get(number, some) for number in range(len(members))]
    mixed = partial(gather_mixed, everyone, source, numbers)
    due = [readahead.due() for readahead in readaheads]
    leaves = around(readaheads, rows, mixed) if any(due) else mixed()
    if leaves is None:
        return None
    if not any(isinstance(storage, SubsetStorage) for storage, _ in drawn):
        return leaves, slots
    return leaves, _in_views(leaves, slots, drawn, places)


def _in_views(
    leaves: list[Tensor],
    slots: Mapping[Key, int],
    drawn: Sequence[tuple[DatasetStorage | SubsetStorage, Tensor]],
    places: Tensor | None,
) -> dict[Key, int]:
    """Give rows of views the views' numbers, in place; see `SubsetStorage`.

    Returns:
        `slots`, and those of the datasets' numbers.
    """
    slots, index = dict(slots), torch.cat([rows for _, rows in drawn])
    for key, of_dataset in ((INDEX, DATASET_INDEX), (EPISODE, DATASET_EPISODE)):
        if key in slots:
            slots[of_dataset] = len(leaves)
            leaves.append(leaves[slots[key]])
    leaves[slots[INDEX]] = index if places is None else put(index, places)
    if EPISODE in slots:
        stored = leaves[slots[EPISODE]]
        episodes, begin = stored.clone(), 0
        for storage, rows in drawn:
            end = begin + len(rows)
            if isinstance(storage, SubsetStorage):
                where = torch.arange(begin, end) if places is None else places[begin:end]
                own = storage.episode_rows(stored.index_select(0, where))
                episodes.index_copy_(0, where, own)
            begin = end
        leaves[slots[EPISODE]] = episodes
    return slots
