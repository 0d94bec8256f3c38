"""One dataset: its description, first transitions and figures, whatever its layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.analysis import info
from offline_data.analysis.figures import Spread
from offline_data.analysis.statistics import dataset_stats
from offline_data.analysis.transitions import first_transitions
from offline_data.base.config import Settings
from offline_data.base.errors import NotFoundError
from offline_data.base.ids import DatasetId
from offline_data.base.progress import SilentProgress
from offline_data.episode import EpisodeBatch, join_key
from offline_data.formats import search as catalog
from offline_data.formats.search import CatalogDataset
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.store.library import entry_at
from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch, write_toy
from tests.toys.stored import write_stored

LENGTHS = [4, 1, 7, 3]
UNKNOWN = (1, 3)
"""Episodes without an observation after their last action."""


def _batch() -> EpisodeBatch:
    """Make a batch with rewards that are not finite and a text that is missing."""
    batch = toy_batch(LENGTHS, text=True, images=True, unknown_final=UNKNOWN)
    rewards = np.array(batch.steps["next", "reward"])
    rewards[2], rewards[5], rewards[4] = np.nan, np.inf, -np.inf
    words = np.array(batch.observations["observation", "mission"])
    words[0] = None
    return replace(
        batch,
        steps={**batch.steps, ("next", "reward"): rewards},
        observations={**batch.observations, ("observation", "mission"): words},
    )


@pytest.fixture(params=LAYOUTS, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    layout: LayoutName = request.param
    return write_stored(tmp_path_factory.mktemp(layout), "local:toy@1", _batch(), layout=layout)


def _whole(*, final: bool = False) -> dict[str, NDArray[np.generic]]:
    """Columns without final observations, or without those that are not known."""
    batch = _batch()
    left_out = (np.cumsum(batch.lengths + 1) - 1)[~(batch.final_observation & final)]
    known = {key: np.delete(one, left_out, axis=0) for key, one in batch.observations.items()}
    return {join_key(key): column for key, column in {**batch.steps, **known}.items()}


@pytest.mark.parametrize("items", [1, 5, 1 << 20])
def test_figures_equal_numpy_on_the_whole(folder: Path, items: int) -> None:
    stats = dataset_stats(open_reader(folder), chunk_items=items)
    assert (stats.id, stats.transitions, stats.episodes) == ("local:toy@1", 15, 4)
    expected = {k: v for k, v in _whole().items() if v.dtype != object}
    ranges = _whole(final=True)
    assert [leaf.key for leaf in stats.leaves] == sorted(expected)
    for leaf in stats.leaves:
        values = expected[leaf.key]
        numbers = values.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        assert (leaf.dtype, leaf.rows) == (values.dtype.name, len(values))
        assert leaf.shape == values.shape[1:]
        assert (leaf.nan, leaf.inf) == (np.isnan(numbers).sum(), np.isinf(numbers).sum())
        every = ranges[leaf.key][np.isfinite(ranges[leaf.key])]
        assert (leaf.min, leaf.max) == (every.min(), every.max())
        assert leaf.mean == pytest.approx(finite.mean(), rel=1e-12)
        assert leaf.std == pytest.approx(finite.std(), rel=1e-12)


def test_text_is_counted_by_word_and_figures_of_episodes(folder: Path) -> None:
    stats = dataset_stats(open_reader(folder), chunk_items=5)
    (text,) = stats.texts
    said = _whole()["observation/mission"].tolist()
    counts = Counter(word for word in said if word is not None)
    assert (text.key, text.rows, text.missing) == ("observation/mission", len(said), 1)
    assert text.distinct == len(counts)
    assert [n for _, n in text.most_common] == [n for _, n in counts.most_common(5)]
    assert all(counts[word] == times for word, times in text.most_common)
    episodes = stats.per_episode
    assert episodes.length == Spread(1, 3.5, 3.75, 7)
    (finite,) = [r for r in _batch().returns if np.isfinite(r)]
    assert episodes.returns == Spread(finite, finite, finite, finite)
    assert (episodes.terminated, episodes.truncated) == (0.5, 0.5)
    assert episodes.without_final_observation == len(UNKNOWN)


class _Seen(SilentProgress):
    """Progress that keeps what it is told."""

    @contextmanager
    def task(self, label: str, total: int | None, unit: str) -> Iterator[_Seen]:
        assert (label, unit) == ("stats", "B")
        self.total, self.amounts = total, list[int]()
        yield self

    def advance(self, amount: int = 1) -> None:
        self.amounts.append(amount)

    def resize(self, total: int) -> None:
        raise AssertionError(total)


def test_chunks_stay_small_and_progress_ends_at_the_total(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([50, 30], images=True)])
    seen = _Seen()
    dataset_stats(open_reader(tmp_path / "toy"), seen, chunk_items=20_000)
    assert sum(seen.amounts) == seen.total
    frames = 48 * 48 * 3
    assert max(seen.amounts) == 20_000 // frames * frames


def test_first_transitions(folder: Path) -> None:
    reader = open_reader(folder)
    found = first_transitions(reader, 6)
    assert [(t["index"], t["episode"], t["step"]) for t in found] == [
        *((0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 0, 3), (4, 1, 0), (5, 2, 0))
    ]  # fmt: skip
    state, following = "observation/state", "next/observation/state"
    assert [t["values"][state][0] for t in found] == [1001, 1002, 1003, 1004, 2001, 3001]
    assert [t["values"][following][0] for t in found] == [1002, 1003, 1004, 1005, 2001, 3002]
    assert [t["values"]["action"][0] for t in found[:2]] == [-1001, -1002]
    assert str(found[1]["values"]["observation/mission"]) == f"go to {1002 % 7}"
    assert str(found[1]["values"]["next/observation/mission"]) == f"go to {1003 % 7}"
    assert [(t["index"], t["step"]) for t in first_transitions(reader, 9, episode=1)] == [(4, 0)]


def test_a_dataset_here_is_described(folder: Path) -> None:
    found = info.entry_info(entry_at(folder))
    assert (found.id, found.path) == ("local:toy@1", folder)
    assert (found.transitions, found.episodes, found.source) == (15, 4, "local")
    files = [one for one in folder.rglob("*") if one.is_file() and one.name != "manifest.json"]
    assert found.bytes == sum(file.stat().st_size for file in files)
    assert list(found.schema) == sorted(_whole())
    reward = {"dtype": "float64", "shape": (1,), "rows": "steps", "text": False}
    assert found.schema["next/reward"] == reward
    mission = {"dtype": "int32", "shape": (), "rows": "observations", "text": True}
    assert found.schema["observation/mission"] == mission


def test_a_dataset_that_is_not_here_comes_from_the_catalogue(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = CatalogDataset("d4rl:x-v2", "d4rl", "x-v2", False, 10, None, 99, "x", ())
    asked: list[DatasetId] = []

    def find(dataset: DatasetId, settings: Settings) -> CatalogDataset | None:
        asked.append(dataset)
        return known if dataset.name == "x-v2" else None

    monkeypatch.setattr(catalog, "find_in_catalog", find)
    assert info.dataset_info("d4rl:x-v2", settings) == known
    assert known.command == "offline-data download d4rl:x-v2"
    with pytest.raises(NotFoundError, match="d4rl:y-v2 is not on this disk"):
        info.dataset_info("d4rl:y-v2", settings)
    assert [one.name for one in asked] == ["x-v2", "y-v2"]
    with pytest.raises(NotFoundError, match="no manifest"):
        info.dataset_info(str(tmp_path), settings)  # a path is in no catalogue
    assert len(asked) == 2
