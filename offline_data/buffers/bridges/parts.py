"""TorchRL's samplers and writers as ours: what they were asked to do, not how they do it."""

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
"""Arguments of TorchRL's classes that have ours of the same name."""


def of_torchrl(part: Any) -> Any:
    """Return a sampler or writer of TorchRL as ours, anything else as it is.

    It draws the same distribution, by our order and seeds; a subclass may do something else, and is
    returned as it is. TorchRL is not imported.
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
    if own.get("_traj_key_auto") or "traj_key" in given:  # TorchRL's default end_key has no say
        given = {
            name: value for name, value in given.items() if name not in ("end_key", "end_keys")
        }
    if "end_keys" in given:
        given.pop("end_key", None)
    make: Callable[..., Any] = getattr(samplers, kind.__name__, None) or getattr(
        writers, kind.__name__
    )
    made = make(**given)
    if "_batch_size_multiplier" in own:  # of a sampler that a transform made
        made._batch_size_multiplier = own["_batch_size_multiplier"]
    if own.get("_rng") is not None:
        made.set_rng(own["_rng"])
    return made
