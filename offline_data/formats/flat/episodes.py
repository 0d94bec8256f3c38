"""The episodes of a flat file, read in runs as `EpisodeBatch`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offline_data.episode import EpisodeBatch
from offline_data.episode.assembly import assemble
from offline_data.episode.cut import runs_within, with_final_rows
from offline_data.episode.fields import REWARD, Key
from offline_data.formats.flat.hdf5 import FlatFile
from offline_data.formats.flat.next_column import NextColumn

OBSERVATION: Key = ("observation",)


@dataclass(frozen=True, eq=False)
class FlatEpisodes:
    """The episodes of a flat file, whose columns become features.

    | column | feature | rows |
    |---|---|---|
    | observations | `observation`, the last row from the next observations, else repeated | N + E |
    | actions | `action`, of the file's dtype and shape: numbers `[N]` stay `[N]` | N |
    | rewards | `next/reward` `[N, 1]`, of the file's dtype | N |
    | flags | `next/terminated`, `next/truncated`, bool `[N, 1]`; a last row has one of them | N |
    | others | what the format's `leaf_of` says; numbers under `next` are `[N, 1]` as rewards | N |

    With `--keep-episodes`, next observations that differ from the following row are stored: as the
    step feature `next/observation`, with `observation` as one of N rows.
    """

    flat: FlatFile
    lengths: NDArray[np.int64]
    """`[E]` rows of each episode."""
    terminated: NDArray[np.bool_]
    """`[N]`."""
    truncated: NDArray[np.bool_] | None
    """`[N]` as the file has it; None where it does not."""
    after: NextColumn | None
    """The column of next observations; None if the file has none."""

    def runs(self, budget: int) -> list[tuple[int, int, int]]:
        """Divide all episodes into runs of about `budget` bytes: first, one past the last, rows."""
        row_bytes = sum(column.nbytes for column in self.flat.columns.values())
        runs = runs_within(self.lengths, max(1, budget // row_bytes))
        return [(first, stop, int(self.lengths[first:stop].sum())) for first, stop in runs]

    def read_run(self, first: int, stop: int) -> EpisodeBatch:
        """Read some episodes; raises `FormatError` naming the file and the place."""
        flat, form, lengths = self.flat, self.flat.format, self.lengths[first:stop]
        begin = int(self.lengths[:first].sum())
        end, last = begin + int(lengths.sum()), np.cumsum(lengths) - 1
        names = [form.observation, *([form.next_observation] if flat.has_next else [])]
        dtype = np.result_type(*(flat.columns[name].dtype for name in names))
        truncated = None if self.truncated is None else self.truncated[begin:end]
        with flat.open() as file:
            steps = {
                ("action",): flat.read(file, form.action, begin, end),
                REWARD: flat.read(file, form.reward, begin, end).reshape(-1, 1),
            }
            for name, key in flat.others.items():
                column = flat.read(file, name, begin, end)
                steps[key] = column.reshape(len(column), -1) if key[0] == "next" else column
            held = None if self.after is None else self.after.observations
            observation = (
                flat.read(file, form.observation, begin, end) if held is None else held[begin:end]
            ).astype(dtype, copy=False)
            after, explicit = {}, self.after is not None and self.after.explicit
            if self.after is not None:
                final = None if self.after.final is None else self.after.final[first:stop]
                if explicit or final is None:
                    rows = flat.read(file, form.next_observation, begin, end)
                    final = (rows := rows.astype(dtype, copy=False))[last]
                if explicit:
                    after[OBSERVATION] = rows
                else:
                    observation = with_final_rows(observation, lengths, final)
        return assemble(
            lengths,
            steps,
            {OBSERVATION: observation},
            terminated=self.terminated[begin:end],
            truncated=truncated,
            after=after,
            keep=True,
        )
