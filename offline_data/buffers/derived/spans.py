"""The episode that each row of a batch is in: where it begins, where it ends, what is known then."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from offline_data.buffers.samplers.base import Sampleable


class Spans(NamedTuple):
    """Of each row, the run of rows that it is in; all `[B]`, on the CPU."""

    first: Tensor
    """First row of the run, int64."""
    last: Tensor
    """Last row of the run, int64."""
    valid: Tensor
    """Whether the observation after the last row is known, or not needed: it is terminated."""
    known: Tensor
    """Whether the observation after the last row is known."""


def spans_of(storage: Sampleable, rows: Tensor) -> Spans:
    """Look up the runs of `rows`, int64 `[B]`."""
    runs = storage.runs()
    run = runs.of(rows)
    first = runs.starts[run]
    last = first + runs.lengths[run] - 1
    valid = ~_among(torch.as_tensor(storage.rows(valid_only=True).left_out), last)
    return Spans(first, last, valid, valid if runs.final is None else valid & runs.final[run])


def _among(left_out: Tensor, rows: Tensor) -> Tensor:
    """Tell of each row whether it is one of `left_out`, `[k]`, ascending."""
    if not len(left_out):
        return torch.zeros_like(rows, dtype=torch.bool)
    place = torch.searchsorted(left_out, rows).clamp_max(len(left_out) - 1)
    return left_out[place] == rows
