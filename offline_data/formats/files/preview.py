"""The first episode of files as a mapping makes it: its first rows, and its last one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.base.errors import NotFoundError
from offline_data.episode.fields import join_key, next_of
from offline_data.formats.base import SourceInfo
from offline_data.formats.files.episodes import MappedEpisodes

if TYPE_CHECKING:
    from pathlib import Path

    from offline_data.formats.files.mapping import FileMapping


@dataclass(frozen=True)
class Preview:
    """Rows of the first episode, and counts of all."""

    episodes: int | None
    """Episodes of all files, and their steps; None: not known before they are read."""
    transitions: int | None
    length: int
    """Steps of the first episode."""
    final_observation: bool
    """Whether the observation after its last action is known."""
    steps: tuple[int, ...]
    """Numbers of the rows."""
    values: dict[str, tuple[Any, ...]]
    """Values of the rows by feature, in TED."""


def preview(path: Path, mapping: FileMapping, rows: int) -> Preview:
    """Read the first rows and the last one of the first episode; raises as `MappedEpisodes` does."""
    raw = MappedEpisodes(path, mapping, SourceInfo()).describe()
    batches = (batch for shard in raw.shards() for batch in raw.read(shard) if len(batch.lengths))
    first = next(batches, None)
    if first is None:
        raise NotFoundError(f"{path} has no episodes by this mapping")
    first = first.part(0, 1)
    steps = np.unique([*range(min(rows, first.transitions)), first.transitions - 1])
    columns: dict[str, Any] = {}
    for key, column in first.observations.items():
        columns[join_key(key)] = column, steps
        columns[join_key(next_of(key))] = column, steps + 1
    columns |= {join_key(key): (column, steps) for key, column in first.steps.items()}
    return Preview(
        raw.info.episodes,
        raw.info.transitions,
        first.transitions,
        bool(first.final_observation[0]),
        tuple(steps.tolist()),
        {
            name: tuple(np.asarray(column[int(row)]) for row in places)
            for name, (column, places) in sorted(columns.items())
        },
    )
