"""Two questions tests ask of batches: are they equal, and what are several laid end to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from offline_data.episodes import EpisodeBatch, Key, join_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

TABLES = ("steps", "observations", "episodes")
"""Attributes of `EpisodeBatch` that hold columns."""


def assert_same_batch(found: EpisodeBatch, expected: EpisodeBatch) -> None:
    """Assert that two batches hold the same episodes: keys, dtypes, shapes, every value.

    NaN equals NaN. `dropped` and `notes` are not compared.
    """
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_array_equal(found.final_observation, expected.final_observation)
    for table in TABLES:
        mine, theirs = getattr(found, table), getattr(expected, table)
        assert set(mine) == set(theirs), f"{table}: {sorted(mine)} but expected {sorted(theirs)}"
        for key, column in theirs.items():
            _assert_same_column(f"{table} {join_key(key)}", mine[key], column)


def _assert_same_column(
    name: str, found: NDArray[np.generic], expected: NDArray[np.generic]
) -> None:
    assert found.dtype == expected.dtype, f"{name}: {found.dtype} but expected {expected.dtype}"
    np.testing.assert_array_equal(found, expected, err_msg=name)


def concatenate(batches: Sequence[EpisodeBatch]) -> EpisodeBatch:
    """Join batches that have the same leaves into one, in their order.

    Example:
        >>> one = EpisodeBatch(
        ...     np.array([1]),
        ...     {
        ...         ("action",): np.zeros(1),
        ...         ("next", "reward"): np.ones((1, 1)),
        ...         ("next", "terminated"): np.ones((1, 1), bool),
        ...         ("next", "truncated"): np.zeros((1, 1), bool),
        ...     },
        ...     {("observation",): np.arange(2)},
        ...     np.array([True]),
        ... )
        >>> concatenate([one, one]).observations["observation",].tolist()
        [0, 1, 0, 1]
    """
    steps, observations, episodes = (
        _joined([getattr(batch, table) for batch in batches]) for table in TABLES
    )
    return EpisodeBatch(
        np.concatenate([batch.lengths for batch in batches]),
        steps,
        observations,
        np.concatenate([batch.final_observation for batch in batches]),
        episodes,
        dropped=tuple(dict.fromkeys(item for batch in batches for item in batch.dropped)),
        notes=tuple(dict.fromkeys(note for batch in batches for note in batch.notes)),
    )


def _joined(
    columns: Sequence[Mapping[Key, NDArray[np.generic]]],
) -> dict[Key, NDArray[np.generic]]:
    keys = {frozenset(one) for one in columns}
    assert len(keys) == 1, f"leaves differ between batches: {sorted(map(sorted, keys))}"
    return {key: np.concatenate([one[key] for one in columns]) for key in columns[0]}
