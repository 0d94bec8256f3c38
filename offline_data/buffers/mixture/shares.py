"""How much of a mixture each member is: weights as users say them, as probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from offline_data.buffers.samplers.base import Sampler
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from offline_data.buffers.mixture.members import Member

Weights: TypeAlias = "Literal['steps', 'episodes', 'equal'] | Sequence[float] | Mapping[Any, float]"
"""Types of `weights`; see `DatasetMixture`."""

_NAMED = ("steps", "episodes", "equal")


def fixed_weights(weights: Weights, members: Sequence[Member]) -> tuple[float, ...] | None:
    """Return given weights, one for each member; None where they follow from the members.

    Raises:
        UsageError: No weights: unknown words, another number of them, negative ones, all zero.
    """
    if isinstance(weights, str):
        if weights not in _NAMED:
            raise UsageError(f"weights={weights!r}; expected {', '.join(_NAMED)}, or numbers")
        return tuple(1.0 for _ in members) if weights == "equal" else None
    given = _by_member(weights, members) if isinstance(weights, Mapping) else list(weights)
    if len(given) != len(members):
        raise UsageError(f"There are {len(given)} weights for {len(members)} members")
    numbers = tuple(float(weight) for weight in given)
    if not all(math.isfinite(weight) and weight >= 0 for weight in numbers) or not any(numbers):
        raise UsageError(f"Weights are 0 or more, and not all 0; found {numbers}")
    return numbers


def _by_member(weights: Mapping[Any, float], members: Sequence[Member]) -> list[float]:
    """Look up weights by a member's number, or by the id of its dataset."""
    left = dict(weights)
    found = []
    for number, member in enumerate(members):
        names = [name for name in (number, *_ids(member)) if name in left]
        if len(names) != 1:
            raise UsageError(
                f"Member {number} has {len(names)} weights in {dict(weights)}; expected one, by "
                f"its number or by the id of its dataset {_ids(member)}"
            )
        found.append(left.pop(names[0]))
    if left:
        raise UsageError(f"There is no member for the weights of {sorted(map(str, left))}")
    return found


def _ids(member: Any) -> list[str]:
    manifest = getattr(member, "manifest", None)
    return [] if manifest is None else [manifest.id, manifest.id.partition("@")[0]]


def steps_of(member: Any) -> float:
    """Return how many rows of a member can be drawn now."""
    if hasattr(member, "members"):
        return sum(map(steps_of, member.members))
    if not len(member):
        return 0
    valid_only = getattr(member.sampler, "valid_only", True)
    count: int = member.storage.rows(valid_only=valid_only).count
    return count


def episodes_of(member: Any) -> float:
    """Return how many episodes a member has now."""
    if hasattr(member, "members"):
        return sum(map(episodes_of, member.members))
    if hasattr(member, "episodes"):
        return len(member.episodes)
    return len(member.storage.runs().starts) if len(member) else 0


def has_priorities(sampler: Sampler) -> bool:
    """Return True if a sampler has a use for priorities."""
    return type(sampler).update_priority is not Sampler.update_priority
