"""TorchRL's samplers and writers and those of this package, without importing TorchRL."""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Callable
from importlib import import_module
from typing import Any

from offline_data.base.errors import MissingDependencyError
from offline_data.buffers import writers
from offline_data.rows import samplers
from offline_data.rows.storage import TensorStorage

_SLICES = (
    *("num_slices", "slice_len", "strict_length", "truncated_key", "init_key", "pad_output"),
    *("traj_key", "end_key", "end_keys", "span", "fragmented"),
)
_PRIORITIES = (
    *("max_capacity", "alpha", "beta", "eps", "dtype", "reduction", "max_priority_within_buffer"),
)
_ARGUMENTS: dict[str, tuple[str, ...]] = {
    "RandomSampler": (),
    "SamplerWithoutReplacement": ("drop_last", "shuffle"),
    "SliceSampler": _SLICES,
    "SliceSamplerWithoutReplacement": (*_SLICES, "drop_last", "shuffle"),
    "PrioritizedSampler": _PRIORITIES,
    "PrioritizedSliceSampler": (*_PRIORITIES, *_SLICES),
    "RoundRobinWriter": (),
    "TensorDictRoundRobinWriter": (),
    "TensorDictMaxValueWriter": ("rank_key", "reduction"),
    "ImmutableDatasetWriter": (),
}
"""Arguments of TorchRL's classes that this package's classes of the same name have."""


def storage_of_torchrl(storage: Any) -> Any:
    """Return a full TorchRL storage of tensors as a `TensorStorage` of them, anything else unchanged.

    TorchRL is not imported.
    """
    kind = type(storage)
    known = ("TensorStorage", "LazyTensorStorage", "LazyMemmapStorage")
    if kind.__name__ not in known or kind.__module__.partition(".")[0] != "torchrl":
        return storage
    rows = getattr(storage, "_storage", None)
    if rows is None or len(storage) < storage.max_size:
        return storage
    return TensorStorage(rows, ndim=storage.ndim)


def of_torchrl(part: Any) -> Any:
    """Return a TorchRL sampler or writer as one of this package, anything else unchanged.

    The distribution is the same, but order and seeds are this package's. Subclasses may behave
    differently and are returned unchanged. TorchRL is not imported.
    """
    kind = type(part)
    arguments = _ARGUMENTS.get(kind.__name__)
    if arguments is None or kind.__module__.partition(".")[0] != "torchrl":
        return part
    own = vars(part)
    found = {name: own.get(name, own.get(f"_{name}")) for name in arguments}
    kept = ("truncated_key", "init_key")
    given = {
        name: value
        for name, value in found.items()
        if value is not None or (name in kept and name in own)
    }
    if own.get("_traj_key_auto") or "traj_key" in given:  # TorchRL's default end_key is not used
        given = {
            name: value for name, value in given.items() if name not in ("end_key", "end_keys")
        }
    if "end_keys" in given:
        given.pop("end_key", None)
    make: Callable[..., Any] = getattr(samplers, kind.__name__, None) or getattr(
        writers, kind.__name__
    )
    converted = make(**given)
    if "_batch_size_multiplier" in own:  # set by a transform
        converted._batch_size_multiplier = own["_batch_size_multiplier"]
    if own.get("_rng") is not None:
        converted.set_rng(own["_rng"])
    return converted


def register() -> None:
    """Make this package's samplers and writers instances of TorchRL's base classes, if it is imported.

    `torchrl.data.replay_buffers.scheduler`, for one, asks for them. TorchRL's buffers and storages are
    no abstract classes, so `to_torchrl()` of a dataset is what is one.
    """
    for name, base in (("samplers", samplers.Sampler), ("writers", writers.Writer)):
        module = sys.modules.get(f"torchrl.data.replay_buffers.{name}")
        theirs: Any = getattr(module, base.__name__, None)
        if isinstance(theirs, ABCMeta):
            theirs.register(base)


def bridge(caller: str) -> Any:
    """Return the module that imports TorchRL; raises `MissingDependencyError` without it."""
    try:
        return import_module("offline_data.buffers.bridges.torchrl")
    except ImportError as error:
        raise MissingDependencyError(
            f"{caller} needs torchrl, which cannot be imported: {error}",
            hint="pip install 'offline-data[torchrl]'",
        ) from error


register()
