"""Toy episodes of any space whose every value says which episode, row and element it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

Space: TypeAlias = "Mapping[str, Any]"
"""A space as Minari writes it in JSON."""

Nest: TypeAlias = Any
"""An array with a row per time, a list of `str` or `bytes`, or a dict or tuple of such."""


@dataclass(frozen=True)
class ToyEpisode:
    """One episode of `T` steps, as the source has it."""

    observations: Nest
    """`T + 1` rows."""
    actions: Nest
    """`T` rows, like the rest."""
    rewards: NDArray[Any]
    terminations: NDArray[Any]
    truncations: NDArray[Any]
    infos: Nest | None = None
    """`T + 1` rows, or `T`."""
    seed: int | None = None
    options: Mapping[str, Any] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Anything else that a recorder notes on an episode."""


def box(*shape: int, dtype: str = "float32") -> Space:
    """Return a `Box` of a shape, unbounded."""
    low = np.full(shape, -np.inf).tolist()
    high = np.full(shape, np.inf).tolist()
    return {"type": "Box", "dtype": dtype, "shape": list(shape), "low": low, "high": high}


def discrete(n: int = 10**6) -> Space:
    """Return a `Discrete` of `n` values."""
    return {"type": "Discrete", "dtype": "int64", "start": 0, "n": n}


def toy_rows(space: Space, episode: int, rows: int, leaf: int = 0) -> Nest:
    """Return self-identifying values of a space.

    Row `t` holds `1000 * episode + t + 1`, to which a later leaf adds 100,000 and an element of
    an array its number / 8; types too small for that hold it modulo their range.

    Example:
        >>> toy_rows(box(2), episode=3, rows=2).tolist()
        [[3001.0, 3001.125], [3002.0, 3002.125]]
        >>> toy_rows({"type": "Text"}, episode=0, rows=2)
        ['row 1', 'row 2']
    """
    kind = space["type"]
    if kind == "Dict":
        parts = enumerate(space["subspaces"].items())
        return {name: toy_rows(part, episode, rows, 10 * leaf + n + 1) for n, (name, part) in parts}
    if kind == "Tuple":
        numbered = enumerate(space["subspaces"])
        return tuple(toy_rows(part, episode, rows, 10 * leaf + n + 1) for n, part in numbered)
    base = 1000 * episode + np.arange(rows) + 1 + 100_000 * leaf
    if kind == "Text":
        return [f"row {value}" for value in base]
    if kind == "MultiBinary":
        shape = tuple(np.atleast_1d(space["n"]))
        bits = base[:, None] >> np.arange(int(np.prod(shape)))
        return (bits & 1).astype(np.int8).reshape(rows, *shape)
    shape = tuple(np.shape(space.get("nvec", np.empty(space.get("shape", ())))))
    elements = np.arange(int(np.prod(shape))).reshape(shape) / 8
    values = base.reshape(-1, *(1 for _ in shape)) + elements
    return _fit(values, np.dtype(space["dtype"]))


def _fit(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "f":
        return (values % 1000 if dtype.itemsize == 2 else values).astype(dtype)
    whole = (8 * values).astype(np.int64) if values.ndim > 1 else values.astype(np.int64)
    return (whole % (int(np.iinfo(dtype).max) + 1) if dtype.itemsize < 8 else whole).astype(dtype)


def toy_episode(
    number: int,
    length: int,
    *,
    observation: Space | None = None,
    action: Space | None = None,
    info: Mapping[str, Space] | None = None,
    **others: Any,
) -> ToyEpisode:
    """Return an episode of `length` steps that ends by termination if `number` is even.

    Args:
        number: Of the episode.
        length: `T`.
        observation: Space of observations; three floats where not given.
        action: Space of actions; two floats where not given.
        info: Spaces of infos with `T + 1` rows, by name.
        others: Other fields of `ToyEpisode`, or replacements for those made here.
    """
    ends = np.arange(length) == length - 1
    made: dict[str, Any] = {
        "observations": toy_rows(observation or box(3), number, length + 1),
        "actions": toy_rows(action or box(2), number, length, leaf=5),
        "rewards": (1000 * number + np.arange(length) + 1) / 4,
        "terminations": ends & (number % 2 == 0),
        "truncations": ends & (number % 2 == 1),
        "infos": None
        if info is None
        else {name: toy_rows(space, number, length + 1, leaf=7) for name, space in info.items()},
    }
    return ToyEpisode(**{**made, **others})
