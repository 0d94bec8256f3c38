"""Transforms, applied to sampled batches, and inversely to written rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from tensordict import TensorDictBase
from torch import Tensor

from offline_data.base.errors import IntegrityError, StepError, UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.rows.state import Saves

Transform: TypeAlias = "Callable[[Any], Any]"
"""A callable that takes and returns a batch, such as TorchRL's `Transform`."""


_REFUSED = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of `load_state_dict` of a transform for the state of another."""


@pickled_by_name
class Link(NamedTuple):
    """One transform of a chain: called on batches; its `inv`, if any, on written rows."""

    transform: Transform
    invert: bool  # whether the directions are swapped


@pickled_by_name
@dataclass(frozen=True)
class Chain(Saves):
    """Transforms in the order of application to batches; reversed for written rows."""

    links: tuple[Link, ...] = ()

    @cached_property
    def outward(self) -> tuple[Transform, ...]:
        """Functions applied to batches, in order."""
        return _steps(self.links, invert=False)

    @cached_property
    def inward(self) -> tuple[Transform, ...]:
        """Functions applied to rows before they are written, in order."""
        return _steps(self.links[::-1], invert=True)

    def insert(self, index: int, transform: Transform, *, invert: bool) -> Chain:
        """Return the chain with `transform` before position `index`; raises `UsageError`."""
        if not -len(self.links) <= index <= len(self.links):
            raise UsageError(
                f"The buffer has {plural(len(self.links), 'transform')}; none is at {index}"
            )
        if not callable(transform):
            raise UsageError(f"{transform!r} is not callable; a transform is called with a batch")
        if isinstance(transform, type) and "__call__" in dir(transform):
            name = transform.__name__
            raise UsageError(
                f"The transform is the class {name}; expected an instance", hint=f"{name}(…)"
            )
        if hasattr(transform, "inv") and hasattr(transform, "eval"):
            transform.eval()  # TorchRL's are modules; some update statistics in training mode
        return Chain((*self.links[:index], Link(transform, invert), *self.links[index:]))

    def state_dict(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the state of every transform that has one."""
        return [dict(getattr(link.transform, "state_dict", dict)()) for link in self.links]

    def check_state(self, state: Any, above: Any = None) -> None:  # noqa: ARG002
        """Raise `UsageError` unless the transforms take their states, which it tries and undoes.

        Raises `IntegrityError` for what is not the result of `state_dict`.
        """
        if not isinstance(state, list | tuple) or not all(isinstance(s, dict) for s in state):
            raise IntegrityError("The state is damaged: transforms is not a list of dicts")
        if len(state) != len(self.links):
            raise UsageError(
                f"The state has {plural(len(state), 'transform')}; this buffer has {len(self.links)}"
            )
        for transform, its_own in self._with_states(state):
            try:
                before = deepcopy(dict(transform.state_dict()))
                try:
                    transform.load_state_dict(its_own)
                finally:
                    transform.load_state_dict(before)
            except _REFUSED as error:
                raise UsageError(
                    f"{type(transform).__name__} does not take the state of a transform: {error}"
                ) from error

    def _set_state(self, state: Any) -> None:
        for transform, its_own in self._with_states(state):
            transform.load_state_dict(its_own)

    def _with_states(self, states: Any) -> list[tuple[Any, dict[str, Any]]]:
        pairs = zip(self.links, states, strict=True)
        return [(link.transform, its_own) for link, its_own in pairs if its_own]


def _steps(links: Sequence[Link], *, invert: bool) -> tuple[Transform, ...]:
    ways = (
        link.transform if link.invert == invert else getattr(link.transform, "inv", None)
        for link in links
    )
    return tuple(step for step in ways if step is not None)


LABELS = ("index", "priority_weight")  # features of a batch's row numbers and importance weights


def apply_transforms(
    steps: Sequence[Transform],
    batch: Any,
    labels: Mapping[str, Tensor] | None = None,
    names: Sequence[str] = LABELS,
) -> Any:
    """Apply the steps in order, then restore the labels.

    Steps get copies of the labels; the result has the original labels unless the steps selected,
    reordered or reshaped rows together with their labels. Labels are `labels`, each `[B, …]`, or
    those in a TensorDict, with these `names`; the first is that of the row numbers.
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
    if found is None or not _is_permuted(found, labels.get(names[0])):
        locked = made.is_locked
        if locked:
            made.unlock_()
        for name, leaf in labels.items():
            made.set(name, spread(leaf, made.batch_size))
        if locked:
            made.lock_()
    return made


def _is_permuted(found: Any, index: Any) -> bool:
    if not isinstance(found, torch.Tensor) or not isinstance(index, torch.Tensor):
        return False
    if found.shape != index.shape or found.dtype != index.dtype or found.device != index.device:
        return False
    return not torch.equal(found, index) and torch.equal(
        found.reshape(-1).sort().values, index.reshape(-1).sort().values
    )


def spread(leaf: Any, size: torch.Size) -> Any:
    """Expand a feature `[B]` to `[B, T, …]` as a contiguous copy; non-tensors are unchanged."""
    if not isinstance(leaf, torch.Tensor) or leaf.ndim >= len(size):
        return leaf
    return leaf.reshape(leaf.shape + (1,) * (len(size) - leaf.ndim)).expand(size).contiguous()


def through(steps: Sequence[Transform], data: Any) -> Any:
    """Apply the steps to `data` in order; raises `StepError` if one returns None."""
    for step in steps:
        data = step(data)
        if data is None:
            name = getattr(step, "__name__", type(step).__name__)
            raise StepError(f"The transform {name} returned None", hint="is a `return` missing?")
    return data
