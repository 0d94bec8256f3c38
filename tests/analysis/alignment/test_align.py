"""`align` on datasets whose leaves were shifted, and on those that were not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import offline_data
from offline_data.analysis.alignment.find import align_dataset
from offline_data.base.errors import NotFoundError, UsageError
from offline_data.episode.fields import Key
from offline_data.store.reader import open_reader
from offline_data.testing.toy import toy_batch
from tests.analysis.alignment.worlds import shifted, world, write
from tests.slow import slow_but

ACTION, REWARD, CAMERA = ("action",), ("next", "reward"), ("observation", "camera")
STATE = ("observation", "state")
QUICK = {(ACTION, -3), (REWARD, 2), (CAMERA, 1)}


def test_what_is_aligned_is_not_shifted(tmp_path: Path) -> None:
    found = offline_data.align(write(tmp_path / "a", world(0, 20, feedback=0.5, camera=True)))
    lags = {(leaf.kind, leaf.leaf): leaf.lag for leaf in found.leaves}
    assert lags == {
        ("action", "action"): 0,
        ("reward", "next/reward"): 0,
        ("camera", "observation/camera"): 0,
    }
    assert (found.shifts, found.steps) == ({}, ())


@pytest.mark.parametrize(
    ("leaf", "by"), slow_but(lambda *case: case in QUICK, [ACTION, REWARD, CAMERA], [-3, -1, 1, 2])
)
def test_a_shifted_leaf_is_found_and_shifted_back(
    leaf: tuple[str, ...], by: int, tmp_path: Path
) -> None:
    batch = world(0, 20 if leaf == CAMERA else 60, feedback=0.5, camera=leaf == CAMERA)
    found = offline_data.align(write(tmp_path / "a", shifted(batch, leaf, by)))
    name = "/".join(leaf)
    assert found.shifts == {name: by}
    assert found.steps == (f"shift:{name},by={by}",)


def test_shifting_back_gives_the_rows_that_were(tmp_path: Path) -> None:
    batch = world(2)
    folder = write(tmp_path / "a", shifted(batch, ACTION, 1))
    ds = offline_data.open_dataset(folder)
    ds.preprocess(offline_data.align(ds).steps, dest=tmp_path / "fixed")
    made = open_reader(tmp_path / "fixed")
    assert made.lengths.tolist() == [39] * 30
    kept = np.delete(np.arange(batch.transitions), batch.last_rows)
    np.testing.assert_array_equal(made.step(ACTION), batch.steps[ACTION][kept])
    np.testing.assert_array_equal(made.step(REWARD), batch.steps[REWARD][kept])
    assert offline_data.align(tmp_path / "fixed").shifts == {}


@pytest.mark.slow
@pytest.mark.parametrize("feedback", [0.0, 0.5, 2.0])
def test_no_lag_is_made_up(feedback: float, tmp_path: Path) -> None:
    """Over 70 seeds and sizes each, and toys whose values count rows, no lag but 0 is claimed."""
    decided = 0
    for seed in range(70):
        episodes = 8 + seed % 20
        folder = write(tmp_path / str(seed), world(seed, episodes, feedback=feedback))
        found = align_dataset(open_reader(folder), seed=seed)
        assert not found.shifts, seed
        decided += sum(leaf.lag == 0 for leaf in found.leaves)
        toy = write(tmp_path / f"toy{seed}", toy_batch([20 + seed % 7] * episodes, text=True))
        assert not align_dataset(open_reader(toy), seed=seed).shifts
    assert decided > 100


def test_actions_that_follow_from_the_observation_decide_nothing(tmp_path: Path) -> None:
    batch = world(3)
    seen = np.asarray(batch.observations[STATE], np.float64)[batch.root_rows]
    steps = {**batch.steps, ACTION: seen[:, :2] - seen[:, 2:]}
    [found, _] = align_dataset(
        open_reader(write(tmp_path / "a", replace(batch, steps=steps)))
    ).leaves
    assert (found.lag, found.leaf) == (None, "action")


def test_pairs(tmp_path: Path) -> None:
    batch = world(4)
    velocity = batch.observations[STATE][:, 2:]
    added: dict[Key, NDArray[np.generic]] = {
        ("observation", "velocity"): velocity,
        ("observation", "late"): np.roll(velocity, 2, axis=0),
    }
    folder = write(tmp_path / "a", replace(batch, observations={**batch.observations, **added}))
    found = offline_data.align(folder, pairs=[("observation/velocity", "observation/late")])
    pair = found.leaves[-1]
    assert (pair.kind, pair.leaf, pair.lag) == ("pair", "observation/late", 2)
    with pytest.raises(NotFoundError, match="no numeric observation feature"):
        offline_data.align(folder, pairs=[("observation/velocty", "observation/late")])
    with pytest.raises(UsageError, match="rows=0"):
        offline_data.align(folder, rows=0)


def test_discrete_actions_have_a_column_each(tmp_path: Path) -> None:
    """Action 1 moves up, 0 and 2 down, which no weight of one number predicts."""
    batch = world(5)
    draw = np.random.default_rng(5)
    actions = draw.integers(0, 3, batch.transitions)
    moves = np.where(actions == 1, 1.0, -1.0)
    seen = np.zeros((batch.transitions + 30, 1))
    seen[batch.next_rows, 0] = 0.1 * moves
    changed = replace(
        batch,
        steps={**batch.steps, ACTION: actions[:, None]},
        observations={("observation",): seen},
    )
    found = offline_data.align(write(tmp_path / "a", changed))
    assert found.leaves[0].lag == 0


def test_a_dataset_without_rewards(tmp_path: Path) -> None:
    batch = shifted(world(0), ACTION, 1)
    steps = {key: column for key, column in batch.steps.items() if key != REWARD}
    found = offline_data.align(write(tmp_path / "a", replace(batch, steps=steps)))
    assert [(leaf.leaf, leaf.lag) for leaf in found.leaves] == [("action", 1)]
