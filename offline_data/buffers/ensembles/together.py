"""Sub-batches of several datasets by one compiled call, where their leaves are of the same kinds."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from offline_data.buffers.assemble import assemble
from offline_data.buffers.ensembles.stacking import INDEX, named
from offline_data.buffers.native import NativeGather, gather_groups
from offline_data.buffers.readahead import around
from offline_data.buffers.storage import DatasetStorage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.buffers.readahead import Readahead
    from offline_data.buffers.storage import Storage


def gather_together(
    storages: Sequence[Storage], members: Tensor, index: Tensor
) -> TensorDict | None:
    """Gather sub-batches straight into the batch: one allocation a leaf, and no copy of it.

    Args:
        storages: Of all members.
        members: The member of each sub-batch, int64 `[K]`.
        index: Its rows, int64 `[K, n]`.

    Returns:
        The result of `stacked` for the storages' batches; None if this is not possible: a
        storage that is no dataset, datasets with other leaves, or the compiled gather does not
        serve one of them.

    Raises:
        IndexError: A row that is not there.
    """
    drawn = [storages[number] for number in members.tolist()]
    first, found = drawn[0], _compiled(drawn)
    if found is None or not isinstance(first, DatasetStorage):
        return None
    gathers, readaheads = found
    gather = partial(gather_groups, gathers, index)
    due = [readahead.due() for readahead in readaheads]
    leaves = around(readaheads, index.unbind(0), gather) if any(due) else gather()
    if leaves is None:
        return None
    slot = first.slots[(INDEX,)]
    leaves[slot] = named(members, leaves[slot], first.device)
    return assemble(first._tree, leaves, index.shape, first.device)


def _compiled(storages: Sequence[Storage]) -> tuple[list[NativeGather], list[Readahead]] | None:
    """Return what gathers from each storage, and what asks for its pages; see `gather_together`."""
    first = storages[0]
    gathers: list[NativeGather] = []
    readaheads: list[Readahead] = []
    for storage in storages:
        if not isinstance(storage, DatasetStorage) or not isinstance(first, DatasetStorage):
            return None
        gather = storage._leaves_of or storage._open()
        readahead = storage._readahead
        if not isinstance(gather, NativeGather) or readahead is None:
            return None
        if storage.slots != first.slots:
            return None
        gathers.append(gather)
        readaheads.append(readahead)
    return gathers, readaheads
