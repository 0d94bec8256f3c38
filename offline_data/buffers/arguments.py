"""Arguments of buffers, in the forms that TorchRL takes them, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.buffers.samplers import RandomSampler, Sampler
from offline_data.buffers.writers import ImmutableDatasetWriter
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable


def as_sampler(sampler: Sampler | Callable[[], Sampler] | None) -> Sampler:
    """Return a sampler, or what makes one, as a sampler; None: a `RandomSampler`."""
    made = RandomSampler() if sampler is None else sampler
    if not isinstance(made, Sampler) and callable(made):
        made = made()
    if not isinstance(made, Sampler):
        raise UsageError(
            f"{made!r} is no sampler of this package: TorchRL's would draw transitions whose "
            "next observation is not known",
            hint="offline_data.RandomSampler and offline_data.SamplerWithoutReplacement take the "
            "same arguments",
        )
    return made


def as_writer(writer: ImmutableDatasetWriter | None) -> ImmutableDatasetWriter:
    """Return a writer if it refuses to write; None: one that does."""
    if writer is None:
        return ImmutableDatasetWriter()
    if not isinstance(writer, ImmutableDatasetWriter):
        raise UsageError(f"{writer!r} would write, and a dataset is immutable; leave writer out")
    return writer


def positive(value: int, name: str) -> int:
    """Return `value` if it is at least 1."""
    if value < 1:
        raise UsageError(f"{name} is {value}; expected at least 1")
    return value
