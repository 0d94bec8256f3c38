from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.derived import frame_stack, n_step, normalize, relabel, return_to_go
from offline_data.errors import UsageError

pytestmark = pytest.mark.usefixtures("gathering")

FEW = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


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


@FEW
@given(data=st.data(), n=st.integers(1, 8), gamma=st.sampled_from((0.0, 0.5, 0.99, 1.0)))
def test_it_is_a_walk_along_the_episode(sets: Any, data: Any, n: int, gamma: float) -> None:
    of = sets.write(*data.draw(sets.strategy))
    rows = data.draw(st.permutations([*range(of.rows), 0]))
    batch, index = of.gather(rows)
    found = n_step(n, gamma)(batch, index, of.storage)
    assert index.tolist() == found["index"].tolist() == rows
    check_rows(of, found, rows, n, gamma)


@pytest.mark.parametrize(
    ("end", "known", "steps"),
    [
        ("truncated", True, [3, 3, 2, 1]),
        ("terminated", True, [3, 3, 2, 1]),
        ("neither", True, [3, 3, 2, 1]),
        ("terminated", False, [3, 3, 2, 1]),
        ("truncated", False, [3, 2, 1, 1]),
        ("neither", False, [3, 2, 1, 1]),
    ],
)
def test_where_windows_end(
    sets: Any, episode: Any, end: str, known: bool, steps: list[int]
) -> None:
    of = sets.write([episode(4, end, known), episode(2)])
    found = of.derive(n_step(3), [0, 1, 2, 3])
    assert found["steps_to_next_obs"].tolist() == steps
    last = [float(of.state(0, t + m)[0]) for t, m in enumerate(steps)]
    assert found["next", "observation", "state"][:, 0].tolist() == last


def test_one_step_is_the_transition(sets: Any, episode: Any) -> None:
    of = sets.write([episode(3), episode(2, "truncated")])
    batch, rows = of.gather()
    before = batch.clone()
    found = n_step(1, 0.9)(batch, rows, of.storage)
    for key in before.keys(include_nested=True, leaves_only=True):
        assert found[key].equal(before[key]), key
    assert found["steps_to_next_obs"].tolist() == [1] * 5
    assert found["steps_to_next_obs"].dtype == torch.int64
    assert found["gamma"].shape == (5,)
    assert found["gamma"].dtype == torch.float32


def test_leaves_are_contiguous_and_apart(sets: Any, episode: Any) -> None:
    of = sets.write([episode(5)])
    found = of.derive(n_step(2))
    leaves = [found[key] for key in found.keys(include_nested=True, leaves_only=True)]
    assert all(leaf.is_contiguous() for leaf in leaves)
    places = [leaf.untyped_storage().data_ptr() for leaf in leaves if leaf.numel()]
    assert len(set(places)) == len(places)


def test_whole_numbers_and_nan_as_rewards(grown: Any, sets: Any, episode: Any) -> None:
    storage = grown(sets.write([episode(3), episode(3)]))
    storage.content["next", "reward"] = torch.arange(1, 7)[:, None]
    rows = torch.arange(6)
    found = n_step(2, 0.5)(storage.gather(rows), rows, storage)
    assert found["next", "reward"].dtype == torch.float32
    assert found["next", "reward"][:, 0].tolist() == [2.0, 3.5, 3.0, 6.5, 8.0, 6.0]
    storage.content["next", "reward"] = torch.tensor([1, float("nan"), 3, 4, 5, 6])[:, None]
    found = n_step(2, 0.5)(storage.gather(rows), rows, storage)
    assert found["next", "reward"][:, 0].isnan().tolist() == [True, True, *[False] * 4]


def test_what_lies_behind_a_window_does_not_count(grown: Any, sets: Any, episode: Any) -> None:
    storage = grown(sets.write([episode(3, middle=0), episode(2)]))
    storage.content["next", "reward"] = torch.tensor([1, float("nan"), 3, 4, 5])[:, None]
    rows = torch.arange(5)
    found = n_step(4, 1.0)(storage.gather(rows), rows, storage)
    assert found["next", "reward"][[0, 2, 3, 4], 0].tolist() == [1, 3, 9, 5]


