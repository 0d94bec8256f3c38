"""Transforms: what is done to batches on the way out, and undone to rows on the way in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from tensordict import TensorDictBase

from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

Transform: TypeAlias = "Callable[[Any], Any]"
"""Anything that is called with a batch and returns one; TorchRL's `Transform`s among them."""


@dataclass(frozen=True)
class Link:
    """One transform of a chain.

    A TorchRL `Transform` has two directions, calling it and its method `inv`; any other callable
    has one, and leaves alone what goes the other way.
    """

    transform: Transform
    """Called with a batch, returns what the next one gets."""
    invert: bool = False
    """Whether the directions are swapped: called on the way in, `inv` on the way out."""

    @property
    def outward(self) -> Transform | None:
        """Applied to batches."""
        return self._inverse() if self.invert else self.transform

    @property
    def inward(self) -> Transform | None:
        """Applied to rows before they are written."""
        return self.transform if self.invert else self._inverse()

    def _inverse(self) -> Transform | None:
        return getattr(self.transform, "inv", None)


@dataclass(frozen=True)
class Chain:
    """Transforms in the order in which batches go through them; rows go the other way."""

    links: tuple[Link, ...] = ()
    outward: tuple[Transform, ...] = field(init=False, default=())
    inward: tuple[Transform, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        out = (link.outward for link in self.links)
        back = (link.inward for link in reversed(self.links))
        object.__setattr__(self, "outward", tuple(step for step in out if step is not None))
        object.__setattr__(self, "inward", tuple(step for step in back if step is not None))

    def insert(self, index: int, transform: Transform, *, invert: bool) -> Chain:
        """Return the chain with one more transform before the one at `index`.

        Raises:
            UsageError: Something that cannot be called.
        """
        if not callable(transform):
            raise UsageError(f"A transform is called with a batch; {transform!r} cannot be called")
        if hasattr(transform, "inv") and hasattr(transform, "eval"):
            transform.eval()  # TorchRL's are modules, some of which gather statistics in training
        links = list(self.links)
        links.insert(index, Link(transform, invert))
        return Chain(tuple(links))

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


LABELS = ("index", "priority_weight")
"""Leaves that say which rows a batch has, and with which importance weights it is to be used."""


def transformed(
    steps: Sequence[Transform],
    batch: Any,
    labels: Mapping[str, Tensor] | None = None,
    names: Sequence[str] = LABELS,
) -> Any:
    """Call each step with what the one before it returned, and keep the labels true.

    Steps see labels as any other leaf, and may change their own copies: what comes out has the
    labels of the rows again. They are left to the steps where these moved, chose or reshaped rows,
    and the labels with them: then only the steps know which row is where.

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
    if found is None or not _moved(found, labels[names[0]]):
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
    """Repeat a leaf `[B]` for all of a batch of `size`, `[B, T, …]`, in memory of its own.

    One that is no tensor is returned as it is.
    """
    if not isinstance(leaf, torch.Tensor) or leaf.ndim >= len(size):
        return leaf
    return leaf.reshape(leaf.shape + (1,) * (len(size) - leaf.ndim)).expand(size).contiguous()


def through(steps: Sequence[Transform], data: Any) -> Any:
    """Call each step with what the one before it returned."""
    for step in steps:
        data = step(data)
    return data
