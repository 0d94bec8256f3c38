"""New priorities of a batch's rows, each told to the sampler of the buffer that the row is from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.mixture.shares import has_priorities
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def spread_priorities(
    members: Sequence[Any], source: Tensor, index: Tensor, priority: Tensor | float
) -> None:
    """Tell the members' samplers; see `DatasetMixture.update_priority`.

    Args:
        members: Buffers and mixtures.
        source: Number of the buffer of each row, the members of mixtures counted in their place.
        index: The buffer's own leaf `index`, of as many rows.
        priority: One for each, or one for all.
    """
    source, index = (torch.as_tensor(one).to("cpu").reshape(-1) for one in (source, index))
    values = torch.as_tensor(priority).detach().to("cpu").reshape(-1).expand(len(source))
    first = 0
    for member in members:
        inner = getattr(member, "sources", None)
        end = first + (1 if inner is None else len(inner))
        mine = ((source >= first) & (source < end)).nonzero()[:, 0]
        if len(mine) and inner is not None:
            spread_priorities(member.members, source[mine] - first, index[mine], values[mine])
        elif len(mine) and has_priorities(member.sampler):
            member.update_priority(index[mine], values[mine])
        first = end
    if len(source) and not 0 <= int(source.min()) <= int(source.max()) < first:
        raise UsageError(f"Sources are 0 to {first - 1}; found {source.tolist()}")
