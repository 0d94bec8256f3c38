"""Functions over several members: gathering at once, and routing of priorities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.buffers.mixtures.leaves import MEMBER
from offline_data.episode import Key
from offline_data.rows.gather.assemble import Node
from offline_data.rows.gather.native import NativeGather, gather_groups, gather_mixed
from offline_data.rows.gather.plan import INDEX
from offline_data.rows.gather.readahead import around
from offline_data.rows.samplers import Sampler
from offline_data.rows.selection import SubsetStorage
from offline_data.rows.storage import DatasetStorage
from offline_data.store.layout import EPISODE


def is_plain(member: Any) -> bool:
    """Return True if a buffer returns what its storage gathers, unchanged."""
    return not (member._derived or member._first or member._chain.outward or member._pin)


def dataset_of(storage: Any) -> DatasetStorage | None:
    """Return the dataset storage that `storage` selects rows of; None for other storages."""
    whole = storage.whole if isinstance(storage, SubsetStorage) else storage
    return whole if isinstance(whole, DatasetStorage) else None


@pickled_by_name
class GatherMany:
    """Gathers rows of several datasets and views in one compiled call into one batch."""

    def __init__(self) -> None:
        self._episodes: tuple[list[Any], Tensor, Tensor] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return GatherMany, ()

    def __call__(
        self,
        storages: Sequence[Any],
        numbers: Sequence[int],
        rows: list[Tensor] | Tensor,
        source: Tensor,
        places: Tensor | None = None,
    ) -> tuple[list[Tensor], Mapping[Key, int], Node] | None:
        """Return a batch's features, their slots by key, and the tree of all drawn members' keys.

        None for other storages or layouts of features, or without the compiled gather. `numbers` is
        the member of each draw; `rows` int64 `[n]` per draw, for a batch `[B]`, or a tensor
        `[K, n]`, for `[K, n]`; `source` the member of each row `[B]` or of each draw `[K]`;
        `places` the positions of the concatenated rows in the batch, None: in order.
        """
        drawn = [storages[number] for number in numbers]
        gathers, readaheads, views = [], [], []
        first: Any = None
        for storage in drawn:
            whole = storage
            if isinstance(storage, SubsetStorage):
                whole = storage.whole
                views.append(storage)
            first = whole if first is None else first
            if not isinstance(whole, DatasetStorage) or whole.slots != first.slots:
                return None
            own = whole.opened()
            if not isinstance(own, NativeGather) or whole._readahead is None:
                return None
            gathers.append(own)
            readaheads.append(whole._readahead)
        stored: Any = rows
        if views:
            pairs = zip(drawn, rows, strict=True)
            stored = [s.row_map.at(r) if isinstance(s, SubsetStorage) else r for s, r in pairs]
        if isinstance(rows, torch.Tensor):
            make = partial(gather_groups, gathers, torch.stack(stored) if views else stored)
        else:  # members without rows in the batch get the first one as a placeholder
            of_all = [gathers[0]] * len(storages)
            for number, own in zip(numbers, gathers, strict=True):
                of_all[number] = own
            make = partial(gather_mixed, of_all, source, put(torch.cat(stored), places))
        due = [readahead.due() for readahead in readaheads]
        leaves = around(readaheads, stored, make) if any(due) else make()
        if leaves is None:
            return None
        if not views:
            return leaves, first.slots, first._tree
        slots = views[0].slots  # those of the dataset, and two for its own numbers
        leaves.append(leaves[slots[INDEX]])
        own_index = rows.clone() if isinstance(rows, torch.Tensor) else put(torch.cat(rows), places)
        leaves[slots[INDEX]] = own_index
        if EPISODE in slots:
            leaves.append(leaves[slots[EPISODE]])
            leaves[slots[EPISODE]] = self._episode_rows(storages, leaves[-1], source)
        return leaves, slots, views[0]._tree if len(views) == len(drawn) else first._tree

    def _episode_rows(self, storages: Sequence[Any], episodes: Tensor, source: Tensor) -> Tensor:
        if self._episodes is None or self._episodes[0] != [*storages]:
            tables = []
            for storage in storages:
                whole = dataset_of(storage)
                table = torch.arange(0 if whole is None else whole.reader.episode_count)
                view = whole is not None and isinstance(storage, SubsetStorage)
                tables.append(storage._episode_rows if view else table)
            ends = torch.tensor([len(table) for table in tables]).cumsum(0)
            starts = torch.cat([ends.new_zeros(1), ends[:-1]])
            self._episodes = [*storages], starts, torch.cat(tables)
        _, starts, table = self._episodes
        first = starts.index_select(0, source).reshape(-1, *[1] * (episodes.ndim - 1))
        return table.take(episodes + first)


def put(numbers: Tensor, places: Tensor | None) -> Tensor:
    """Return a tensor with `numbers[i]` at `places[i]`, a permutation; int64 `[B]`."""
    return numbers if places is None else torch.empty_like(places).scatter_(0, places, numbers)


def members_and_rows(index: Any) -> tuple[Tensor, Tensor]:
    """Return members and rows of `batch["index"]` of an ensemble; raises `UsageError`."""
    try:
        return index[MEMBER], index[INDEX[0]]
    except (KeyError, IndexError, TypeError) as error:
        raise UsageError(
            "A row of several buffers is a member and a row of it; expected batch['index'], a "
            f"TensorDict with {MEMBER} and {INDEX[0]}, and found {index!r}"
        ) from error


def update_priorities(
    buffers: Sequence[Any],
    source: Tensor,
    index: Tensor,
    priority: Tensor | float,
    *,
    warn: bool = False,
) -> None:
    """Update priorities, one for all rows or one each, in the buffers with prioritized samplers.

    `warn`: also call the other samplers, which warn that they have no priorities.
    """
    source, index = (torch.as_tensor(numbers).to("cpu").reshape(-1) for numbers in (source, index))
    values = torch.as_tensor(priority).detach().to("cpu").reshape(-1)
    if len(values) not in {1, len(source)}:
        raise UsageError(
            f"Found {plural(len(values), 'priority', 'priorities')} for "
            f"{plural(len(source), 'row')}"
        )
    if len(source) and not 0 <= int(source.min()) <= int(source.max()) < len(buffers):
        raise UsageError(f"Sources are 0 to {len(buffers) - 1}; found {source.tolist()}")
    values = values.expand(len(source))
    for number in torch.unique(source).tolist():
        buffer, own = buffers[number], source == number
        if warn or type(buffer.sampler).update_priority is not Sampler.update_priority:
            buffer.update_priority(index[own], values[own])
