"""Episodes that are there twice: exactly, nearly, in two datasets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_data.episodes import EpisodeBatch
from tests.checks.planted import Write, changed, clean_batch, found

TWICE = ["RL060", "RL061", "RL062"]
LAYOUTS = pytest.mark.parametrize("layout", ["compact", "ted"])


def chosen(batch: EpisodeBatch, episodes: list[int]) -> EpisodeBatch:
    """Return some episodes of a batch, in another order, also repeatedly."""
    steps = np.concatenate([np.flatnonzero(batch.episode_of == e) for e in episodes])
    rows = np.concatenate(
        [
            np.arange(batch.starts[e] + e, batch.starts[e] + e + batch.lengths[e] + 1)
            for e in episodes
        ]
    )
    return EpisodeBatch(
        batch.lengths[episodes],
        {key: column[steps] for key, column in batch.steps.items()},
        {key: column[rows] for key, column in batch.observations.items()},
        batch.final_observation[episodes],
    )


@LAYOUTS
def test_clean(write: Write, layout: str) -> None:
    paths = [write(clean_batch([30] * 9, seed=n), layout=layout) for n in range(2)]
    assert [one for code in TWICE for one in found(paths, code)] == []


@LAYOUTS
def test_copies(write: Write, layout: str) -> None:
    batch = chosen(clean_batch((12, 20, 9)), [0, 1, 0, 2, 1])
    (one,) = found(write(batch, layout=layout), "RL060")
    assert (one.episode, one.row, one.count) == (2, 32, 2)
    assert one.message == "2 of 5 episodes are copies of others; episode 2 is one of episode 0"


def test_episodes_that_differ_in_one_value_are_no_copies(write: Write) -> None:
    batch = chosen(clean_batch((12, 20)), [0, 1, 0])
    seen = batch.observations["observation",].copy()
    seen[-1, 2] += 1  # after the last action: not in the hash
    assert found(write(changed(batch, observations={("observation",): seen})), "RL060") == []


def test_the_order_of_rows_counts(write: Write) -> None:
    batch = clean_batch((24,))
    order = np.arange(24)
    order[[0, 8]] = 8, 0
    swapped = {key: np.concatenate([column, column[order]]) for key, column in batch.steps.items()}
    seen = batch.observations["observation",]
    both = np.concatenate([seen, seen[[*order, 24]]])
    two = EpisodeBatch(np.array([24, 24]), swapped, {("observation",): both}, np.ones(2, bool))
    assert found(write(two), "RL060") == []


def test_one_step_episodes_are_not_looked_at(write: Write) -> None:
    assert found(write(chosen(clean_batch((1, 1)), [0, 1, 0])), "RL060") == []


@pytest.mark.parametrize("noise", [0, 1e-6])
def test_near_copies(write: Write, noise: float) -> None:
    batch = chosen(clean_batch([80] * 4), [0, 1, 2, 3, 1])
    rng = np.random.default_rng(1)

    def jittered(column: Any) -> Any:
        return (column * (1 + noise * rng.normal(size=column.shape))).astype(column.dtype)

    near = changed(
        batch,
        steps={("action",): jittered(batch.steps["action",])},
        observations={("observation",): jittered(batch.observations["observation",])},
    )
    path = write(near)
    if not noise:
        assert len(found(path, "RL060")) == 1
        assert found(path, "RL061") == []  # exact copies are the other rule's
        return
    assert found(path, "RL060") == []
    (one,) = found(path, "RL061")
    assert (one.episode, one.row, one.count) == (4, 320, 1)
    assert one.message.endswith("sampled rows of episode 1")


def test_states_of_a_small_grid_are_no_copies(write: Write) -> None:
    batch = clean_batch([40] * 20)
    rng = np.random.default_rng(2)
    grid = rng.integers(0, 3, (820, 3)).astype(np.float32)
    moves = rng.integers(0, 2, (800, 2)).astype(np.float32)
    path = write(changed(batch, steps={("action",): moves}, observations={("observation",): grid}))
    assert found(path, "RL061") == []


@LAYOUTS
def test_leakage(write: Write, layout: str) -> None:
    batch = clean_batch((12, 20, 9, 30))
    train = write(chosen(batch, [0, 1, 2]), layout=layout, name="door-train")
    test = write(chosen(batch, [3, 1]), layout="compact", name="door-test")
    (one,) = found([train, test], "RL062")
    assert (one.dataset, one.episode, one.row, one.count) == ("local:door-test@1", 1, 30, 1)
    assert one.severity == "error"
    assert one.message == (
        "1 of 2 episodes are also in local:door-train@1; episode 1 is its episode 1"
    )


def test_leakage_between_other_datasets_is_a_warning(write: Write) -> None:
    paths = [write(clean_batch(), name=name) for name in ("one", "other")]
    (found_one,) = found(paths, "RL062")
    assert (found_one.severity, found_one.count) == ("warning", 3)


def test_a_dataset_and_its_parent_share_episodes(write: Write) -> None:
    paths = [write(clean_batch(), name="one"), write(clean_batch(), parents=("local:one@1",))]
    assert found(paths, "RL062") == []
