"""The inside of a mixture: draws which rows of which members a batch has, and makes the batch."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from offline_data.buffers.chain import LABELS, Chain, transformed
from offline_data.buffers.mixture.agreement import Agreement
from offline_data.buffers.mixture.members import Member, Parts, draw_from, try_out
from offline_data.buffers.mixture.shares import Weights, episodes_of, steps_of
from offline_data.buffers.mixture.texts import check_texts, differing_texts
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from offline_data.buffers.mixture.dealing import Exact, PerRow
    from offline_data.buffers.mixture.leaves import Rename
    from offline_data.buffers.prefetch import Prefetcher
    from offline_data.episodes import Key


class Drawing:
    """Draws and makes batches of several buffers; `DatasetMixture` says what the parts are."""

    members: tuple[Member, ...]
    weights: Weights
    _fixed: tuple[float, ...] | None
    _batch_size: int
    _dealing: Exact | PerRow
    _keys: list[Key] | None
    _renames: tuple[Rename | None, ...]
    _cast: bool
    _shuffle: bool
    _generator: torch.Generator | None
    _prefetch: int | None
    _ahead: Prefetcher
    _agreement: Agreement | None
    _chain: Chain
    _lock: ClassVar[AbstractContextManager[None]] = nullcontext()
    """Members have locks of their own, where they need them."""

    @property
    def sources(self) -> tuple[Any, ...]:
        """The buffers that rows come from; the leaf `source` is an index of it."""
        return tuple(
            source
            for member in self.members
            for source in (member.sources if isinstance(member, Drawing) else [member])
        )

    def _weights(self) -> tuple[float, ...]:
        if self._fixed is not None:
            return self._fixed
        count = steps_of if self.weights == "steps" else episodes_of
        weights = tuple(map(count, self.members))
        if not any(weights):
            raise UsageError("No member of the mixture has any rows to sample")
        return weights

    def _take(self, size: int) -> tuple[Any, Any]:
        if size == self._batch_size:
            drawn: Any = self._ahead.take(self._next_draw, self._make)
            parts, future = drawn
            return parts, self._make(parts) if future is None else future.result()
        if self._prefetch:
            raise UsageError(
                f"A batch of {size} was asked for, and batches of {self._batch_size} are prefetched"
            )
        parts = self._draw(size)
        return parts, self._make(parts)

    def _next_draw(self) -> Any:
        return self._draw(self._batch_size)

    def _draw(self, size: int) -> Parts:
        weights = self._weights()
        present = [number for number, weight in enumerate(weights) if weight]
        if self._agreement is None or not self._agreement.members.issuperset(present):
            self._agree(present)
        source = self._dealing.deal(weights, size, self._generator)
        if not self._shuffle:
            source = source.sort().values
        counts = torch.bincount(source, minlength=len(weights)).tolist()
        draws = [
            (number, draw)
            for number, member in enumerate(self.members)
            for draw in draw_from(member, counts[number])
        ]
        return Parts(source, tuple(draws))

    def _agree_again(self) -> None:
        """Make what was drawn elsewhere possible to make here, by mixtures that are members too."""
        for member in self.members:
            if isinstance(member, Drawing):
                member._agree_again()
        self._agree([number for number, weight in enumerate(self._weights()) if weight])

    def _agree(self, present: Sequence[int]) -> None:
        """Find out what batches have, from batches that nobody will see."""
        nested = frozenset(m for m in present if isinstance(self.members[m], Drawing))
        counts = [len(getattr(member, "sources", [member])) for member in self.members]
        self._agreement = Agreement(
            {m: try_out(self.members[m], self._batch_size) for m in present},
            keys=self._keys,
            renames=self._renames,
            firsts=[0, *accumulate(counts)],
            nested=nested,
            cast=self._cast,
        )
        check_texts(differing_texts(self.members, self._renames), self._agreement.keys)

    def _make(self, parts: Any) -> Any:
        agreement = self._agreement
        assert agreement is not None  # noqa: S101 - parts are drawn after it was made
        leaves = agreement.leaves(self.members, parts, shuffled=self._shuffle)
        batch = agreement.assemble(leaves, parts.source)
        return transformed(self._chain.outward, batch, names=(*LABELS, "source"))
