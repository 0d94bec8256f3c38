"""Validation of buffer arguments; accepts the same forms as TorchRL."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from offline_data.base.errors import UsageError
from offline_data.buffers.bridges.parts import of_torchrl, storage_of_torchrl
from offline_data.buffers.writers import ImmutableDatasetWriter, Writer
from offline_data.rows.samplers import RandomSampler, Sampler
from offline_data.rows.storage import GrowingStorage, ListStorage, Storage

if TYPE_CHECKING:
    from offline_data.rows.derived.base import Derived

Part = TypeVar("Part")

DEFAULT_ROWS = 1000
"""Capacity of the default storage, as in TorchRL."""


def as_storage(storage: Storage | Callable[[], Storage] | None) -> Storage:
    """Return `storage`, or the result of calling it; None: a `ListStorage` of 1000 rows."""
    made: Any = ListStorage(DEFAULT_ROWS) if storage is None else storage
    if isinstance(made, type) or (not hasattr(made, "gather") and callable(made)):
        made = made()
    made = storage_of_torchrl(made)
    if not all(hasattr(made, name) for name in ("gather", "rows", "runs")):
        raise _foreign(
            made,
            "a storage",
            "LazyTensorStorage and the other storages",
            why=": of TorchRL's, only full ones of tensors can be converted",
        )
    found: Storage = made
    return found


def as_sampler(sampler: Sampler | Callable[[], Sampler] | None) -> Sampler:
    """Return `sampler`, or the result of calling it; None: a `RandomSampler`."""
    made = RandomSampler() if sampler is None else sampler
    if not isinstance(made, Sampler) and callable(made):
        made = made()
    made = of_torchrl(made)
    if not isinstance(made, Sampler):
        raise _foreign(
            made,
            "a sampler",
            "RandomSampler and the other samplers",
            why=": TorchRL's would draw transitions whose next observation is unknown",
        )
    return made


def as_writer(
    writer: Writer | Callable[[], Writer] | None, storage: Storage, default: Callable[[], Writer]
) -> Writer:
    """Return `writer`, or the result of calling it, as a writer for `storage`.

    None: `default()` if the storage grows. A dataset always gets an `ImmutableDatasetWriter`.
    """
    grows = isinstance(storage, GrowingStorage)
    made: Any = writer
    if made is None:
        made = default() if grows else ImmutableDatasetWriter()
    if not isinstance(made, Writer) and callable(made):
        made = made()
    made = of_torchrl(made)
    if not isinstance(made, Writer):
        raise _foreign(made, "a writer", "RoundRobinWriter and the other writers")
    if not grows and not isinstance(made, ImmutableDatasetWriter):
        made = ImmutableDatasetWriter()  # a dataset is immutable, whatever the writer
    if isinstance(storage, GrowingStorage):
        made.register_storage(storage)
    found: Writer = made
    return found


def as_derived(derived: Derived | Iterable[Derived]) -> tuple[Derived, ...]:
    """Return one function of batches, or several, as a tuple; raises `UsageError`."""
    several: Any = (derived,) if callable(derived) else derived
    if not isinstance(several, Iterable) or not all(map(callable, several := tuple(several))):
        raise UsageError(
            f"derived is {derived!r}; expected a function of batches, such as n_step(3, 0.99), or a "
            "list of them"
        )
    return tuple(several)


def _foreign(part: Any, kind: str, ours: str, why: str = "") -> UsageError:
    shown = repr(part)
    if "\n" in shown:  # of a storage with its data
        shown = f"{type(part).__module__.partition('.')[0]}'s {type(part).__name__}"
    return UsageError(
        f"{shown} is not {kind} of this package{why}",
        hint=f"offline_data.{ours} take the same arguments as TorchRL's",
    )


def either(one: Part | None, maker: Callable[[], Part] | None, name: str) -> Part | None:
    """Return `one`, or the result of `maker`; raises `UsageError` if both are given."""
    if one is not None and maker is not None:
        raise UsageError(f"{name} and {name}_factory cannot both be given")
    return maker() if maker is not None else one
