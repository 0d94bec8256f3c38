"""Arguments of slice samplers, in the forms that TorchRL takes them, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.buffers.refusals import refuse
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_KNOWN_HERE = frozenset(
    {"traj_key", "end_key", "end_keys", "step_key", "cache_values", "compile", "use_gpu"}
)
"""How TorchRL finds the episodes and how fast: here their index is stored."""

_ELSEWHERE = "ends trajectories fragmented span"


def check_torchrl_arguments(sampler: str, arguments: Mapping[str, Any]) -> None:
    """Accept what changes nothing here, and refuse what would.

    Raises:
        UsageError: An argument that TorchRL has and this package does not, or nobody has.
    """
    asked = {name: value for name, value in arguments.items() if name not in _KNOWN_HERE}
    refuse(sampler, asked, _ELSEWHERE)


def check_slices(num_slices: int | None, slice_len: int | None) -> None:
    """Raise `UsageError` unless exactly one of both is given, and it is at least 1."""
    if (num_slices is None) == (slice_len is None):
        raise UsageError(
            f"Give num_slices or slice_len, and not both; found {num_slices=} and {slice_len=}"
        )
    for name, value in (("num_slices", num_slices), ("slice_len", slice_len)):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}; expected at least 1")


def slices_of(batch_size: int, num_slices: int | None, slice_len: int | None) -> tuple[int, int]:
    """Return number and length of the slices of a batch; raises `UsageError`.

    Example:
        >>> slices_of(12, num_slices=None, slice_len=3)
        (4, 3)
    """
    given = num_slices or slice_len or 1
    if batch_size % given:
        name = "num_slices" if num_slices else "slice_len"
        raise UsageError(
            f"A batch of {batch_size} is no multiple of {name}={given}",
            hint=f"{batch_size // given * given or given} is one",
        )
    return (given, batch_size // given) if num_slices else (batch_size // given, given)
