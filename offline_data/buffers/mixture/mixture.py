"""`DatasetMixture`: batches whose rows come from several buffers, in stated proportions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.arguments import positive
from offline_data.buffers.chain import Chain, Transform
from offline_data.buffers.keys import KeyLike, as_key
from offline_data.buffers.mixture.dealing import Exact, PerRow
from offline_data.buffers.mixture.drawing import Drawing
from offline_data.buffers.mixture.leaves import INDEX, SOURCE, Rename
from offline_data.buffers.mixture.members import (
    Member,
    check_member,
    draw_of,
    draw_state,
)
from offline_data.buffers.mixture.priorities import spread_priorities
from offline_data.buffers.mixture.shares import Weights, fixed_weights
from offline_data.buffers.prefetch import Prefetcher
from offline_data.buffers.state import load_tree, owned, save_tree
from offline_data.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor
    from typing_extensions import Self


class DatasetMixture(Drawing):
    """Flat batches of any size, row by row from several buffers.

    Unlike an ensemble (`ReplayBufferEnsemble`), which stacks sub-batches of equal size, a mixture
    gives rows their proportions one by one: with `weights="steps"` a batch is as likely as one of
    all members' rows laid end to end.

    Each member draws with its own sampler, derives its leaves and applies its transforms; then its
    rows are put in their places, in random order. Two more leaves tell where a row is from:

    - `source`, int64 `[B]`: the member. The members of a mixture that is a member are counted in
      its place: `source` is an index of `sources`.
    - `index`: the member's own leaf of that name; for a dataset or a view the dataset's row.

    `episode`, like `index`, has the member's numbers.

    A member's sampler is asked for as many rows as its part of the batch, whatever that is. Slices
    need parts that are multiples of them (`exact=True`, weights that divide the batch), and stay
    together with `shuffle=False`.

    Args:
        *members: Datasets, views, buffers that grow, mixtures.
        weights: How much of each member there is.
            `"steps"`: as many as it has rows that can be drawn; `"episodes"`: as it has episodes,
            each counting the same, however long; `"equal"`; numbers, one for each member; or a
            mapping from its number, or its dataset's id, to a number. Only ratios count. Those
            that follow from the data follow a buffer while it grows, from no rows on.
        batch_size: Rows of a batch where `sample` is not told.
        exact: False: each row's member is drawn on its own. True: each batch has the proportions
            to the nearest row, and what is rounded away is made up for in the next ones.
        keys: Leaves that batches have (as the mixture calls them), a parent standing for all below
            it; None: all, which all members must have then.
        rename: For each member None, or `{key in the mixture: key in the member}`, of leaves or
            parents of leaves, `{"observation": ("obs", "state")}`; it holds below `next` too,
            unless `next` is named on its own.
        cast: Whether item types may differ: then they are promoted (`torch.promote_types`).
        shuffle: False: the rows of a member stand together, in the order of the members.
        seed: Of the order and of the members of rows, not of the members' samplers; None: torch's
            global generator.
        prefetch: Batches made ahead, by as many threads; rows and their order stay the same.
        transform: Called with every batch; more can be appended.

    Raises:
        UsageError: Invalid argument. Whether members' leaves agree is seen when
            the first batch is drawn, without drawing from the members, or when a member first has
            rows.
    """

    def __init__(
        self,
        *members: Member,
        weights: Weights = "steps",
        batch_size: int = 256,
        exact: bool = False,
        keys: Iterable[KeyLike] | None = None,
        rename: Sequence[Rename | None] | None = None,
        cast: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
        prefetch: int | None = None,
        transform: Transform | None = None,
    ) -> None:
        if not members:
            raise UsageError("A mixture needs at least one member")
        self.members = tuple(check_member(one, number) for number, one in enumerate(members))
        self.weights = weights
        self._fixed = fixed_weights(weights, self.members)
        self._batch_size = positive(batch_size, "batch_size")
        self._dealing = Exact() if exact else PerRow()
        own = {INDEX, SOURCE}
        self._keys = None if keys is None else [k for k in map(as_key, keys) if k not in own]
        self._renames = tuple(rename or [None] * len(members))
        if len(self._renames) != len(members):
            raise UsageError(f"rename has {len(self._renames)} items for {len(members)} members")
        self._cast, self._shuffle = cast, shuffle
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._prefetch = positive(prefetch, "prefetch") if prefetch else None
        self._ahead = Prefetcher(self._prefetch or 0)
        self._agreement = None
        self._chain = Chain()
        if transform is not None:
            self.append_transform(transform)

    @property
    def batch_size(self) -> int:
        """Rows of a batch where `sample` is not told."""
        return self._batch_size

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of each member, as probabilities, at this moment."""
        weights = self._weights()
        return tuple(weight / sum(weights) for weight in weights)

    def __len__(self) -> int:
        """Return the number of rows of all members."""
        return sum(map(len, self.members))

    def sample(self, batch_size: int | None = None, return_info: bool = False) -> Any:
        """Draw a batch, in memory of its own.

        If a member's sampler ends an epoch, its next one begins in the same batch.

        Args:
            batch_size: Rows, `B`; None: the mixture's.
            return_info: Whether to return `(batch, info)`, where `info["source"]` has the member
                of each row.

        Returns:
            A TensorDict `[B]`, or what transforms made of it.

        Raises:
            UsageError: Members that do not agree, or cannot be drawn from; a batch size that is
                not the one prefetched.
        """
        size = self._batch_size if batch_size is None else positive(batch_size, "batch_size")
        parts, batch = self._take(size)
        return (batch, {"source": parts.source}) if return_info else batch

    def __iter__(self) -> Iterator[Any]:
        """Yield batches without end."""
        while True:
            yield self.sample()

    def __next__(self) -> Any:
        """Return the next batch."""
        return self.sample()

    def append_transform(self, transform: Transform) -> Self:
        """Add a transform after the others, called with every batch; returns the mixture."""
        self._chain = self._chain.insert(len(self._chain.links), transform, invert=False)
        return self

    def update_priority(self, batch: Any, priority: Tensor | float) -> None:
        """Tell members' samplers new priorities of the rows of a batch.

        Members whose samplers have no use for priorities are passed over.

        Args:
            batch: Anything that has `batch["source"]` and `batch["index"]`.
            priority: One for each row, or one for all.

        Raises:
            UsageError: A source that is not there; see the member's `update_priority`.
        """
        spread_priorities(self.members, batch["source"], batch["index"], priority)

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume from here: the members' states, and the mixture's own.

        The batches after `load_state_dict` are those that would have come, with `seed` and seeds
        in the members' samplers; torch's global generator is saved by `torch.get_rng_state()`.
        """
        generator = None if self._generator is None else self._generator.get_state()
        return {
            "members": [member.state_dict() for member in self.members],
            "dealing": self._dealing.state_dict(),
            "generator": generator,
            "transforms": self._chain.state_dict(),
            "draws": [draw_state(draw) for draw in self._ahead.drawn()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that `state_dict` gave.

        Raises:
            UsageError: It is of other members, or of another kind of mixture.
        """
        if len(state["members"]) != len(self.members):
            raise UsageError(
                f"The state has {len(state['members'])} members; this mixture has {len(self.members)}"
            )
        if (state["generator"] is None) != (self._generator is None):
            raise UsageError(
                "The state is of a mixture with a seed and this has none, or vice versa"
            )
        for member, its_own in zip(self.members, state["members"], strict=True):
            member.load_state_dict(its_own)
        self._dealing.load_state_dict(state["dealing"])
        if self._generator is not None:
            self._generator.set_state(state["generator"])
        self._chain.load_state_dict(state["transforms"])
        if state["draws"]:
            self._agree_again()
        self._ahead.restore([draw_of(one) for one in state["draws"]], self._make)

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Write `state_dict()` to a folder; see `ReplayBuffer.dumps`."""
        save_tree(self.state_dict(), Path(path))

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Go on from what `dumps` wrote; see `ReplayBuffer.loads`."""
        self.load_state_dict(_without_file(load_tree(Path(path))))

    def __repr__(self) -> str:
        members = ", ".join(type(member).__name__ for member in self.members)
        return (
            f"DatasetMixture({len(self)} rows of {members}, weights={self.weights!r}, "
            f"batch_size={self._batch_size})"
        )


def _without_file(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state that no longer needs its file, but for rows, which are copied when loaded."""
    found: dict[str, Any] = {}
    for name, part in state.items():
        if name == "members":
            found[name] = [_without_file(member) for member in part]
        else:
            found[name] = part if name == "storage" else owned(part)
    return found
