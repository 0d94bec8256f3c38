"""TorchRL's arguments that are not supported: only their default values are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from offline_data.base.errors import UsageError

_ONE_PROCESS = "write in one process; others read a LazyMemmapStorage, or after share_memory_()"

_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "checkpointer": ((None,), "dumps(path) and loads(path) need none"),
    "cleanup_memmap": ((True, False), "use auto_cleanup of LazyMemmapStorage"),
    "compilable": ((None, False), "leave it out, and compile the code that uses the batches"),
    "consolidated": ((False,), "leave it out: features are contiguous"),
    "consume_after_n_samples": ((None,), "SamplerWithoutReplacement draws each row once per epoch"),
    "delayed_init": (
        (None, False),
        "leave it out: storages allocate memory when the first row is written",
    ),
    "ends": ((None,), "leave it out: the ends of trajectories are stored"),
    "fragmented": ((False,), "write the rows of a trajectory in the order of its steps"),
    "routing_dim": ((None,), "ensemble[i].extend(data) writes to one member"),
    "routing_key": ((None,), "ensemble[i].extend(data) writes to one member"),
    "sample_unit": (
        (None,),
        "SliceSampler returns windows of rows, derived=[…] features of neighbouring rows",
    ),
    "service_backend": (("direct",), _ONE_PROCESS),
    "service_backend_options": ((None,), _ONE_PROCESS),
    "shared": ((False,), _ONE_PROCESS),
    "shared_init": ((False,), _ONE_PROCESS),
    "track_generations": ((False,), "leave it out: write_count increases with every write"),
    "trajectories": ((None,), "leave it out: the ends of trajectories are stored"),
    "transport": (("auto", "direct"), _ONE_PROCESS),
    "transport_options": ((None,), _ONE_PROCESS),
}


def refuse(owner: str, given: Mapping[str, Any], known: str) -> None:
    """Raise `UsageError` for unsupported arguments; `known`: TorchRL's, separated by spaces."""
    for name, value in given.items():
        if name not in known.split():
            raise UsageError(f"{owner} has no argument {name!r}")
        accepted, hint = _REFUSED[name]
        if not any(value is default or value == default for default in accepted):
            raise UsageError(f"{owner} does not support {name}={value!r}", hint=hint)
