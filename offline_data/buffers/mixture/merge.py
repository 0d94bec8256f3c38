"""The leaves of several members' batches as one batch, each row in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def places_of(source: Tensor) -> Tensor:
    """Return where in a batch the members' rows go, laid end to end, int64 `[B]`.

    Args:
        source: Member of each row, int64 `[B]`; the first row of a member is the first one of its
            part, and so on.

    Example:
        >>> places_of(torch.tensor([1, 0, 1, 0])).tolist()
        [1, 3, 0, 2]
    """
    return source.sort(stable=True).indices


def merge(parts: Sequence[Sequence[Tensor]], places: Tensor | None) -> list[Tensor]:
    """Lay the rows of members out as rows of a batch.

    Args:
        parts: The leaves of each member, `[n, *shape]`, alike but for `n`.
        places: Positions of the members' rows in the batch; None: in their order.

    Returns:
        The leaves, each `[B, *shape]`, contiguous and in memory of its own.
    """
    if places is None:
        return [torch.cat(column) for column in zip(*parts, strict=True)]
    order = put(torch.arange(len(places)), places).to(parts[0][0].device)
    return [torch.cat(column).index_select(0, order) for column in zip(*parts, strict=True)]


def put(numbers: Tensor, places: Tensor) -> Tensor:
    """Return a tensor that has `numbers[i]` at `places[i]`, each place once; int64 `[B]`."""
    return torch.empty_like(places).scatter_(0, places, numbers)
