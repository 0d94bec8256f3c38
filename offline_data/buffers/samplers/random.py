"""Uniform draws with replacement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.samplers.base import Sampleable, Sampler, drawable
from offline_data.buffers.samplers.without_replacement import SamplerWithoutReplacement

if TYPE_CHECKING:
    from torch import Tensor


class RandomSampler(Sampler):
    """Draws every valid transition with the same probability, each draw on its own.

    Iteration over a buffer with it never ends.

    Args:
        seed: Seed of a generator of its own; None: torch's global one (`torch.manual_seed`).
        valid_only: Whether to leave out transitions whose next observation is unknown and that
            are not terminated.
        replacement: False gives a `SamplerWithoutReplacement`, which `options` go to.

    Example:
        >>> isinstance(RandomSampler(replacement=False), SamplerWithoutReplacement)
        True
    """

    def __new__(cls, *, replacement: bool = True, **options: Any) -> Any:
        """Give the sampler that `replacement` asks for."""
        if replacement:
            return super().__new__(cls)
        return SamplerWithoutReplacement(**options)

    def __init__(
        self,
        *,
        seed: int | None = None,
        valid_only: bool = True,
        replacement: bool = True,  # noqa: ARG002 - `__new__` looks at it
    ) -> None:
        self.seed = seed
        self.valid_only = valid_only
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw `batch_size` rows; see `Sampler.sample`."""
        rows = drawable(storage, valid_only=self.valid_only)
        numbers = torch.randint(rows.count, (batch_size,), generator=self._generator)
        return rows.at(numbers), {}

    def foresee(self, storage: Sampleable, batch_size: int) -> Tensor:
        """Return what `sample` would draw now; see `Sampler.foresee`."""
        return self._drawn_by_copy(storage, batch_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of its own generator, if it has one."""
        return {} if self._generator is None else {"generator": self._generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave."""
        if self._generator is not None and "generator" in state:
            self._generator.set_state(state["generator"])

    def __repr__(self) -> str:
        return f"RandomSampler(seed={self.seed}, valid_only={self.valid_only})"
