"""Counts taken while batches pass: flags, episodes, and values that are not finite."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from offline_data.episodes.fields import TERMINATED, TRUNCATED, join_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from offline_data.episodes import Dropped, EpisodeBatch
    from offline_data.episodes.fields import Key


class Census:
    """Adds up what the manifest says about all batches together."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.non_finite: dict[str, Counter[str]] = {}
        self.notes: dict[str, None] = {}
        self.dropped: dict[Dropped, None] = {}

    def add(self, batch: EpisodeBatch) -> None:
        """Take one batch in."""
        ended = batch.steps[TERMINATED][batch.last_rows, 0].astype(bool)
        unknown = int((~batch.final_observation & ~ended).sum())
        self.counts.update(
            transitions=batch.transitions,
            episodes=len(batch.lengths),
            valid_transitions=batch.transitions - unknown,
            terminated=int(batch.steps[TERMINATED].sum()),
            truncated=int(batch.steps[TRUNCATED].sum()),
            without_final_observation=int((~batch.final_observation).sum()),
        )
        self._look_at({**batch.steps, **batch.observations})
        self.notes.update(dict.fromkeys(batch.notes))
        self.dropped.update(dict.fromkeys(batch.dropped))

    def _look_at(self, columns: Mapping[Key, NDArray[np.generic]]) -> None:
        for key, values in columns.items():
            if values.dtype.kind in "fc" and not _all_finite(values):
                found = {"nan": int(np.isnan(values).sum()), "inf": int(np.isinf(values).sum())}
                self.add_non_finite(join_key(key), found)

    def add_non_finite(self, leaf: str, counts: Mapping[str, int]) -> None:
        """Add what was counted of a leaf: `nan` and `inf`."""
        self.non_finite.setdefault(leaf, Counter()).update(counts)

    def non_finite_json(self) -> dict[str, dict[str, int]]:
        """Return `{leaf: {"nan": n, "inf": n}}`, both always present."""
        return {k: {"nan": c["nan"], "inf": c["inf"]} for k, c in self.non_finite.items()}


def _all_finite(values: NDArray[np.generic]) -> bool:
    """Decide by one sum, which costs a tenth of looking at each value; exact where it overflows."""
    with np.errstate(all="ignore"):
        total = values.sum(dtype=np.complex128 if values.dtype.kind == "c" else np.float64)
    return bool(np.isfinite(total)) or bool(np.isfinite(values).all())
