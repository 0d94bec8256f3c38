"""Quality of episodes, compared with loops over episodes in plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from offline_data.analysis import episodes as quality
from offline_data.analysis.episodes import EpisodeQuality, episode_quality, quality_columns
from offline_data.episode import EpisodeBatch, Key
from offline_data.episode.fields import REWARD
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.store.reader import DatasetReader
from offline_data.testing.toy import toy_batch, write_toy
from tests import slow

LENGTHS = [1, 2, 3, 4, 40, 1, 9, 17, 1, 30]
UNKNOWN = (1, 4, 8)
"""Episodes without an observation after their last action."""
STATE: Key = ("observation", "state")
FPS = 20.0


def walks(lengths: list[int] = LENGTHS, *, dtype: str = "float32", seed: int = 0) -> EpisodeBatch:
    """Return random walks with rests, jumps, saturated actions, a gripper, late frames and NaN."""
    rng, batch = np.random.default_rng(seed), toy_batch(lengths, unknown_final=UNKNOWN)
    rows, steps = int(np.sum(lengths)) + len(lengths), int(np.sum(lengths))
    moves = rng.normal(size=(rows, 3)) * (rng.random((rows, 1)) > 0.4)
    state = np.cumsum(moves, axis=0)
    state[rng.integers(rows)] += 50
    state[rng.integers(rows), 1] = np.nan
    action = np.clip(rng.normal(size=(steps, 4)), -0.8, 0.8)
    action[:, 3] = np.sign(action[:, 3])
    action[rng.integers(steps), 2] = np.nan
    clock = np.concatenate([np.arange(n) for n in lengths]) / FPS
    clock[rng.random(steps) > 0.9] += 0.013
    last = np.cumsum(batch.lengths + 1) - 1
    state[last[~batch.final_observation]] = state[last[~batch.final_observation] - 1]
    solved = rng.random(rows) > 0.9
    solved[last[~batch.final_observation]] = solved[last[~batch.final_observation] - 1]
    return replace(
        batch,
        steps={**batch.steps, ("action",): action.astype(dtype), ("timestamp",): clock[:, None]},
        observations={STATE: state.astype(dtype), ("info", "success"): solved},
    )


def runs(batch: EpisodeBatch, key: Key) -> list[NDArray[Any]]:
    """Return the known values of a leaf in each episode, float64 `[n, features]`."""
    observed = key in batch.observations
    column = batch.observations[key] if observed else batch.steps[key]
    parts = np.split(column, np.cumsum(batch.lengths + observed)[:-1])
    known = [
        n + (observed and final)
        for n, final in zip(batch.lengths, batch.final_observation, strict=True)
    ]
    return [
        np.asarray(part[:n], np.float64).reshape(n, -1)
        for part, n in zip(parts, known, strict=True)
    ]


def lengths_of(rows: NDArray[Any], order: int) -> NDArray[Any]:
    """Return the finite norms of differences of an order."""
    norms = (
        np.sqrt((np.diff(rows, order, axis=0) ** 2).sum(axis=1))
        if len(rows) > order
        else np.zeros(0)
    )
    return norms[~np.isnan(norms)]


def oracle(batch: EpisodeBatch, key: Key, rate: float = 1.0) -> dict[str, list[float]]:
    """Return the columns of the motion of a leaf."""
    every = runs(batch, key)
    before = np.concatenate([rows[:n] for rows, n in zip(every, batch.lengths, strict=True)])
    low, high = np.nanquantile(before, (0.01, 0.99), axis=0)
    found: dict[str, list[float]] = {"idle": [], "jerk": [], "jerk_p95": [], "velocity": []}
    for rows in every:
        moves = np.abs(np.diff(rows, axis=0))
        rests = [bool((move <= 0.001 * (high - low)).all()) for move in moves]
        jerk, speed = lengths_of(rows, 3) * rate**3, lengths_of(rows, 1) * rate
        found["idle"].append(float(np.mean(rests)) if rests else np.nan)
        found["jerk"].append(np.median(jerk) if len(jerk) else np.nan)
        found["jerk_p95"].append(np.quantile(jerk, 0.95) if len(jerk) else np.nan)
        found["velocity"].append(speed.max() if len(speed) else np.nan)
    return found


def same(found: EpisodeQuality, expected: dict[str, Any], rtol: float = 2e-5) -> None:
    for name, column in expected.items():
        np.testing.assert_allclose(found[name], column, rtol=rtol, atol=1e-15, err_msg=name)


Write = Callable[..., DatasetReader]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(
        batch: EpisodeBatch, *, layout: LayoutName = "compact", **about: Any
    ) -> DatasetReader:
        manifest = write_toy(tmp_path / "toy", [batch], layout=layout)
        return DatasetReader(tmp_path / "toy", replace(manifest, **about))

    return write


@pytest.mark.parametrize(
    ("layout", "rows", "together"), slow.every(4, LAYOUTS, [1, 2, 3, 5, 16, 1000], [0, 20, 1000])
)
def test_all_columns(
    layout: LayoutName, rows: int, together: int, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "_TOGETHER", together)
    monkeypatch.setattr(quality, "BLOCK_ITEMS", 1)
    monkeypatch.setattr(quality, "_LEAST_ROWS", rows)
    batch = walks()
    reader = write(batch, layout=layout)
    found = episode_quality(reader)
    same(found, oracle(batch, STATE))
    action = runs(batch, ("action",))
    whole = np.concatenate(action)[:, :3]
    low, high = np.nanmin(whole, axis=0), np.nanmax(whole, axis=0)
    times = runs(batch, ("timestamp",))
    gaps = np.concatenate([np.diff(one[:, 0]) for one in times])
    period = np.median(gaps[gaps > 0])
    expected = {
        "length": batch.lengths,
        "return": batch.returns,
        "success": [bool(one.any()) for one in runs(batch, ("info", "success"))],
        "saturated": [
            np.mean([bool(((row[:3] <= low) | (row[:3] >= high)).any()) for row in rows])
            for rows in action
        ],
        "lag": [np.diff(one[:, 0]).max() if len(one) > 1 else np.nan for one in times],
        "timestamp_error": [
            np.abs(one[:, 0] - one[0, 0] - period * np.arange(len(one))).max() for one in times
        ],
    }
    same(found, expected, 1e-12)
    assert tuple(found) == quality_columns(reader)


def test_rates_are_per_second(write: Write) -> None:
    batch = walks()
    found = episode_quality(write(batch, about={"fps": FPS}))
    same(found, oracle(batch, STATE, FPS))
    assert (found.leaf, found.rate) == ("observation/state", FPS)
    clock = runs(batch, ("timestamp",))
    error = [np.abs(one[:, 0] - one[0, 0] - np.arange(len(one)) / FPS).max() for one in clock]
    same(found, {"timestamp_error": error}, 1e-12)


def test_a_rate_that_the_clock_contradicts_is_not_used_for_it(write: Write) -> None:
    reader = write(walks(), about={"fps": 1000 * FPS})
    assert episode_quality(reader)["timestamp_error"].max() < 0.1


def test_declared_bounds_of_actions(write: Write) -> None:
    batch = walks()
    space = {"type": "Box", "dtype": "float32", "shape": [4], "low": [-0.5] * 4, "high": [0.5] * 4}
    found = episode_quality(write(batch, spaces={"action": space}))
    action = runs(batch, ("action",))
    share = [
        np.mean([bool((np.abs(row[:3]) >= 0.5 - 1e-4).any()) for row in rows]) for rows in action
    ]
    same(found, {"saturated": share})
    assert 0 < np.mean(share) < 1


@pytest.mark.parametrize("lengths", [[9, 4], [600, 600]])
def test_actions_without_bounds_are_not_saturated(lengths: list[int], write: Write) -> None:
    batch = walks(lengths)
    action = np.random.default_rng(1).normal(size=(sum(lengths), 2)).astype(np.float32)
    reader = write(replace(batch, steps={**batch.steps, ("action",): action}))
    assert episode_quality(reader)["saturated"].tolist() == [0, 0]


def test_float64_is_not_rounded(write: Write) -> None:
    batch = walks(dtype="float64")
    state = np.asarray(batch.observations[STATE], np.float64) + 1e9
    batch = replace(batch, observations={STATE: state})
    same(episode_quality(write(batch)), oracle(batch, STATE), 1e-6)


def test_jerk_of_a_long_episode_is_of_every_kth_step(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality, "LONGEST", 12)
    monkeypatch.setattr(quality, "BLOCK_ITEMS", 1)
    monkeypatch.setattr(quality, "_LEAST_ROWS", 7)
    batch = walks([40, 12, 9])
    batch = replace(batch, observations={STATE: np.nan_to_num(batch.observations[STATE])})
    found = episode_quality(write(batch))
    for episode, every in enumerate((4, 1, 1)):
        rows = runs(batch, STATE)[episode]
        jerk = np.sqrt((np.diff(rows, 3, axis=0) ** 2).sum(axis=1))
        kept = jerk[np.arange(3, len(rows)) % every == 0]
        assert found["jerk"][episode] == pytest.approx(np.median(kept), rel=1e-5)


def test_positions_are_preferred_and_a_leaf_can_be_named(write: Write) -> None:
    batch, other = walks(), walks(seed=1).observations[STATE]
    names: tuple[Key, ...] = (("observation", "goal"), ("observation", "eef_pos"))
    batch = replace(
        batch, observations={**batch.observations, names[0]: other, names[1]: other + 1}
    )
    reader = write(batch)
    found = episode_quality(reader)
    assert found.leaf == "observation/eef_pos"
    same(found, oracle(batch, names[1]))
    same(episode_quality(reader, leaf="observation.state"), oracle(batch, STATE))
    same(episode_quality(reader, leaf="action"), oracle(batch, ("action",)))


def test_actions_where_observations_are_images(write: Write) -> None:
    batch = walks()
    frames = np.zeros((len(batch.observations[STATE]), 16, 16, 3), np.uint8)
    batch = replace(batch, observations={("pixels",): frames})
    found = episode_quality(write(batch))
    assert found.leaf == "action"
    same(found, oracle(batch, ("action",)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_images_and_discrete_actions_have_what_can_be_known(
    layout: LayoutName, write: Write
) -> None:
    batch = walks()
    frames = np.zeros((len(batch.observations[STATE]), 16, 16, 3), np.uint8)
    steps = {key: column for key, column in batch.steps.items() if key != ("timestamp",)}
    steps["action",] = np.arange(batch.transitions)[:, None] % 4
    reader = write(replace(batch, steps=steps, observations={("pixels",): frames}), layout=layout)
    found = episode_quality(reader)
    assert tuple(found) == quality_columns(reader) == ("length", "return", "outliers")
    assert found.leaf is None


def test_a_stored_column_of_success_is_used(write: Write) -> None:
    batch = walks()
    success = np.arange(len(LENGTHS)) % 3 == 0
    batch = replace(batch, episodes={**batch.episodes, ("success",): success})
    same(episode_quality(write(batch)), {"success": success})


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_outliers(value: float, write: Write) -> None:
    lengths = [5, 6, 7, 5, 6, 7, 40]
    batch = walks(lengths)
    batch = replace(batch, steps={**batch.steps, ("next", "reward"): np.full((76, 1), value)})
    found = episode_quality(write(batch))
    expected = np.zeros(7, np.int64)
    for name, marked in found.marked.items():
        column = found[name]
        low, high = np.nanquantile(column, (0.25, 0.75))
        beyond = (column < low - 1.5 * (high - low)) | (column > high + 1.5 * (high - low))
        np.testing.assert_array_equal(marked, beyond, err_msg=name)
        expected += beyond
    np.testing.assert_array_equal(found["outliers"], expected)
    assert found.marked["length"].tolist() == [False] * 6 + [True]
    assert found.marked["return"].any() == bool(value)
    assert found.take(np.array([6]))["length"].tolist() == [40]
    assert len(found.take(np.zeros(0, np.int64))["jerk"]) == 0


@pytest.mark.parametrize(
    ("last", "marked"), [(12.1, True), (11.9, False), (-4.9, False), (-5.1, True)]
)
def test_one_and_a_half_interquartile_ranges(last: float, marked: bool, write: Write) -> None:
    batch = walks([1] * 9)
    rewards = np.array([*range(8), last])
    found = episode_quality(write(replace(batch, steps={**batch.steps, REWARD: rewards[:, None]})))
    assert found.marked["return"].tolist() == [False] * 8 + [marked]


def test_nothing_but_nan_is_not_an_outlier(write: Write) -> None:
    batch = walks()
    state = np.full_like(batch.observations[STATE], np.nan)
    steps = {**batch.steps, ("action",): np.full_like(batch.steps["action",], np.nan)}
    found = episode_quality(write(replace(batch, steps=steps, observations={STATE: state})))
    assert np.isnan(found["jerk"]).all()
    assert np.isnan(found["velocity"]).all()
    assert not found["saturated"].any()
    assert np.nan_to_num(found["idle"]).max() == 0


def test_an_unknown_column(write: Write) -> None:
    found = episode_quality(write(walks()))
    assert "jerks" not in found
    assert found.get("jerks") is None
