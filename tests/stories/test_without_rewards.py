"""A dataset without rewards, as of demonstrations: everything works but what needs rewards, which says so."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import offline_data
from offline_data.base.errors import StepError, UsageError
from offline_data.pipeline.ingest import Stored
from offline_data.store.arrays import STYLES
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.pictures import restate

LENGTHS = [3, 1, 4]


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    """Episodes whose values say episode and time, converted from memory."""
    episodes = [
        {
            "observations": np.arange(100.0 * e, 100 * e + length + 1)[:, None],
            "actions": -np.arange(100.0 * e, 100 * e + length)[:, None],
            "terminations": e == 1,
        }
        for e, length in enumerate(LENGTHS)
    ]
    return offline_data.convert(episodes, "demos", root=tmp_path, progress=False)


def load(stored: Stored) -> Any:
    return offline_data.load_dataset(str(stored.id), root=stored.path.parents[2])


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_batches_have_no_reward(tmp_path: Path, layout: Any) -> None:
    batch = toy_batch(LENGTHS)
    steps = {key: column for key, column in batch.steps.items() if key != ("next", "reward")}
    bare = type(batch)(
        batch.lengths, steps, batch.observations, batch.final_observation, batch.episodes
    )
    write_toy(tmp_path / "set", [bare], layout=layout)
    assert verify(tmp_path / "set") == ()
    ds = offline_data.load_dataset(tmp_path / "set")
    assert ("next", "reward") not in ds.sample(4).keys(include_nested=True)
    np.testing.assert_array_equal(ds[:]["action"], batch.steps["action",])
    assert all(math.isnan(total) for total in ds.episodes["return"])


def test_arrays_episodes_and_info(stored: Stored, tmp_path: Path) -> None:
    ds = offline_data.load_dataset(stored.path)
    for style in STYLES:
        assert {"rewards", "masks"}.isdisjoint(ds.to_numpy(style))
    np.testing.assert_array_equal(
        ds.to_numpy()["actions"][:, 0], [-0.0, -1, -2, -100, -200, -201, -202, -203]
    )
    episode = ds.episode(2)
    assert math.isnan(episode.return_)
    assert set(episode.to_numpy()) == {"observations", "actions", "terminals", "timeouts"}
    again = offline_data.convert(ds.iter_episodes(), "again", root=tmp_path, progress=False)
    assert again.manifest.digests == stored.manifest.digests
    notes = offline_data.info("local:demos", root=tmp_path).notes
    assert any("has no rewards" in note for note in notes)
    assert offline_data.stats(stored.path).per_episode.returns is None
    assert all(finding.severity != "error" for finding in offline_data.check(stored.path))


@pytest.mark.parametrize(
    "step", ["reward_scale:2", "reward_shift:1", "return_to_go", "normalize_return"]
)
def test_steps_on_rewards_say_that_there_are_none(
    stored: Stored, tmp_path: Path, step: str
) -> None:
    with pytest.raises(StepError, match="needs rewards, which this dataset does not have"):
        load(stored).preprocess(step, dest=tmp_path / "made", progress=False)


def test_other_steps_keep_it_without(stored: Stored, tmp_path: Path) -> None:
    load(stored).preprocess(
        ["cast:obs=float32", "select:obs"], dest=tmp_path / "made", progress=False
    )
    ds = offline_data.load_dataset(tmp_path / "made")
    assert ("next", "reward") not in ds.sample(2).keys(include_nested=True)


@pytest.mark.parametrize("by", ["row", "episode"])
def test_a_function_adds_rewards(stored: Stored, tmp_path: Path, by: Any) -> None:
    def label(td: Any) -> Any:
        td["next", "reward"] = td["next", "observation"] * 2
        return td

    load(stored).preprocess(label, 0, 0, dest=tmp_path / "made", by=by, progress=False)
    ds = offline_data.load_dataset(tmp_path / "made")
    np.testing.assert_array_equal(ds[:]["next", "reward"], 2 * ds[:]["next", "observation"])
    np.testing.assert_array_equal(ds.episodes["return"], [2 * (1 + 2 + 3), 2 * 101, 2 * 810])


@pytest.mark.parametrize("derived", [offline_data.n_step(2), offline_data.return_to_go()])
def test_derived_leaves_of_rewards_say_what_is_missing(stored: Stored, derived: Any) -> None:
    ds = offline_data.load_dataset(stored.path, derived=[derived])
    with pytest.raises(UsageError, match="next/reward"):
        ds.sample(2)


def test_a_return_that_is_a_number_is_damage(stored: Stored) -> None:
    leaf = stored.manifest.tables["episodes"]["return",]
    file = np.memmap(stored.path / leaf.file, np.uint8, "r+")
    rows = file.reshape(-1, leaf.stride)
    rows[:, leaf.offset : leaf.offset + 8] = 0
    file.flush()
    restate(stored.path)
    (problem,) = verify(stored.path)
    assert problem.problem == "has returns that are not the sums of the rewards"
