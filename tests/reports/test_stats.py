"""Figures of every leaf against numpy on the whole, in both layouts and any size of chunk."""

from __future__ import annotations

import itertools
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from offline_data.episodes import EpisodeBatch, join_key
from offline_data.errors import ManifestError
from offline_data.reports.stats import (
    MOST_COMMON,
    DatasetStats,
    LeafStats,
    WordCounts,
    dataset_stats,
    spread,
)
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

LENGTHS = [4, 1, 7, 3]
UNKNOWN = (1, 3)


@pytest.fixture(params=LAYOUTS)
def layout(request: pytest.FixtureRequest) -> LayoutName:
    name: LayoutName = request.param
    return name


def _batch() -> EpisodeBatch:
    batch = toy_batch(LENGTHS, text=True, images=True, unknown_final=UNKNOWN)
    rewards = np.array(batch.steps["next", "reward"])
    rewards[2], rewards[5], rewards[4] = np.nan, np.inf, -np.inf
    return replace(batch, steps={**batch.steps, ("next", "reward"): rewards})


def _known(batch: EpisodeBatch, column: NDArray[np.generic]) -> NDArray[np.generic]:
    """Observations without the repeated row of episodes that lack their final one."""
    repeated = (np.cumsum(batch.lengths + 1) - 1)[~batch.final_observation]
    return np.delete(column, repeated, axis=0)


def _whole(batch: EpisodeBatch) -> dict[str, NDArray[np.generic]]:
    known = {key: _known(batch, column) for key, column in batch.observations.items()}
    return {join_key(key): column for key, column in {**batch.steps, **known}.items()}


def _stats(tmp_path: Path, batch: EpisodeBatch, layout: LayoutName, items: int) -> DatasetStats:
    write_toy(tmp_path / "toy", [batch], layout=layout)
    return dataset_stats(open_reader(tmp_path / "toy"), chunk_items=items)


@pytest.mark.parametrize("items", [1, 5, 1 << 20])
def test_every_leaf_equals_numpy_on_the_whole(
    tmp_path: Path, layout: LayoutName, items: int
) -> None:
    batch = _batch()
    found = {leaf.key: leaf for leaf in _stats(tmp_path, batch, layout, items).leaves}
    expected = {k: v for k, v in _whole(batch).items() if v.dtype != object}
    assert list(found) == sorted(expected)
    for key, values in expected.items():
        _assert_figures(found[key], values)


def _assert_figures(leaf: LeafStats, values: NDArray[np.generic]) -> None:
    numbers = values.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    assert (leaf.dtype, leaf.rows) == (values.dtype.name, len(values))
    assert leaf.shape == values.shape[1:]
    assert (leaf.nan, leaf.inf) == (np.isnan(numbers).sum(), np.isinf(numbers).sum())
    assert (leaf.min, leaf.max) == (finite.min(), finite.max())
    assert leaf.mean == pytest.approx(finite.mean(), rel=1e-12)
    assert leaf.std == pytest.approx(finite.std(), rel=1e-12)


def test_text_is_counted_by_word(tmp_path: Path, layout: LayoutName) -> None:
    batch = _batch()
    words = np.array(batch.observations["observation", "mission"])
    words[0] = None
    batch = replace(batch, observations={**batch.observations, ("observation", "mission"): words})
    (text,) = _stats(tmp_path, batch, layout, 5).texts
    said = _known(batch, words).tolist()
    counts = Counter(word for word in said if word is not None)
    assert (text.key, text.rows, text.missing) == ("observation/mission", len(said), 1)
    assert text.distinct == len(counts)
    assert sorted(n for _, n in text.most_common) == sorted(
        n for _, n in counts.most_common(MOST_COMMON)
    )
    assert all(counts[word] == times for word, times in text.most_common)


def test_figures_of_episodes(tmp_path: Path, layout: LayoutName) -> None:
    batch = toy_batch(LENGTHS, unknown_final=UNKNOWN)
    figures = _stats(tmp_path, batch, layout, 5)
    episodes = figures.per_episode
    assert (figures.id, figures.transitions, figures.episodes) == ("local:toy@1", 15, 4)
    assert episodes.length == spread(np.array(LENGTHS))
    assert episodes.returns == spread(batch.returns)
    assert (episodes.terminated, episodes.truncated) == (0.5, 0.5)
    assert episodes.without_final_observation == len(UNKNOWN)


def test_returns_that_are_not_finite_do_not_hide_the_others(tmp_path: Path) -> None:
    figures = _stats(tmp_path, _batch(), "compact", 5)
    finite = [r for r in _batch().returns if np.isfinite(r)]
    assert len(finite) == 1
    assert figures.per_episode.returns == spread(np.array(finite))


def test_chunks_stay_small_and_progress_ends_at_the_total(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([50, 30], images=True)])
    seen = _Seen()
    dataset_stats(open_reader(tmp_path / "toy"), seen, chunk_items=20_000)
    assert sum(seen.amounts) == seen.total
    frames = 48 * 48 * 3
    assert max(seen.amounts) == 20_000 // frames * frames


def test_codes_of_damaged_text_are_an_integrity_error() -> None:
    tally = WordCounts("info/mission", ["go"])
    with pytest.raises(ManifestError, match="outside its 1 words"):
        tally.add(np.array([0, 1], "i4"))


class _Seen:
    """Progress that keeps what it is told."""

    def __init__(self) -> None:
        self.total: int | None = None
        self.amounts: list[int] = []

    @contextmanager
    def task(self, label: str, total: int | None, unit: str) -> Iterator[_Seen]:
        assert (label, unit) == ("stats", "B")
        self.total = total
        yield self

    def advance(self, amount: int = 1) -> None:
        self.amounts.append(amount)

    def resize(self, total: int) -> None:
        self.total = total

    def note(self, message: str) -> None:
        raise AssertionError(message)


def test_both_layouts_have_the_same_figures(tmp_path: Path) -> None:
    one, other = (
        _stats(tmp_path / layout, _batch(), layout, items)
        for layout, items in itertools.zip_longest(LAYOUTS, (5, 7))
    )
    assert [leaf.key for leaf in one.leaves] == [leaf.key for leaf in other.leaves]
    assert one.texts == other.texts
    assert one.per_episode == other.per_episode
