from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offline_data.base.errors import UsageError
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.rows.derived import n_step


def steps_taken(of: Any, row: int, n: int) -> int:
    """Walk from a row, a step at a time."""
    episode, time = of.place[row]
    last = of.episodes[episode].length - 1
    taken = 0
    while taken < n and time + taken <= last:
        now = row + taken
        unknown = time + taken == last and not of.episodes[episode].known
        if taken and unknown and not of.terminated[now]:
            break
        taken += 1
        if of.terminated[now] or of.truncated[now]:
            break
    return taken


def check_rows(of: Any, found: Any, rows: list[int], n: int, gamma: float) -> None:
    for place, row in enumerate(rows):
        episode, time = of.place[row]
        taken = steps_taken(of, row, n)
        end = row + taken - 1
        total = 0.0
        for k in range(taken):
            total += gamma**k * float(of.reward[row + k])
        batch = found[place]
        assert batch["steps_to_next_obs"] == taken
        torch.testing.assert_close(float(batch["gamma"]), gamma**taken, rtol=1e-6, atol=1e-12)
        torch.testing.assert_close(float(batch["next", "reward"]), total)
        assert batch["next", "original_reward"] == of.reward[row]
        assert batch["next", "terminated"] == of.terminated[end]
        assert batch["next", "truncated"] == of.truncated[end]
        assert batch["next", "done"] == of.terminated[end] | of.truncated[end]
        assert batch["next", "bonus"].tolist() == of.truth.steps["next", "bonus"][end].tolist()
        state = of.state(episode, time + taken)
        np.testing.assert_array_equal(batch["next", "observation", "state"], state)
        root = of.state(episode, time)
        np.testing.assert_array_equal(batch["observation", "state"], root)
        assert batch["action"] == -root[0]


@pytest.mark.parametrize(
    ("n", "gamma", "layout"),
    [(1, 0.5, "compact"), (2, 0.0, "compact"), (3, 0.99, "ted"), (8, 1.0, "compact")],
)
def test_it_is_a_walk_along_the_episode(sets: Any, n: int, gamma: float, layout: Any) -> None:
    of = sets.write(layout=layout)
    rows = of.shuffled()
    batch, index = of.gather(rows)
    found = n_step(n, gamma)(batch, index, of.storage)
    assert index.tolist() == found["index"].tolist() == rows
    assert found["steps_to_next_obs"].dtype == torch.int64
    assert found["gamma"].dtype == torch.float32
    check_rows(of, found, rows, n, gamma)


def test_what_lies_behind_a_window_does_not_count(grown: Any, sets: Any, episode: Any) -> None:
    storage = grown(sets.write([episode(3, middle=0), episode(2)]))
    storage.content["next", "reward"] = torch.tensor([1, float("nan"), 3, 4, 5])[:, None]
    rows = torch.arange(5)
    found = n_step(4, 1.0)(storage.gather(rows), rows, storage)
    assert found["next", "reward"][[0, 2, 3, 4], 0].tolist() == [1, 3, 9, 5]


@pytest.mark.parametrize(
    ("missing", "steps"),
    [
        (["done"], [2, 1, 2, 1]),
        (["done", "truncated"], [2, 1, 2, 1]),
        (["done", "truncated", "terminated"], [4, 3, 2, 1]),
    ],
)
def test_flags_that_a_storage_lacks(
    grown: Any, sets: Any, episode: Any, missing: list[str], steps: list[int]
) -> None:
    storage = grown(sets.write([episode(4, middle=1), episode(2)]))
    for name in missing:
        del storage.content["next", name]
    rows = torch.arange(4)
    found = n_step(4, 1.0)(storage.gather(rows), rows, storage)
    assert found["steps_to_next_obs"].tolist() == steps


def test_a_buffer_with_few_leaves(sets: Any, episode: Any) -> None:
    of = sets.write([episode(3)], keys=["next.reward"])
    found = of.derive(n_step(2, 1.0))
    assert set(found.keys(include_nested=True, leaves_only=True)) == {
        "index",
        "gamma",
        "steps_to_next_obs",
        ("next", "reward"),
        ("next", "original_reward"),
    }
    assert found["steps_to_next_obs"].tolist() == [2, 2, 1]


def test_a_buffer_without_rewards(sets: Any, episode: Any) -> None:
    of = sets.write([episode(3)])
    ds = BaseDatasetExperienceReplay(of.path, 2, derived=[n_step(2)], keys=["action"])
    with pytest.raises(UsageError, match="needs the leaf 'next/reward'"):
        ds.sample()
