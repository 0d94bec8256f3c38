"""Arguments of buffers, in the forms that TorchRL takes them, checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from offline_data.buffers.bridges.parts import of_torchrl
from offline_data.buffers.samplers import RandomSampler, Sampler
from offline_data.buffers.storage import GrowingStorage, ListStorage
from offline_data.buffers.writers import ImmutableDatasetWriter, Writer
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from offline_data.buffers.derived.base import Derived
    from offline_data.buffers.storage import Storage

Part = TypeVar("Part")

DEFAULT_ROWS = 1000
"""Rows of the storage of a buffer that was given none, as in TorchRL."""


def as_storage(storage: Storage | Callable[[], Storage] | None) -> Storage:
    """Return a storage, or what makes one, as a storage; None: a `ListStorage` of 1000 rows."""
    made: Any = ListStorage(DEFAULT_ROWS) if storage is None else storage
    if isinstance(made, type) or (not hasattr(made, "gather") and callable(made)):
        made = made()
    if not all(hasattr(made, name) for name in ("gather", "rows", "runs")):
        raise _foreign(made, "a storage", "LazyTensorStorage and its like")
    found: Storage = made
    return found


def as_sampler(sampler: Sampler | Callable[[], Sampler] | None) -> Sampler:
    """Return a sampler, or what makes one, as a sampler; None: a `RandomSampler`."""
    made = RandomSampler() if sampler is None else sampler
    if not isinstance(made, Sampler) and callable(made):
        made = made()
    made = of_torchrl(made)
    if not isinstance(made, Sampler):
        raise _foreign(
            made,
            "a sampler",
            "RandomSampler and its like",
            why=": TorchRL's would draw transitions whose next observation is not known",
        )
    return made


def as_writer(
    writer: Writer | Callable[[], Writer] | None, storage: Storage, default: Callable[[], Writer]
) -> Writer:
    """Return a writer, or what makes one, as a writer for `storage`.

    None: `default()` where the storage grows. For a dataset always one that refuses.
    """
    grows = isinstance(storage, GrowingStorage)
    made: Any = writer
    if made is None:
        made = default() if grows else ImmutableDatasetWriter()
    if not isinstance(made, Writer) and callable(made):
        made = made()
    made = of_torchrl(made)
    if not isinstance(made, Writer):
        raise _foreign(made, "a writer", "RoundRobinWriter and its like")
    if not grows and not isinstance(made, ImmutableDatasetWriter):
        made = ImmutableDatasetWriter()  # a dataset is immutable, whatever would write
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
    return UsageError(
        f"{part!r} is not {kind} of this package{why}",
        hint=f"offline_data.{ours} take the same arguments as TorchRL's",
    )


def either(one: Part | None, maker: Callable[[], Part] | None, name: str) -> Part | None:
    """Return what was given, or what `maker` makes; raises `UsageError` where both were."""
    if one is not None and maker is not None:
        raise UsageError(f"{name} and {name}_factory cannot both be given")
    return maker() if maker is not None else one


def positive(value: int, name: str) -> int:
    """Return `value` if it is a whole number and at least 1."""
    if not hasattr(value, "__index__") or isinstance(value, bool):
        raise UsageError(f"{name} is {value!r}; expected a whole number")
    if value < 1:
        raise UsageError(f"{name} is {value}; expected at least 1")
    return value
