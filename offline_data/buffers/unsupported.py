"""Arguments of TorchRL's signatures without a meaning here: their defaults pass, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ONE_PROCESS = "write in one process; others read a LazyMemmapStorage, or after share_memory_()"

_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "checkpointer": ((None,), "dumps(path) and loads(path) need none"),
    "cleanup_memmap": ((True, False), "LazyMemmapStorage has auto_cleanup"),
    "compilable": ((None, False), "leave it out, and compile what uses the batches"),
    "consolidated": ((False,), "leave it out: the memory of a leaf is contiguous"),
    "consume_after_n_samples": ((None,), "SamplerWithoutReplacement draws each row once an epoch"),
    "delayed_init": ((None, False), "leave it out: storages reserve memory with the first row"),
    "ends": ((None,), "leave it out: the ends of trajectories are stored"),
    "routing_dim": ((None,), "ensemble[i].extend(data) writes to one member"),
    "routing_key": ((None,), "ensemble[i].extend(data) writes to one member"),
    "sample_unit": (
        (None,),
        "SliceSampler gives windows of rows, derived=[…] what lies around one",
    ),
    "service_backend": (("direct",), _ONE_PROCESS),
    "service_backend_options": ((None,), _ONE_PROCESS),
    "shared": ((False,), _ONE_PROCESS),
    "shared_init": ((False,), _ONE_PROCESS),
    "track_generations": ((False,), "leave it out: write_count shows whether anything was written"),
    "trajectories": ((None,), "leave it out: the ends of trajectories are stored"),
    "transport": (("auto", "direct"), _ONE_PROCESS),
    "transport_options": ((None,), _ONE_PROCESS),
}


def refuse(owner: str, given: Mapping[str, Any], known: str) -> None:
    """Raise `UsageError` for arguments that cannot be honoured.

    Args:
        owner: Class that was given them, for the message.
        given: Arguments by name.
        known: Names that TorchRL's class has, separated by blanks.
    """
    for name, value in given.items():
        if name not in known.split():
            raise UsageError(f"{owner} has no argument {name!r}")
        accepted, hint = _REFUSED[name]
        if not any(value is one or value == one for one in accepted):
            raise UsageError(f"{owner} cannot do {name}={value!r}", hint=hint)
