"""Arguments of slice samplers, in the forms that TorchRL takes them, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.buffers.keys import as_key
from offline_data.buffers.refusals import refuse
from offline_data.buffers.samplers.base import Boundaries
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOUNDARIES = frozenset({"traj_key", "end_key", "end_keys"})
_SPEED = frozenset({"step_key", "cache_values", "compile", "use_gpu"})
"""How fast TorchRL finds the trajectories; `step_key` belongs to `fragmented`, which is refused."""

_ELSEWHERE = "ends trajectories fragmented span"


def boundaries_of(sampler: str, arguments: Mapping[str, Any]) -> Boundaries | None:
    """Return the leaves that TorchRL's arguments say end trajectories; None: they name none.

    Raises:
        UsageError: An argument that TorchRL has and this package does not, or nobody has;
            `end_key` and `end_keys` together, or no key in `end_keys`.
    """
    asked = {name: value for name, value in arguments.items() if name not in _BOUNDARIES | _SPEED}
    refuse(sampler, asked, _ELSEWHERE)
    trajectory, end, several = (arguments.get(name) for name in ("traj_key", "end_key", "end_keys"))
    if end is not None and several is not None:
        raise UsageError(f"Give either end_key or end_keys; found {end!r} and {several!r}")
    if several is not None and (isinstance(several, str) or not len(several)):
        raise UsageError(f"end_keys is {several!r}; expected a list of keys")
    ends = (end,) if end is not None else tuple(several or ())
    if trajectory is None and not ends:
        return None
    return Boundaries(None if trajectory is None else as_key(trajectory), tuple(map(as_key, ends)))


def check_slices(num_slices: int | None, slice_len: int | None) -> None:
    """Raise `UsageError` unless exactly one of both is given, and it is at least 1."""
    if (num_slices is None) == (slice_len is None):
        raise UsageError(
            f"Give either num_slices or slice_len; found {num_slices=} and {slice_len=}"
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
            f"A batch of {batch_size} must be a multiple of {name}={given}",
            hint=f"try a batch of {batch_size // given * given or given}",
        )
    return (given, batch_size // given) if num_slices else (batch_size // given, given)
