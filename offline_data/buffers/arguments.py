"""Validation of buffer arguments; accepts the same forms as TorchRL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from offline_data.base.errors import UsageError
from offline_data.buffers.bridges.parts import is_torchrls, of_torchrl
from offline_data.buffers.writers import ImmutableDatasetWriter, Writer
from offline_data.rows.samplers import RandomSampler, Sampler

if TYPE_CHECKING:
    from offline_data.rows.derived.base import Derived


def as_sampler(sampler: Sampler | Callable[[], Sampler] | None) -> Sampler:
    """Return `sampler`, or the result of calling it; None: a `RandomSampler`."""
    made = RandomSampler() if sampler is None else sampler
    if not isinstance(made, Sampler) and callable(made):
        made = made()
    made = of_torchrl(made)
    if not isinstance(made, Sampler):
        raise foreign(
            made,
            "a sampler",
            "RandomSampler(), SliceSampler(slice_len=8) and the other samplers",
            why=": TorchRL's would draw transitions whose next observation is unknown"
            if is_torchrls(made, "Sampler")
            else "",
        )
    return made


def as_immutable_writer(writer: Any) -> ImmutableDatasetWriter:
    """Return the writer of a dataset, which is immutable, whatever the writer."""
    made = writer() if not isinstance(writer, Writer) and callable(writer) else writer
    if isinstance(made, ImmutableDatasetWriter):
        return made
    if not (made is None or isinstance(made, Writer) or is_torchrls(made, "Writer")):
        raise foreign(made, "a writer", "RoundRobinWriter and the other writers")
    return ImmutableDatasetWriter()


def as_derived(derived: Derived | Iterable[Derived]) -> tuple[Derived, ...]:
    """Return one function of batches, or several, as a tuple; raises `UsageError`."""
    several: Any = (derived,) if callable(derived) else derived
    if not isinstance(several, Iterable) or not all(map(callable, several := tuple(several))):
        raise UsageError(
            f"derived is {derived!r}; expected a function of batches, such as n_step(3, 0.99), or a "
            "list of them"
        )
    for one in several:
        if isfunction(one) and one.__module__.startswith("offline_data.rows.derived"):
            raise UsageError(
                f"derived is {one.__name__} itself; expected the function that a call of it returns",
                hint=f"derived={one.__name__}(…)",
            )
    return tuple(several)


def foreign(part: Any, kind: str, ours: str, why: str = "") -> UsageError:
    """Return the error for a part of another package."""
    shown = repr(part)
    if "\n" in shown:  # of a storage with its data
        shown = f"{type(part).__module__.partition('.')[0]}'s {type(part).__name__}"
    return UsageError(
        f"{shown} is not {kind} of this package{why}",
        hint=f"offline_data.{ours} take the same arguments as TorchRL's",
    )
