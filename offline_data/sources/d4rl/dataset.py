"""One D4RL file, opened to be read in parts: flat columns become episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.episodes import EpisodeBatch
from offline_data.episodes.cut import runs_within, with_final_rows
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, Key
from offline_data.readers.hdf5 import open_hdf5
from offline_data.sources.base import Part, SourceInfo
from offline_data.sources.d4rl.ends import truncated_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from offline_data.sources.d4rl.file import FlatFile
    from offline_data.sources.d4rl.successors import NextColumn

SOURCE_NEXT: Key = ("next", "info", "next_observations")
"""Step leaf of `next_observations`, kept where it is not the following observation."""


@dataclass(frozen=True, eq=False)
class D4RLEpisodes:
    """Episodes of a D4RL file, whose columns become leaves.

    | column | leaf | rows |
    |---|---|---|
    | `observations` | `observation`, the last row from `next_observations`, else repeated | N + E |
    | `actions` | `action`, of the file's dtype and shape: numbers `[N]` stay `[N]` | N |
    | `rewards` | `next/reward` `[N, 1]`, of the file's dtype | N |
    | `terminals`, `timeouts` | `next/terminated`, `next/truncated`, bool `[N, 1]` | N |
    | `infos/…` | `info/…`: what is known at the time of the observation | N |
    | others with N rows | `extra/…` | N |
    """

    flat: FlatFile
    """The file."""
    lengths: NDArray[np.int64]
    """`[E]` rows of each episode."""
    info: SourceInfo
    """What the manifest says of it."""
    after: NextColumn | None = None
    """What is in `next_observations`; None where the file has none."""
    threaded: ClassVar[bool] = True
    """Chunks are inflated in threads."""

    def parts(self, budget: int) -> Sequence[Part]:
        """Cut all episodes into consecutive parts of about `budget` bytes."""
        rows = max(1, budget // self.flat.row_bytes)
        return [
            Part(first, stop, int(self.lengths[first:stop].sum()))
            for first, stop in runs_within(self.lengths, rows)
        ]

    def read(self, part: Part) -> EpisodeBatch:
        """Read one part; raises `FormatError` naming the file and the place."""
        lengths = self.lengths[part.first : part.stop]
        start = int(self.lengths[: part.first].sum())
        last_rows = np.cumsum(lengths) - 1
        with open_hdf5(self.flat.path) as file:
            rows = _Rows(self.flat, file, start, start + int(lengths.sum()))
            steps = {
                ("action",): rows.read("actions"),
                REWARD: rows.read("rewards").reshape(-1, 1),
                **rows.flags(last_rows),
                **{key: rows.read(name) for name, key in self.flat.infos.items()},
            }
            if self.after is not None and self.after.differing:
                steps[SOURCE_NEXT] = rows.read("next_observations")
            final = self._final(rows, part, last_rows)
            observation = _with_final(rows.read("observations"), lengths, final)
        known = np.full(len(lengths), self.after is not None)
        return EpisodeBatch(lengths, steps, {("observation",): observation}, known)

    def _final(self, rows: _Rows, part: Part, last_rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return the observations after the last actions, `[E, …]`, where the file has them."""
        if self.after is None:
            return None
        if self.after.final is not None:
            return self.after.final[part.first : part.stop]
        return rows.read("next_observations")[last_rows]


@dataclass(frozen=True)
class _Rows:
    """Some rows of the open file."""

    flat: FlatFile
    file: Any
    start: int
    stop: int

    def read(self, name: str) -> NDArray[Any]:
        return self.flat.read(self.file, name, self.start, self.stop)

    def flags(self, last_rows: NDArray[np.int64]) -> dict[Key, NDArray[np.bool_]]:
        terminals, timeouts = self.flat.read_flags(self.file, self.start, self.stop)
        truncated = truncated_rows(terminals, timeouts, last_rows)
        return {TERMINATED: terminals.reshape(-1, 1), TRUNCATED: truncated.reshape(-1, 1)}


def _with_final(
    observations: NDArray[Any], lengths: NDArray[np.int64], final: NDArray[Any] | None
) -> NDArray[Any]:
    if final is None:
        return with_final_rows(observations, lengths)
    dtype = np.result_type(observations, final)
    return with_final_rows(observations.astype(dtype, copy=False), lengths, final)
