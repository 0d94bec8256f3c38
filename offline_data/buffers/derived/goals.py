"""Laws by which hindsight goals are chosen, and the random numbers that choose."""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import torch

from offline_data.buffers.derived.checks import one_of, within
from offline_data.buffers.derived.spans import spans_of
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from offline_data.buffers.storage import Storage

Law: TypeAlias = Literal["current", "final", "future", "geometric", "episode", "random"]
"""Name of a law; see `relabel`."""


class Draw(NamedTuple):
    """Rows that a distribution chooses from, for each row of a batch."""

    rows: Tensor
    """The rows, int64 `[B]`."""
    first: Tensor
    """First row of the episode of each."""
    last: Tensor
    """Last row of it after which the state is known."""
    number: Tensor
    """A random number for each, float64 in [0, 1)."""
    gamma: float
    """Of the geometric law."""
    storage: Storage
    """Storage of the rows."""


def draw_of(storage: Storage, rows: Tensor, number: Tensor, gamma: float) -> Draw:
    """Say what laws choose from."""
    spans = spans_of(storage, rows)
    last = spans.last - (~spans.known).long()
    return Draw(rows, spans.first, last, number, gamma, storage)


def _between(low: Tensor, high: Tensor, number: Tensor) -> Tensor:
    """Choose uniformly from `low`, …, `high`."""
    count = high - low + 1
    return low + (number * count).long().clamp_max(count - 1)


def _final(draw: Draw) -> Tensor:
    return draw.last


def _future(draw: Draw) -> Tensor:
    return _between(draw.rows, draw.last, draw.number)


def _episode(draw: Draw) -> Tensor:
    return _between(draw.first, draw.last, draw.number)


def _geometric(draw: Draw) -> Tensor:
    """Invert the distribution function, `P(steps <= d) = 1 - γ^d` for d = 1, 2, and so on."""
    if draw.gamma == 0:
        return draw.rows
    more = (torch.log1p(-draw.number) / math.log(draw.gamma)).floor()
    # Compared before it becomes an integer: with γ near 1 it may be larger than any.
    ahead = torch.minimum(more, (draw.last - draw.rows).double())
    return draw.rows + ahead.long()


def _random(draw: Draw) -> Tensor:
    rows = draw.storage.rows(valid_only=True)
    numbers = (draw.number * rows.count).long().clamp_max(rows.count - 1)
    return rows.at(numbers)


LAWS: dict[str, Callable[[Draw], Tensor]] = {
    "final": _final,
    "future": _future,
    "geometric": _geometric,
    "episode": _episode,
    "random": _random,
}
"""Laws that choose a row, the state after which is the goal."""


def laws_of(strategy: Law | Mapping[Law, float]) -> tuple[tuple[str, float], ...]:
    """Return laws with their probabilities; raises `UsageError` where they do not add up to 1.

    Example:
        >>> laws_of("future")
        (('future', 1.0),)
    """
    laws: dict[str, float] = (
        {strategy: 1.0} if isinstance(strategy, str) else dict(strategy.items())
    )
    for law, share in laws.items():
        one_of(law, "strategy", ["current", *LAWS])
        within(share, f"The probability of {law!r}", 0, 1)
    total = math.fsum(laws.values())
    if not math.isclose(total, 1):
        raise UsageError(f"The probabilities add up to {total:.6g}; expected 1")
    return tuple((law, float(share)) for law, share in laws.items())


def numbers_for(seed: int, rows: Tensor, count: int) -> Tensor:
    """Return random numbers that follow from a seed and the rows of a batch, in their order.

    Args:
        seed: In [0, 2^64).
        rows: int64 `[B]`.
        count: Numbers for each row.

    Returns:
        float64 `[count, B]`, uniform in [0, 1).

    Example:
        >>> numbers_for(0, torch.tensor([3, 4]), 1).equal(numbers_for(0, torch.tensor([3, 4]), 1))
        True
    """
    content = rows.contiguous().numpy()
    digest = blake2b(content.data, digest_size=8, key=seed.to_bytes(8, "little")).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
    return torch.rand((count, len(rows)), generator=generator, dtype=torch.float64)
