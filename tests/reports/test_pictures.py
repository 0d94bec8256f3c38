"""The numbers behind the pictures, against numpy on the arrays that were converted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data import api
from offline_data.reports import pictures
from offline_data.reports.pictures import DatasetPictures, Histogram, summarise
from offline_data.store.reader import open_reader
from tests.reports.drawn import LENGTHS, drawn_episodes


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Any:
    stored = api.convert(drawn_episodes(), "drawn", root=tmp_path_factory.mktemp("root"))
    return open_reader(stored.path)


@pytest.fixture(scope="module")
def found(reader: Any) -> DatasetPictures:
    return summarise(reader)


def _counted(histogram: Histogram, values: Any) -> None:
    """Assert that a histogram holds some values, and nothing else."""
    numbers = np.asarray(values, np.float64)
    finite = numbers[np.isfinite(numbers)]
    assert histogram.not_finite == len(numbers) - len(finite)
    places = np.searchsorted(histogram.edges, finite, side="right") - 1
    places = places.clip(max=len(histogram.counts) - 1)  # the greatest value is the last edge
    if not (histogram.discrete or histogram.constant):
        ends = (finite.min(), finite.max())
        assert (histogram.edges[0], histogram.edges[-1]) == pytest.approx(ends, rel=1e-12)
    np.testing.assert_array_equal(
        histogram.counts, np.bincount(places, minlength=len(histogram.counts))
    )
    assert histogram.counts[0] > 0
    assert histogram.counts[-1] > 0


def test_histograms_hold_every_value(found: DatasetPictures) -> None:
    episodes = drawn_episodes()
    rewards = np.concatenate([one["rewards"] for one in episodes])
    assert found.returns is not None
    _counted(found.returns, [one["rewards"].sum() for one in episodes])
    assert found.lengths is not None
    _counted(found.lengths, LENGTHS)
    assert (found.lengths.discrete, found.lengths.unit) == (False, "episodes")
    (reward,) = found.rewards
    _counted(reward, rewards)
    assert (reward.label, reward.not_finite, reward.discrete) == ("next/reward", 1, False)
    for histogram, name in zip(
        found.actions, ("action/arm[0]", "action/arm[1]", "action/grip"), strict=True
    ):
        assert histogram.label == name
        part, _, place = name.removeprefix("action/").partition("[")
        columns = np.concatenate([one["actions"][part] for one in episodes])
        _counted(histogram, columns[:, int(place[:-1])] if place else columns)
    grip = found.actions[2]
    assert grip.discrete
    np.testing.assert_array_equal(grip.edges, np.arange(4))


def test_ranges_of_nested_observations(found: DatasetPictures) -> None:
    assert [one.label for one in found.ranges] == ["observation/goal", "observation/state"]
    goal, state = found.ranges
    assert (goal.names, state.names) == (("",), tuple(f"[{n}]" for n in range(4)))
    whole = np.concatenate([one["observations"]["state"] for one in drawn_episodes()])
    values = np.concatenate([one["observations"]["state"][:-1] for one in drawn_episodes()])
    expected = np.quantile(values.astype(np.float64), found.levels, axis=0).T
    expected[:, 0], expected[:, -1] = whole.min(0), whole.max(0)
    np.testing.assert_allclose(state.quantiles, expected, atol=2 * np.ptp(values) / 1023)
    np.testing.assert_allclose(state.mean, values.mean(0, dtype=np.float64), atol=1e-9)


def test_timelines(found: DatasetPictures, reader: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    episodes = drawn_episodes()
    returns = [one["rewards"].sum() for one in episodes]
    shown = [one.episode for one in found.timelines]
    assert len(shown) == 4
    assert [returns[number] for number in (shown[0], shown[-1])] == [
        np.nanmin(returns),
        np.nanmax(returns),
    ]
    for line in found.timelines:
        rewards = episodes[line.episode]["rewards"]
        np.testing.assert_allclose(line.reward, rewards, rtol=1e-12)
        np.testing.assert_allclose(line.cumulated, np.cumsum(rewards), rtol=1e-12)
        last = [len(rewards) - 1]
        ended = bool(episodes[line.episode]["terminations"])
        assert (line.terminated.tolist(), line.truncated.tolist()) == (
            (last, []) if ended else ([], last)
        )
    monkeypatch.setattr(pictures, "_CHUNK_ITEMS", 9)
    coarse = pictures.timeline(reader, shown[-1], 7)
    rewards = episodes[shown[-1]]["rewards"]
    assert len(coarse.step) <= 7 < len(rewards)
    assert coarse.step[-1] == len(rewards) - 1
    np.testing.assert_allclose(coarse.cumulated, np.cumsum(rewards)[coarse.step], rtol=1e-12)
    first = rewards[: coarse.step[0] + 1]
    assert coarse.reward[0] == pytest.approx(first.mean())


def test_coverage_is_that_of_the_covariance_matrix(
    found: DatasetPictures, reader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = drawn_episodes()
    before = np.concatenate(
        [
            np.c_[one["observations"]["goal"][:-1], one["observations"]["state"][:-1]]
            for one in episodes
        ]
    ).astype(np.float64)
    coverage = found.coverage
    assert coverage is not None
    assert coverage.rows == len(before) == coverage.counts.sum()
    # observation/state[3] is constant
    assert coverage.names == ("observation/goal", *(f"observation/state[{n}]" for n in range(3)))
    scaled = ((before - before.mean(0)) / np.maximum(before.std(0), 1e-30))[:, :4]
    _, sizes, axes = np.linalg.svd(scaled - scaled.mean(0), full_matrices=False)
    np.testing.assert_allclose(coverage.explained, (sizes**2 / (sizes**2).sum())[:2], rtol=1e-5)
    np.testing.assert_allclose(np.abs(coverage.components), np.abs(axes[:2]), atol=1e-4)
    along = (scaled - scaled.mean(0)) @ coverage.components[0]
    expected, _ = np.histogram(along, coverage.edges[0])
    assert np.abs(coverage.counts.sum(1) - expected).sum() <= 4  # a value at an edge may round
    monkeypatch.setattr(pictures, "_CHUNK_ITEMS", 50)
    again = summarise(reader, stats=found.stats).coverage
    assert again is not None
    np.testing.assert_allclose(again.explained, coverage.explained, rtol=1e-9)


def test_components_of_rounding_errors_are_none(tmp_path: Path) -> None:
    along = np.linspace(0, 1, 50)
    observations = np.stack([along, 3 * along + 1, -along / 7], axis=1)
    episode = {"observations": observations, "actions": np.ones((49, 1)), "truncations": True}
    stored = api.convert([episode], "line", root=tmp_path)
    coverage = summarise(open_reader(stored.path)).coverage
    assert coverage is not None
    assert coverage.explained == (1.0, 0.0)
    assert (coverage.components[1] == 0).all()
    assert coverage.counts[:, 0].sum() == 49 == coverage.counts.sum()


def test_what_cannot_be_drawn_is_named(tmp_path: Path) -> None:
    frames = np.zeros((3, 64, 64, 3), np.uint8)
    episode = {
        "observations": frames,
        "actions": np.array(["left", "right", "left"], object)[:2],
        "rewards": np.array([np.nan, 1.0]),
        "terminations": True,
    }
    stored = api.convert([episode], "images", root=tmp_path)
    found = summarise(open_reader(stored.path))
    assert dict(found.left_out) == {
        "action": "text",
        "observation": "images, uint8[64, 64, 3]",
        "coverage": "no observation of numbers, other than images",
    }
    assert (found.returns, found.coverage, found.actions, found.ranges) == (None, None, (), ())
    (line,) = found.timelines
    assert np.isnan(line.cumulated).all()
    (reward,) = found.rewards
    assert (reward.counts.tolist(), reward.not_finite) == ([1], 1)


def test_constant_observations_have_no_components(tmp_path: Path) -> None:
    arrays = {
        "observations": np.ones((6, 2)),
        "actions": np.zeros(6, np.int64),
        "rewards": np.zeros(6),
        "terminals": np.array([0, 0, 1, 0, 0, 1], bool),
    }
    found = summarise(open_reader(api.convert(arrays, "same", root=tmp_path).path))
    assert dict(found.left_out) == {"coverage": "every observation is the same"}
    (reward,) = found.rewards
    assert reward.constant
    assert reward.edges[0] == 0.0
    assert [one.episode for one in found.timelines] == [0, 1]
