"""Conversion of TorchRL's samplers and writers to those of this package, by their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.buffers import samplers, writers

if TYPE_CHECKING:
    from collections.abc import Callable

_SLICES = (
    *("num_slices", "slice_len", "strict_length", "truncated_key", "init_key", "pad_output"),
    *("traj_key", "end_key", "end_keys", "span", "fragmented", "step_key"),
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