def test_a_storage_that_grows(grown: Any, sets: Any, episode: Any) -> None:
    of, more = sets.write([episode(2, "neither")]), sets.write([episode(4)])
    storage, derived = grown(of), n_step(3, 1.0)
    rows = torch.arange(2)
    found = derived(storage.gather(rows), rows, storage)
    assert found["steps_to_next_obs"].tolist() == [2, 1]
    storage.extend(grown(more).content)
    rows = torch.arange(6)
    found = derived(storage.gather(rows), rows, storage)
    assert found["steps_to_next_obs"].tolist() == [2, 1, 3, 3, 2, 1]
    want = [float(of.state(0, t)[0]) for t in (2, 2)] + [
        float(more.state(0, t)[0]) for t in (3, 4, 4, 4)
    ]
    assert found["next", "observation", "state"][:, 0].tolist() == want


def test_flags_and_rewards_without_a_last_dimension(grown: Any, sets: Any, episode: Any) -> None:
    storage = grown(sets.write([episode(3, middle=0)]))
    for name in ("reward", "terminated", "truncated", "done"):
        storage.content["next", name] = storage.content["next", name][:, 0]
    rows = torch.arange(3)
    found = n_step(3, 1.0)(storage.gather(rows), rows, storage)
    assert found["steps_to_next_obs"].tolist() == [1, 2, 1]
    assert found["next", "reward"].shape == (3,)


@pytest.mark.parametrize(
    ("missing", "steps"),
    [
        (["done"], [2, 1, 2, 1]),
        (["truncated", "terminated"], [2, 1, 2, 1]),
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


def test_through_a_buffer(sets: Any, episode: Any) -> None:
    of = sets.write([episode(4), episode(1, "truncated", False), episode(3, "truncated", False)])
    ds = BaseDatasetExperienceReplay(of.path, 16, derived=[n_step(2, 0.5)])
    again = pickle.loads(pickle.dumps(ds))  # noqa: S301
    for buffer in (ds, again):
        for _ in range(4):
            batch = buffer.sample()
            check_rows(of, batch, batch["index"].tolist(), 2, 0.5)


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


def test_it_is_a_value() -> None:
    one, other = n_step(3), n_step(3, 0.99)
    assert one == other == pickle.loads(pickle.dumps(one))  # noqa: S301
    assert len({one, other, n_step(4)}) == 2
    assert repr(one) == "n_step(3, gamma=0.99)"


def test_what_cannot_be_meant(sets: Any, episode: Any) -> None:
    with pytest.raises(UsageError, match="n is 0"):
        n_step(0)
    for gamma in (-0.1, 1.1, float("nan")):
        with pytest.raises(UsageError, match="gamma is"):
            n_step(2, gamma)
    of = sets.write([episode(3)])
    ds = BaseDatasetExperienceReplay(of.path, 2, derived=[n_step(2)], split_trajs=True)
    with pytest.raises(UsageError, match="whole episodes"):
        ds.sample()
    ds = BaseDatasetExperienceReplay(of.path, 2, derived=[n_step(2)], keys=["action"])
    with pytest.raises(UsageError, match="needs the leaf 'next/reward'"):
        ds.sample()


@pytest.mark.parametrize(
    "before",
    [
        frame_stack(2),
        normalize(),
        relabel("random", 1, seed=0),
        n_step(2),
        return_to_go(key="next.sum"),
    ],
)
def test_what_was_changed_before_is_not_taken_back(sets: Any, episode: Any, before: Any) -> None:
    of = sets.write([episode(4), episode(4)])
    ds = BaseDatasetExperienceReplay(of.path, 8, derived=[before, n_step(2)])
    with pytest.raises(UsageError, match="n_step takes the leaf 'next/") as caught:
        ds[:]
    assert "n_step or relabel, frame_stack" in str(caught.value.hint)
