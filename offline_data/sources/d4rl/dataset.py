"""One D4RL file, opened to be read in parts: flat columns become episodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from offline_data.episodes import EpisodeBatch
from offline_data.episodes.cut import runs_within, with_final_rows
from offline_data.episodes.fields import REWARD, TERMINATED, TRUNCATED, Key, next_of
from offline_data.readers.hdf5 import open_hdf5
from offline_data.sources.base import Part, SourceInfo
from offline_data.sources.d4rl.ends import truncated_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from offline_data.sources.d4rl.file import FlatFile
    from offline_data.sources.d4rl.successors import NextColumn

OBSERVATION: Key = ("observation",)


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

    Where episodes are kept although `next_observations` is not the following row, it becomes the
    step leaf `next/observation`, and `observation` one of N rows.
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
            observation = rows.observations("observations")
            known = np.full(len(lengths), self.after is not None)
            if self.after is not None and self.after.explicit:
                steps[OBSERVATION] = observation
                steps[next_of(OBSERVATION)] = rows.observations("next_observations")
                return EpisodeBatch(lengths, steps, {}, known)
            final = self._final(rows, part, last_rows)
        whole = with_final_rows(observation, lengths, final)
        return EpisodeBatch(lengths, steps, {OBSERVATION: whole}, known)

    def _final(self, rows: _Rows, part: Part, last_rows: NDArray[np.int64]) -> NDArray[Any] | None:
        """Return the observations after the last actions, `[E, …]`, where the file has them."""
        if self.after is None:
            return None
        if self.after.final is not None:
            return self.after.final[part.first : part.stop]
        return rows.observations("next_observations")[last_rows]


@dataclass(frozen=True)
class _Rows:
    """Some rows of the open file."""

    flat: FlatFile
    file: Any
    start: int
    stop: int

    def read(self, name: str) -> NDArray[Any]:
        return self.flat.read(self.file, name, self.start, self.stop)

    def observations(self, name: str) -> NDArray[Any]:
        """Read one of both columns, in the dtype that holds the values of both."""
        return self.read(name).astype(self.flat.observation_dtype, copy=False)

    def flags(self, last_rows: NDArray[np.int64]) -> dict[Key, NDArray[np.bool_]]:
        terminals, timeouts = self.flat.read_flags(self.file, self.start, self.stop)
        truncated = truncated_rows(terminals, timeouts, last_rows)
        return {TERMINATED: terminals.reshape(-1, 1), TRUNCATED: truncated.reshape(-1, 1)}
