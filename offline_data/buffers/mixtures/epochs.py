"""Epochs of a mixture for a `DataLoader`: rows of all members, drawn by weights in the main process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from offline_data.base.pickles import pickled_by_name
from offline_data.buffers.bridges.epochs import EpochBatches
from offline_data.buffers.mixtures.allocation import draw_members
from offline_data.episode.permutation import EpochOrder
from offline_data.rows.samplers.base import nothing_to_draw


@pickled_by_name
class MixtureRows:
    """The rows of a mixture's sources by source and number, as the map-style dataset of a loader."""

    def __init__(self, mixture: Any, sources: Sequence[Any]) -> None:
        self.mixture = mixture
        self.valid = [source.storage.rows(valid_only=True) for source in sources]
        self.shares = mixture.source_shares()
        for source, share, rows in zip(sources, self.shares, self.valid, strict=True):
            if share and not rows.count:
                raise nothing_to_draw(source.storage)

    def __len__(self) -> int:
        """Return the number of rows of an epoch: as many as all sources with a share have."""
        return sum(own.count for own, share in zip(self.valid, self.shares, strict=True) if share)

    def __getitem__(self, rows: NDArray[np.int64]) -> Any:
        """Return the batch of sources and their rows, int64 `[2, B]`."""
        return self.mixture.batch_at(*torch.from_numpy(rows))

    def _prepare(self) -> None:
        shares = self.shares
        first = next(number for number, share in enumerate(shares) if share)
        self[np.array([[first], self.valid[first].at(torch.zeros(1, dtype=torch.int64)).numpy()])]


class MixtureBatches(EpochBatches):
    """Yields sources and rows, int64 `[2, B]`, of every batch of an epoch; see `EpochBatches`.

    Sources are drawn by the weights for all ranks together, which take turns; each source gives its
    rows in an order of its own, and starts another when all were drawn.
    """

    _rows_in_order = False

    def _rows_of(self, epoch: int, begin: int, sizes: list[int]) -> Iterator[NDArray[np.int64]]:
        of: Any = self.dataset
        mixture, world, rank = of.mixture, self.num_replicas, self.rank
        counts = [rows.count for rows in of.valid]
        words = np.random.SeedSequence((self.seed, epoch)).generate_state(
            1 + len(counts), np.uint64
        )
        generator = torch.Generator().manual_seed(int(words[0]) >> 1)
        taken, orders = [0] * len(counts), dict[int, tuple[int, EpochOrder]]()
        owed: list[float] | None = [] if mixture.exact else None

        def between(source: int, start: int, stop: int) -> NDArray[np.int64]:
            parts, count = [], counts[source]  # orders of a source follow each other
            for turn in range(start // count, -(-stop // count)):
                first, last = max(start - turn * count, 0), min(stop - turn * count, count)
                if not self.shuffle:
                    parts.append(np.arange(first, last))
                    continue
                if orders.get(source, (-1,))[0] != turn:
                    orders[source] = turn, EpochOrder(count, int(words[1 + source]), turn)
                parts.append(orders[source][1].between(first, last))
            return np.concatenate(parts)

        for number, size in enumerate(sizes):
            drawn_from = draw_members(
                of.shares, size * world, generator, owed, mixed=mixture.shuffle
            )
            sources = drawn_from.numpy()
            drawn = np.bincount(sources, minlength=len(counts)).tolist()
            if number >= begin:
                rows = np.empty_like(sources)
                for place in np.flatnonzero(drawn).tolist():
                    numbers = between(place, taken[place], taken[place] + drawn[place])
                    rows[sources == place] = of.valid[place].at(torch.from_numpy(numbers)).numpy()
                yield np.stack([sources[rank::world], rows[rank::world]])
            taken = [before + more for before, more in zip(taken, drawn, strict=True)]

    def identity(self) -> dict[str, Any]:
        of: Any = self.dataset
        own = {
            "shares": list(of.shares),
            "exact": of.mixture.exact,
            "sorted": not of.mixture.shuffle,
        }
        return {**super().identity(), **own}
