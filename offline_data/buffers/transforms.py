"""Transforms: what is done to batches on the way out, and undone to rows on the way in."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from tensordict import TensorDictBase

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

Transform: TypeAlias = "Callable[[Any], Any]"
"""Anything that is called with a batch and returns one; TorchRL's `Transform`s among them."""


class Link(NamedTuple):
    """One transform of a chain: called on the way out, its `inv`, where it has one, on the way in."""

    transform: Transform
    invert: bool
    """Whether the directions are swapped."""


@dataclass(frozen=True)
class Chain:
    """Transforms in the order in which batches go through them; rows go the other way."""

    links: tuple[Link, ...] = ()

    @cached_property
    def outward(self) -> tuple[Transform, ...]:
        """Applied to batches, in this order."""
        return _steps(self.links, invert=False)

    @cached_property
    def inward(self) -> tuple[Transform, ...]:
        """Applied to rows before they are written, in this order."""
        return _steps(self.links[::-1], invert=True)

    def insert(self, index: int, transform: Transform, *, invert: bool) -> Chain:
        """Return the chain with one more before the one at `index`; raises `UsageError`."""
        if not -len(self.links) <= index <= len(self.links):
            raise UsageError(f"There are {len(self.links)} transforms; none is at {index}")
        if not callable(transform):
            raise UsageError(f"A transform is called with a batch; {transform!r} cannot be called")
        if hasattr(transform, "inv") and hasattr(transform, "eval"):
            transform.eval()  # TorchRL's are modules, some of which gather statistics in training
        return Chain((*self.links[:index], Link(transform, invert), *self.links[index:]))

    def state_dict(self) -> list[dict[str, Any]]:
        """Return the state of every transform that has one."""
        return [dict(getattr(link.transform, "state_dict", dict)()) for link in self.links]

    def load_state_dict(self, states: Sequence[dict[str, Any]]) -> None:
        """Load what `state_dict` returned; raises `UsageError` for another chain's."""
        if len(states) != len(self.links):
            raise UsageError(
                f"The state has {len(states)} transforms; this buffer has {len(self.links)}"
            )
        for link, state in zip(self.links, states, strict=True):
            if state:
                link.transform.load_state_dict(state)  # type: ignore[attr-defined]


def _steps(links: Sequence[Link], *, invert: bool) -> tuple[Transform, ...]:
    ways = (
        link.transform if link.invert == invert else getattr(link.transform, "inv", None)
        for link in links
    )
    return tuple(step for step in ways if step is not None)


LABELS = ("index", "priority_weight")
"""Leaves that say which rows a batch has, and with which importance weights it is to be used."""


def transformed(
    steps: Sequence[Transform],
    batch: Any,
    labels: Mapping[str, Tensor] | None = None,
    names: Sequence[str] = LABELS,
) -> Any:
    """Call each step with what the one before it returned, and keep the labels true.

    Steps see copies of the labels, and what comes out has the labels of the rows again, unless the
    steps moved, chose or reshaped rows, and the labels with them.

    Args:
        steps: Called one after the other.
        batch: Given to the first; a TensorDict's own labels are kept.
        labels: Those of another kind of batch, each `[B, …]`.
        names: Which leaves are labels; the first says which rows these are.
    """
    if not steps:
        return batch
    if isinstance(batch, TensorDictBase):
        size = batch.batch_size
        labels = {name: leaf for name in names if (leaf := batch.get(name, None)) is not None}
        for name, leaf in labels.items():
            batch.set(name, leaf.clone())
    else:
        size = torch.Size(labels[names[0]].shape if labels else ())
    made = through(steps, batch)
    if not labels or not isinstance(made, TensorDictBase) or made.batch_size[: len(size)] != size:
        return made
    found = made.get(names[0], None)
    if found is None or not _moved(found, labels.get(names[0])):
        locked = made.is_locked
        if locked:
            made.unlock_()
        for name, leaf in labels.items():
            made.set(name, spread(leaf, made.batch_size))
        if locked:
            made.lock_()
    return made


def _moved(found: Any, index: Any) -> bool:
    """Return True if `found` has the rows of `index` in another order."""
    if not isinstance(found, torch.Tensor) or not isinstance(index, torch.Tensor):
        return False
    if found.shape != index.shape or found.dtype != index.dtype or found.device != index.device:
        return False
    return not torch.equal(found, index) and torch.equal(
        found.reshape(-1).sort().values, index.reshape(-1).sort().values
    )


def spread(leaf: Any, size: torch.Size) -> Any:
    """Repeat a leaf `[B]`, if it is a tensor, for a batch `[B, T, …]`, in memory of its own."""
    if not isinstance(leaf, torch.Tensor) or leaf.ndim >= len(size):
        return leaf
    return leaf.reshape(leaf.shape + (1,) * (len(size) - leaf.ndim)).expand(size).contiguous()


def through(steps: Sequence[Transform], data: Any) -> Any:
    """Call each step with what the one before it returned."""
    for step in steps:
        data = step(data)
    return data
