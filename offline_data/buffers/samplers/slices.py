"""Pieces of episodes, drawn with replacement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.samplers.base import Runs, Sampleable, Sampler
from offline_data.buffers.samplers.slice_arguments import (
    boundaries_of,
    check_slices,
    slices_of,
)
from offline_data.buffers.samplers.slice_rows import SliceRows, laid_out, laid_out_evenly, padded
from offline_data.buffers.samplers.windows import Law, Windows, episodes_of, runs_by, windows
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from typing import TypeAlias

    import numpy as np
    from numpy.typing import NDArray
    from tensordict import TensorDict
    from torch import Tensor

    NestedKey: TypeAlias = str | tuple[str, ...]

MASK = ("collector", "mask")
"""Key of the mask that separates rows from padding, as in TorchRL: bool `[B]`."""


class SliceSampler(Sampler):
    """Draws slices: rows that follow each other in one episode, a batch of `B = slices · length`.

    The law is TorchRL's by default, `over="episodes"`: every episode that is long enough with the
    same probability, then every start in it, so a start in an episode of `T` rows comes with
    probability `1 / (K · (T - length + 1))`. With `over="starts"` every start of every episode
    comes with the same probability, as uniform sampling of transitions suggests.

    The last row of each slice has `truncated_key` set, and `done` beside it; `terminated` is left
    as it is. The first row of each slice has `init_key` set in sets that have such a leaf. Flags
    that the batch has are kept: marks are added. Unlike TorchRL's, the sampler reads no data, so
    its cost does not depend on the number of transitions, and episodes are never merged where a
    flag is missing; all starts are possible in episodes of any length (TorchRL draws 24 random
    bits); the mask is there whenever `pad_output` is, not only where an episode is too short;
    padding has the flags of the row that it repeats.

    Args:
        num_slices: Slices of a batch; its size must be a multiple.
        slice_len: Rows of a slice; exclusive with `num_slices`, and the same must hold.
        strict_length: Whether episodes shorter than a slice are left out. False: they are slices
            themselves, and batches that have some are shorter.
        pad_output: Whether such slices are filled up by their last row, so that batches are
            `[B]`; needs `strict_length=False`. The leaf `("collector", "mask")`, bool `[B]`,
            tells rows from padding.
        truncated_key: Key that marks ends, bool `[B, 1]`; None: not marked.
        init_key: Key that marks beginnings; None: not marked.
        over: Unit that is drawn uniformly, `"episodes"` or `"starts"`.
        seed: Seed of a generator of its own; None: torch's global one (`torch.manual_seed`).
        valid_only: Whether slices leave out the transition whose next observation is unknown and
            that is not terminated; by default they keep it, as a slice is about what follows
            what, so mask it where you bootstrap from `("next", "observation")`.
        replacement: False gives a `SliceSamplerWithoutReplacement`, which all else goes to.
        torchrl: TorchRL's other arguments. `traj_key`, `end_key` and `end_keys` name the leaves
            that tell trajectories apart in a storage that grows, instead of those that
            `GrowingStorage.runs` lists; of several `end_keys` those count that are there, and with
            `traj_key` beside them both cut. A dataset's episodes are stored: there they can only
            name its own `episode` and `("next", "done")`. `cache_values`, `compile` and `use_gpu`
            change nothing: where slices may begin is always kept until rows are written.

    Raises:
        UsageError: Invalid argument, or one without a counterpart here.

    Example:
        >>> SliceSampler(slice_len=8, traj_key="episode")
        SliceSampler(num_slices=None, slice_len=8, strict_length=True, over='episodes')
    """

    keeps_together = True

    def __new__(cls, *, replacement: bool = True, **options: Any) -> Any:  # noqa: ARG004
        """Give the sampler that `replacement` asks for."""
        if replacement or cls is not SliceSampler:
            return super().__new__(cls)
        from offline_data.buffers.samplers.slices_without_replacement import (
            SliceSamplerWithoutReplacement,
        )

        return super().__new__(SliceSamplerWithoutReplacement)

    def __init__(
        self,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_length: bool = True,
        pad_output: bool = False,
        truncated_key: NestedKey | None = ("next", "truncated"),
        init_key: NestedKey | None = "is_init",
        over: Law = "episodes",
        seed: int | None = None,
        valid_only: bool = False,
        replacement: bool = True,  # noqa: ARG002 - `__new__` looks at it
        **torchrl: Any,
    ) -> None:
        self._boundaries = boundaries_of(type(self).__name__, torchrl)
        check_slices(num_slices, slice_len)
        if pad_output and strict_length:
            raise UsageError("pad_output=True pads short episodes, and strict_length leaves none")
        if over not in ("episodes", "starts"):
            raise UsageError(f"over is {over!r}; expected 'episodes' or 'starts'")
        self.num_slices = num_slices
        self.slice_len = slice_len
        self.strict_length = strict_length
        self.pad_output = pad_output
        self.truncated_key = truncated_key
        self.init_key = init_key
        self.over = over
        self.valid_only = valid_only
        if seed is not None:
            self._generator = torch.Generator().manual_seed(seed)
        self._known: tuple[Runs, int, Windows] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave behind what the storage tells again."""
        return {**vars(self), "_known": None}

    def sample(self, storage: Sampleable, batch_size: int) -> tuple[Tensor, dict[Any, Tensor]]:
        """Draw slices of together `batch_size` rows; see `Sampler.sample`.

        Raises:
            UsageError: A batch size that does not fit; no episode that is long enough.
        """
        count, length = slices_of(batch_size, self.num_slices, self.slice_len)
        where = self.windows_in(storage, length)
        fractions = torch.rand(2, count, dtype=torch.float64, generator=self._generator).numpy()
        return self.batch_of(*where.draw(self.over, fractions[0], fractions[1]), length)

    def sampleable(self, storage: Sampleable, batch_size: int) -> int:
        """Count the rows at which a slice of a batch may begin; see `Sampler.sampleable`.

        Raises:
            UsageError: A batch size that does not fit.
        """
        _, length = slices_of(batch_size, self.num_slices, self.slice_len)
        try:
            return int(self.windows_in(storage, length).ends[-1]) if len(storage) else 0
        except UsageError:  # no episode is long enough
            return 0

    def complete(self, batch: TensorDict, leaves: dict[Any, Tensor]) -> None:
        """Add the marks of ends and beginnings to the batch's flags; see `Sampler.complete`."""
        others = dict(leaves)
        last = others.pop(self.truncated_key, None)
        if batch.batch_dims > 1:  # a row is a whole trajectory, and none is cut
            others.pop(self.init_key, None)
            super().complete(batch, others)
            return
        if last is not None:
            _mark_ends(batch, self.truncated_key, last)
        first = others.pop(self.init_key, None)
        if first is not None and batch.get(self.init_key, None) is not None:
            batch.set(self.init_key, _either(first, batch.get(self.init_key)))
        super().complete(batch, others)

    def foresee(self, storage: Sampleable, batch_size: int) -> Tensor | None:
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
        return (
            f"{type(self).__name__}(num_slices={self.num_slices}, slice_len={self.slice_len}, "
            f"strict_length={self.strict_length}, over={self.over!r})"
        )

    def windows_in(self, storage: Sampleable, length: int) -> Windows:
        """Return where slices may begin; the same as before while the storage stays the same."""
        runs = runs_by(storage, self._boundaries)
        if self._known is None or self._known[0] is not runs or self._known[1] != length:
            episodes = episodes_of(storage, runs, valid_only=self.valid_only)
            found = windows(episodes, length, strict=self.strict_length)
            self._known = (runs, length, found)
        return self._known[2]

    def batch_of(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int
    ) -> tuple[Tensor, dict[Any, Tensor]]:
        """Return rows and leaves of slices that begin at `starts` and have `lengths` rows."""
        slices = self._lay_out(starts, lengths, width)
        leaves = {}
        if self.truncated_key is not None:
            leaves[self.truncated_key] = torch.from_numpy(slices.last)
        if self.init_key is not None:
            leaves[self.init_key] = torch.from_numpy(slices.first)
        if slices.mask is not None:
            leaves[MASK] = torch.from_numpy(slices.mask)
        return torch.from_numpy(slices.rows), leaves

    def _lay_out(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int
    ) -> SliceRows:
        if self.pad_output:
            return padded(starts, lengths, width)
        return laid_out_evenly(starts, width) if self.strict_length else laid_out(starts, lengths)


def _mark_ends(batch: TensorDict, key: Any, last: Tensor) -> None:
    """Add marks to the flag `key`, and to `done` beside it."""
    *above, name = key if isinstance(key, tuple) else (key,)
    if above and batch.get(tuple(above), None) is None:
        batch.set(key, torch.zeros_like(last))
    flags = batch.get(tuple(above)) if above else batch
    truncated, done = _either(last, flags.get(name, None)), flags.get("done", None)
    if done is None:
        done = _either(truncated, flags.get("terminated", None))
    flags.set(name, truncated)
    flags.set("done", _either(last, done))


def _either(mark: Tensor, stored: Tensor | None) -> Tensor:
    """Add marks `[B, 1]` to a flag of any shape that begins with `B`."""
    if stored is None:
        return mark
    if stored.shape != mark.shape:
        mark = mark.reshape(-1, *[1] * (stored.ndim - 1))
    return stored | mark.to(stored.device)
