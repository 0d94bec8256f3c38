"""Choice of the member for each row or sub-batch of a batch, by weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from offline_data.base.errors import UsageError
from offline_data.base.plurals import plural

Weights: TypeAlias = "Literal['steps', 'episodes', 'equal'] | Sequence[float] | Mapping[Any, float]"
"""Type of `weights`; see `DatasetMixture`."""

Probabilities: TypeAlias = "Tensor | Sequence[float] | Literal['sampleable'] | None"
"""Type of `p`; see `SamplerEnsemble`."""


def probabilities(p: Any, count: int) -> Any:
    """Return `p` as floats `[count]` that sum to 1; None and `"sampleable"` unchanged."""
    if p is None or isinstance(p, str):
        if p not in (None, "sampleable"):
            raise UsageError(f"p is {p!r}; the only accepted text is 'sampleable'")
        return p
    weights = torch.as_tensor(p).detach().cpu()
    weights = weights if weights.is_floating_point() else weights.to(torch.get_default_dtype())
    total = weights.sum()
    valid = (weights >= 0).all() and 0 < total < math.inf
    if weights.shape != (count,) or not valid:
        raise UsageError(
            f"p is {weights.tolist()}; expected a share for each of {plural(count, 'member')}, 0 "
            "or more, not all 0"
        )
    return weights / total


def fixed_weights(weights: Weights, members: Sequence[Any]) -> tuple[float, ...] | None:
    """Return one weight per member; None if they depend on the members' rows."""
    if isinstance(weights, str):
        if weights not in ("steps", "episodes", "equal"):
            raise UsageError(f"weights={weights!r}; expected steps, episodes, equal, or numbers")
        return (1.0,) * len(members) if weights == "equal" else None
    given = _by_member(weights, members) if isinstance(weights, Mapping) else list(weights)
    numbers = tuple(map(float, given))
    valid = all(0 <= weight < math.inf for weight in numbers) and any(numbers)
    if len(numbers) != len(members) or not valid:
        raise UsageError(
            f"Weights are one for each of {plural(len(members), 'member')}, 0 or more, and not "
            "all 0; "
            f"found {numbers}"
        )
    return numbers


def _by_member(weights: Mapping[Any, float], members: Sequence[Any]) -> list[float]:
    left, found = dict(weights), []
    for number, member in enumerate(members):
        manifest = getattr(member, "manifest", None)
        ids = [] if manifest is None else [manifest.id, manifest.id.partition("@")[0]]
        names = [name for name in (number, *ids) if name in left]
        if len(names) != 1:
            raise UsageError(
                f"Member {number} has {len(names)} weights in {dict(weights)}; expected one, by "
                f"its number or by the id of its dataset {ids}"
            )
        found.append(left.pop(names[0]))
    if left:
        raise UsageError(f"There is no member for the weights of {sorted(map(str, left))}")
    return found


def sources_of(member: Any) -> tuple[Any, ...]:
    """Return the buffers that a member draws from: those of a mixture, or itself."""
    sources: tuple[Any, ...] = getattr(member, "sources", (member,))
    return sources


def count_of(member: Any, unit: Literal["steps", "episodes"]) -> int:
    """Return the current number of drawable rows of a member, or of its episodes."""
    return sum(_count(source, unit) for source in sources_of(member))


def _count(source: Any, unit: Literal["steps", "episodes"]) -> int:
    if unit == "steps":
        return source.sampler.drawable(source.storage)  # type: ignore[no-any-return]
    if hasattr(source, "episodes"):
        return len(source.episodes)
    return len(source.storage.runs().starts) if len(source) else 0


@lru_cache
def _edges(weights: tuple[float, ...]) -> Tensor:
    edges = torch.tensor(weights, dtype=torch.float64).cumsum(0)
    return edges / edges[-1]


def draw_members(
    weights: tuple[float, ...],
    size: int,
    rng: Generator | None,
    owed: list[float] | None,
    *,
    mixed: bool,
) -> Tensor:
    """Return the member of each row of a batch, int64 `[size]`, in ascending order unless `mixed`.

    `owed`: see `exact_members`; None: each row's member is drawn independently.
    """
    if owed is None:  # the last edge is exactly 1 and numbers are below it: none is out of range
        numbers = torch.rand(size, dtype=torch.float64, generator=rng)
        source = torch.searchsorted(_edges(weights), numbers, right=True)
    else:
        source = exact_members(weights, size, rng, owed)
    return source if mixed else source.sort().values


def exact_members(
    weights: tuple[float, ...], size: int, rng: Generator | None, owed: list[float]
) -> Tensor:
    """Return members, int64 `[size]`, in the proportions of the weights to the nearest row, in random order.

    Rounding errors of a batch are carried over to the next ones (largest remainder method, ties to
    the first): the sum over batches stays within a few rows of the exact proportion.

    ```
    weights .5 .3 .2, batches of 4:   2.0 1.2 0.8   2.0 1.4 0.6   2.0 1.6 0.4   …
                                       2   1   1     2   1   1     2   2   0
    ```

    `owed` are the remainders of previous batches by member, empty at first; changed in place.
    """
    total = math.fsum(weights)
    debts = owed or [0.0] * len(weights)
    due = [debt + size * weight / total for debt, weight in zip(debts, weights, strict=True)]
    counts = [max(0, math.floor(part)) for part in due]
    while sum(counts) != size:
        step = 1 if sum(counts) < size else -1
        some = [m for m, weight in enumerate(weights) if (weight if step > 0 else counts[m])]
        counts[max(some, key=lambda m: step * (due[m] - counts[m]))] += step
    owed[:] = [part - count for part, count in zip(due, counts, strict=True)]
    source = torch.from_numpy(np.arange(len(counts)).repeat(counts))
    return source.index_select(0, torch.randperm(size, generator=rng))
