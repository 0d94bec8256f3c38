"""Figures of a dataset: per leaf and per episode, in one pass and bounded memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from offline_data.episodes.fields import join_key
from offline_data.progress import SILENT
from offline_data.reports.chunks import CHUNK_ITEMS, observation_chunks, step_chunks
from offline_data.reports.tally import LeafStats, NumberTally, TextStats, WordTally
from offline_data.store.layout import EPISODE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from offline_data.episodes.fields import Key
    from offline_data.progress import Progress
    from offline_data.store.layout import LeafSpec
    from offline_data.store.reader import DatasetReader


@dataclass(frozen=True)
class Spread:
    """How the finite values of one figure are spread over the episodes."""

    min: float
    median: float
    mean: float
    max: float


@dataclass(frozen=True)
class EpisodeStats:
    """Figures of episodes as wholes."""

    length: Spread | None
    """Transitions per episode; None where there is no episode."""
    returns: Spread | None
    """Undiscounted returns; None where none is finite."""
    terminated: float | None
    """Share of episodes that end terminated, in [0, 1]."""
    truncated: float | None
    """Share that end truncated."""
    without_final_observation: int
    """Episodes whose observation after the last action the source does not have."""


@dataclass(frozen=True)
class DatasetStats:
    """All figures of one dataset."""

    id: str
    """`source:name@revision`."""
    transitions: int
    """`N`."""
    episodes: int
    """`E`."""
    leaves: tuple[LeafStats, ...]
    """Numeric leaves in the order of their keys."""
    texts: tuple[TextStats, ...]
    """Text leaves in the order of their keys."""
    per_episode: EpisodeStats


def dataset_stats(
    reader: DatasetReader, progress: Progress = SILENT, *, chunk_items: int = CHUNK_ITEMS
) -> DatasetStats:
    """Compute the figures of every leaf; reads each file once, `chunk_items` items at a time.

    Raises:
        ManifestError: A file of the dataset is missing or damaged.
    """
    leaves, texts = _measure_leaves(reader, progress, chunk_items)
    return DatasetStats(
        id=reader.manifest.id,
        transitions=reader.transitions,
        episodes=reader.episode_count,
        leaves=tuple(leaves),
        texts=tuple(texts),
        per_episode=episode_stats(reader),
    )


def episode_stats(reader: DatasetReader) -> EpisodeStats:
    """Compute the figures that the table of episodes holds; no step is read."""
    final = np.asarray(reader.episodes[("final_observation",)], dtype=bool)
    return EpisodeStats(
        length=spread(reader.lengths),
        returns=spread(np.asarray(reader.episodes[("return",)])),
        terminated=_share(np.asarray(reader.episodes[("terminated",)])),
        truncated=_share(np.asarray(reader.episodes[("truncated",)])),
        without_final_observation=int((~final).sum()),
    )


def spread(values: NDArray[np.generic]) -> Spread | None:
    """Summarise one number per episode; None where none is finite.

    Example:
        >>> spread(np.array([1, 2, 6]))
        Spread(min=1.0, median=2.0, mean=3.0, max=6.0)
    """
    numbers = values.astype(np.float64).ravel()
    finite = numbers[np.isfinite(numbers)]
    if len(finite) == 0:
        return None
    return Spread(
        float(finite.min()), float(np.median(finite)), float(finite.mean()), float(finite.max())
    )


def _share(flags: NDArray[np.generic]) -> float | None:
    return float(flags.astype(np.float64).mean()) if len(flags) else None


def _measure_leaves(
    reader: DatasetReader, progress: Progress, items: int
) -> tuple[list[LeafStats], list[TextStats]]:
    tallies = {key: _tally(reader, key) for key in _specs(reader)}
    with progress.task("stats", _bytes(reader), "B") as task:
        for walk in (step_chunks, observation_chunks):
            for chunk in walk(reader, items):
                tallies[chunk.key].add(chunk.values)
                task.advance(chunk.values.nbytes)
    done = [tallies[key].stats() for key in sorted(tallies)]
    numbers = [stats for stats in done if isinstance(stats, LeafStats)]
    return numbers, [stats for stats in done if isinstance(stats, TextStats)]


def _specs(reader: DatasetReader) -> dict[Key, LeafSpec]:
    steps = {key: leaf for key, leaf in reader.step_leaves.items() if key != EPISODE}
    return {**steps, **reader.observation_leaves}


def _tally(reader: DatasetReader, key: Key) -> NumberTally | WordTally:
    spec = _specs(reader)[key]
    if spec.text:
        return WordTally(join_key(key), reader.words(key) or [])
    return NumberTally(join_key(key), spec.dtype, spec.shape)


def _bytes(reader: DatasetReader) -> int:
    """Bytes of all leaves; a few more than are read where final observations are missing."""
    steps = sum(leaf.nbytes for key, leaf in reader.step_leaves.items() if key != EPISODE)
    observations = sum(leaf.nbytes for leaf in reader.observation_leaves.values())
    rows = reader.transitions
    return steps * rows + observations * (rows + reader.episode_count)
