"""Nearest episodes and near-duplicates, compared with loops over pairs of episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offline_data.analysis import similar
from offline_data.analysis.episodes import episode_quality
from offline_data.analysis.similar import with_similar
from offline_data.episode import EpisodeBatch
from offline_data.store.reader import DatasetReader
from offline_data.testing.toy import write_toy
from tests.analysis.test_episodes import STATE, runs, walks


def read(batch: EpisodeBatch, folder: Path) -> DatasetReader:
    write_toy(folder, [batch])
    return DatasetReader(folder)


@pytest.mark.parametrize("items", [1, 40, 1 << 19])
def test_the_nearest_by_brute_force(
    items: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(similar, "BLOCK_ITEMS", items)
    monkeypatch.setattr(similar, "_DISTANCES", items)
    batch = walks()
    batch = replace(batch, observations={STATE: np.nan_to_num(batch.observations[STATE])})
    every = runs(batch, STATE)
    before = np.concatenate([rows[:n] for rows, n in zip(every, batch.lengths, strict=True)])
    low, middle, high = np.quantile(before, (0.01, 0.5, 0.99), axis=0)
    scaled = [(rows - middle) / (high - low) for rows in every]
    summaries = [np.concatenate([x.mean(0), x.std(0), x[0], x[-1]]) for x in scaled]
    reader = read(batch, tmp_path / "toy")
    found = with_similar(reader, episode_quality(reader))
    for episode, one in enumerate(summaries):
        apart = [np.sqrt(np.mean((one - other) ** 2)) for other in summaries]
        apart[episode] = np.inf
        nearest = found["nearest"][episode]
        assert apart[nearest] == pytest.approx(min(apart), rel=1e-4, abs=1e-6)
        assert found["distance"][episode] == pytest.approx(min(apart), rel=1e-4, abs=1e-6)
    assert (found["duplicate_of"] == -1).all()
    assert "nearest" not in episode_quality(reader)


def test_near_duplicates(tmp_path: Path) -> None:
    lengths = [30, 40, 30, 30, 25, 30]
    batch = walks(lengths)
    state = np.random.default_rng(2).normal(size=(sum(lengths) + 6, 3)).astype(np.float32)
    parts = np.split(state, np.cumsum(batch.lengths + 1)[:-1])
    parts[2][:] = parts[0]
    parts[3][:] = np.where(np.arange(31)[:, None] == 7, 9, parts[0])
    parts[5][:] = parts[1][:31]
    for column in batch.steps.values():
        column[70:100] = column[:30]  # episode 2 is a copy of 0
    batch = replace(
        batch,
        observations={STATE: np.concatenate(parts)},
        final_observation=np.ones(6, bool),
    )
    reader = read(batch, tmp_path / "toy")
    found = with_similar(reader, episode_quality(reader))
    assert found["duplicate_of"].tolist() == [-1, -1, 0, 0, -1, -1]
    assert found["nearest"][[0, 2]].tolist() == [2, 0]
    assert found["distance"][[0, 2]].tolist() == [0, 0]


def test_a_single_episode_and_no_continuous_leaf(tmp_path: Path) -> None:
    reader = read(walks([5]), tmp_path / "one")
    found = with_similar(reader, episode_quality(reader))
    assert (found["nearest"].tolist(), found["duplicate_of"].tolist()) == ([-1], [-1])
    assert np.isnan(found["distance"]).all()
    batch = walks([5, 6])
    steps = {**batch.steps, ("action",): np.zeros((11, 1), np.int64)}
    frames = np.zeros((13, 16, 16, 3), np.uint8)
    steps.pop(("timestamp",))
    reader = read(replace(batch, steps=steps, observations={("pixels",): frames}), tmp_path / "two")
    found = with_similar(reader, episode_quality(reader))
    assert tuple(found) == ("length", "return", "outliers", "duplicate_of")
