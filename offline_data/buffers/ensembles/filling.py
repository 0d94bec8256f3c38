"""Sub-batches of exactly the size asked for, also where an epoch ends in one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.samplers import Sampler
    from offline_data.buffers.samplers.base import Sampleable


def draw_exactly(
    sampler: Sampler, storage: Sampleable, size: int
) -> tuple[Tensor, dict[Any, Tensor]]:
    """Draw `size` rows: one draw, and the rest from the next epoch where one ends.

    Args:
        sampler: Whose draws they are.
        storage: Storage to sample from.
        size: How many, at least one.

    Returns:
        See `Sampler.sample`.

    Raises:
        UsageError: The sampler gives fewer rows, and not for the end of an epoch; or it cuts what
            it is asked for into a number of slices, so that those of the rest would be shorter.
    """
    draws = [sampler.sample(storage, size)]
    missing = size - len(draws[0][0])
    while missing:
        _check_rest(sampler, size - missing, size)
        draws.append(sampler.sample(storage, missing))
        missing -= len(draws[-1][0])
    if len(draws) == 1:
        return draws[0]
    keys = draws[0][1].keys()
    return (
        torch.cat([rows for rows, _ in draws]),
        {key: torch.cat([leaves[key] for _, leaves in draws]) for key in keys},
    )


def _check_rest(sampler: Sampler, found: int, size: int) -> None:
    if not 0 < found < size or not sampler.ran_out:
        raise UsageError(
            f"{sampler!r} gave {found} rows of the {size} of a sub-batch, and sub-batches are of "
            "the same size",
            hint="slices of short episodes are filled up by pad_output=True",
        )
    if getattr(sampler, "num_slices", None) is not None:
        raise UsageError(
            f"{sampler!r} came to the end of an epoch after {found} rows of the {size} of a "
            "sub-batch, and would cut the rest into shorter slices",
            hint="give it slice_len=… and not num_slices=…, or drop_last=True",
        )
