"""A member of a mixture: draws rows of it and makes its part of a batch, whatever kind it is."""

from __future__ import annotations

from copy import copy, deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from offline_data.buffers.buffer import ReplayBuffer
from offline_data.buffers.prefetch import Draw
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from offline_data.buffers.mixture.mixture import DatasetMixture

Member: TypeAlias = "ReplayBuffer | DatasetMixture"
"""A buffer of this package: of a dataset, a view, a storage that grows, or a mixture."""


Draws: TypeAlias = "tuple[tuple[int, Any], ...]"
"""Member, and what was drawn from it (a `Draw`, or `Parts` of a mixture), by member; several of one
where its epoch ended in between."""


class Parts(NamedTuple):
    """Rows drawn for one batch of a mixture."""

    source: torch.Tensor
    """Member of each row, int64 `[B]`."""
    draws: Draws
    """Their rows."""


def check_member(member: Any, number: int) -> Member:
    """Return a member if it can be one."""
    from offline_data.buffers.mixture.mixture import DatasetMixture  # which is made of members

    if isinstance(member, (ReplayBuffer, DatasetMixture)):
        return member
    raise UsageError(
        f"Member {number} is a {type(member).__name__}; expected a buffer of this package: of a "
        "dataset, a view of one, a ReplayBuffer or a mixture"
    )


def draw_from(member: Any, count: int) -> list[Any]:
    """Draw exactly `count` rows: one draw, and more where an epoch of the sampler ends."""
    draws = []
    while count > 0:
        with member._lock:
            draw = member._draw(count)
        drawn = rows_drawn(draw)
        if not 0 < drawn <= count:
            raise UsageError(f"{member!r} drew {drawn} rows where {count} were asked for")
        draws.append(draw)
        count -= drawn
    return draws


def rows_drawn(draw: Draw | Parts) -> int:
    """Return the rows of a draw."""
    return len(draw.source) if isinstance(draw, Parts) else len(draw.rows)


def make_from(member: Any, draw: Draw | Parts) -> Any:
    """Make the batch of a draw, as the member would."""
    if isinstance(draw, Parts):
        return member._make(draw)
    with member._lock:
        gathered = member._gather(draw.rows)
    return member._finish(draw, gathered)


def try_out(member: Any, count: int) -> Any:
    """Return a batch as the member would give it, without a trace: its next batches are the same."""
    with torch.random.fork_rng(devices=[]):
        other = deepcopy_of_state(member)
        return make_from(other, draw_from(other, count)[0])


def deepcopy_of_state(member: Any) -> Any:
    """Return a member over the same data whose drawing leaves the other alone."""
    other = copy(member)
    if isinstance(other, ReplayBuffer):
        other._sampler = deepcopy(member.sampler)
        return other
    other.members = tuple(map(deepcopy_of_state, member.members))
    other._dealing = deepcopy(member._dealing)
    other._generator = None
    return other


def draw_state(draw: Draw | Parts) -> dict[str, Any]:
    """Return a draw as a tree of tensors."""
    if isinstance(draw, Draw):
        return draw._asdict()
    parts = [{"member": member, "draw": draw_state(part)} for member, part in draw.draws]
    return {"source": draw.source, "parts": parts}


def draw_of(state: dict[str, Any]) -> Any:
    """Return the draw of a state that `draw_state` gave, in memory of its own."""
    if "parts" not in state:
        return Draw(state["rows"].clone(), state["info"], state["last"])
    parts = tuple((part["member"], draw_of(part["draw"])) for part in state["parts"])
    return Parts(state["source"].clone(), parts)
