"""TorchRL's samplers and those of this package, without importing TorchRL."""

from __future__ import annotations

import sys
from abc import ABCMeta
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from offline_data.base.errors import MissingDependencyError
from offline_data.buffers import writers
from offline_data.rows import samplers

_SLICES = (
    *("num_slices", "slice_len", "strict_length", "truncated_key", "init_key", "pad_output"),
    *("traj_key", "end_key", "end_keys", "span", "fragmented"),
)
_PRIORITIES = (
    *("max_capacity", "alpha", "beta", "eps", "dtype", "reduction", "max_priority_within_buffer"),
)
_ARGUMENTS: Mapping[str, Sequence[str]] = {
    "RandomSampler": (),
    "SamplerWithoutReplacement": ("drop_last", "shuffle"),
    "SliceSampler": _SLICES,
    "SliceSamplerWithoutReplacement": (*_SLICES, "drop_last", "shuffle"),
    "PrioritizedSampler": _PRIORITIES,
    "PrioritizedSliceSampler": (*_PRIORITIES, *_SLICES),
}
"""Arguments of TorchRL's classes that this package's classes of the same name have."""


def is_torchrls(part: Any, names: str | tuple[str, ...]) -> bool:
    """Return True if the class of an object is TorchRL's, and has a name that ends with one of these."""
    kind = type(part)
    return kind.__module__.partition(".")[0] == "torchrl" and kind.__name__.endswith(names)


def of_torchrl(
    part: Any, arguments: Mapping[str, Sequence[str]] = _ARGUMENTS, ours: Any = samplers
) -> Any:
    """Return a TorchRL sampler as one of this package, anything else unchanged.

    The distribution is the same, but order and seeds are this package's. Subclasses, which may
    differ, are returned unchanged. `arguments`: by name of the class those that `ours` has.
    """
    name = type(part).__name__
    if name not in arguments or not is_torchrls(part, name):
        return part
    own = vars(part)
    found = {one: own.get(one, own.get(f"_{one}")) for one in arguments[name]}
    kept = ("truncated_key", "init_key")
    given = {
        one: value
        for one, value in found.items()
        if value is not None or (one in kept and one in own)
    }
    if own.get("_traj_key_auto") or "traj_key" in given:  # TorchRL's default end_key is not used
        given = {one: value for one, value in given.items() if one not in ("end_key", "end_keys")}
    if "end_keys" in given:
        given.pop("end_key", None)
    converted = getattr(ours, name)(**given)
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
