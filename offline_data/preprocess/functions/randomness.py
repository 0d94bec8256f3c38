"""Randomness of functions: seeded row by row, or noticed; the caller's own is left as it was."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_MASK = (1 << 64) - 1


def mixed(seed: int, number: int) -> int:
    """Return 64 bits that depend on both numbers (SplitMix64: Steele, Lea and Flood, 2014)."""
    value = (seed * 0x9E3779B97F4A7C15 + number + 0x632BE59BD9B4E019) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def seed_all(seed: int, number: int) -> None:
    """Seed torch's (CPU), numpy's and Python's global generators for one row.

    Not `torch.manual_seed`, which asks after every accelerator: 190 µs instead of 1.
    """
    bits = mixed(seed, number)
    torch.default_generator.manual_seed(bits >> 1)
    np.random.seed(bits & 0xFFFFFFFF)  # noqa: NPY002 - functions may use the global generator
    random.seed(bits)


@contextmanager
def own_randomness() -> Iterator[None]:
    """Give the global generators back as they were."""
    before = states()
    try:
        yield
    finally:
        torch.default_generator.set_state(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


def states() -> tuple[Any, Any, Any]:
    """Return the states of the three global generators."""
    return (
        torch.default_generator.get_state(),
        np.random.get_state(),  # noqa: NPY002
        random.getstate(),
    )


def same(before: tuple[Any, Any, Any], after: tuple[Any, Any, Any]) -> bool:
    """Tell whether nobody drew from the global generators in between."""
    return (
        torch.equal(before[0], after[0])
        and before[1][2:] == after[1][2:]
        and np.array_equal(before[1][1], after[1][1])
        and before[2] == after[2]
    )
