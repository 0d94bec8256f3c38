from __future__ import annotations

import math
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offline_data as od
from offline_data.base.errors import UsageError
from offline_data.episode.fields import next_of
from offline_data.rows.derived import relabel
from offline_data.rows.derived.relabel import random_numbers
from tests import oracles_derived as oracle
from tests.toys.ogbench import toy_arrays, write_ogbench

GOAL, ACHIEVED = ("observation", "desired_goal"), ("observation", "achieved_goal")
STATE = ("observation", "state")


def distance(achieved: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
    return -(achieved - goals).abs().sum(-1, keepdim=True)


LAWS = ("current", "final", "future", "geometric", "episode", "random")


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("p", "dense", "terminate"), [(0.5, True, False), (1.0, False, True), (0.0, False, False)]
)
def test_goals_rewards_and_flags(
    sets: Any, law: Any, p: float, dense: bool, terminate: bool
) -> None:
    of = sets.write(layout="ted" if dense else "compact")
    rows = np.array(of.shuffled())
    batch, index = of.gather(rows)
    before = batch.clone()
    reward_fn = distance if dense else None
    derived = relabel(law, p, reward_fn=reward_fn, terminate=terminate, seed=len(law))
    found = derived(batch, index, of.storage)
    goals = found[GOAL].numpy()
    assert found[next_of(GOAL)].equal(found[GOAL])
    moved = (goals != of.leaf(GOAL)[rows]).any(1)
    unknown = np.isin(
        rows, [stop - 1 for (_, stop), known in zip(of.bounds, of.known, strict=True) if not known]
    )
    assert not (moved & unknown).any()
    assert (moved | unknown).all() if p == 1 else moved.any() == (p > 0)
    after, stored = of.leaf(next_of(ACHIEVED)), of.leaf(ACHIEVED)
    for goal, row in zip(goals[moved].tolist(), rows[moved].tolist(), strict=True):
        reached = [stored[row]]
        if law != "current":
            reached = after[[*oracle.goal_rows(law, row, of.bounds, of.known, of.valid)]]
        assert goal in np.array(reached).tolist()
    there = (after[rows] == goals).all(1)
    reward = -np.abs(after[rows] - goals).sum(1) if dense else there - 1.0
    ended = there if terminate else of.terminated[rows]
    for name, value in (
        ("reward", reward),
        ("terminated", ended),
        ("done", ended | of.truncated[rows]),
    ):
        want = np.where(moved, value, before["next", name][:, 0].numpy())
        np.testing.assert_array_equal(found["next", name][:, 0], want)
    for key in before.keys(include_nested=True, leaves_only=True):
        if key not in {GOAL, next_of(GOAL)} and key[0] != "next":
            assert found[key].equal(before[key])


def goals_of(found: Any) -> list[float]:
    return [float(goal) for goal in found[GOAL][:, 0]]


MANY = 10_000


def assert_distribution(found: Counter[float], want: dict[float, float]) -> None:
    """Pearson's test at 0.1 %, the quantile by Wilson and Hilferty; nothing else was drawn."""
    assert math.isclose(sum(want.values()), 1)
    assert set(found) <= {goal for goal, p in want.items() if p > 0}
    expected = {goal: p * MANY for goal, p in want.items() if p * MANY >= 5}
    error = sum((found[goal] - many) ** 2 / many for goal, many in expected.items())
    free = max(len(expected) - 1, 1)
    third = 2 / (9 * free)
    assert error < free * (1 - third + 3.09 * math.sqrt(third)) ** 3


def uniform(*goals: float) -> dict[float, float]:
    return dict.fromkeys(goals, 1 / len(goals))


@pytest.mark.parametrize("row", [3, 6, 8])
def test_distributions_of_goals(sets: Any, episode: Any, row: int) -> None:
    """Rows 0-5, 6, 7-10; the state after row 10 is not known, and it is not terminated."""
    of = sets.write(
        [episode(6), episode(1), episode(4, "truncated", False), episode(2, "terminated", False)]
    )
    number, time = of.place[row]
    last = of.episodes[number].length - (0 if of.episodes[number].known else 1)
    goal = {t: float(of.state(number, t, ACHIEVED)[0]) for t in range(last + 1)}
    geometric = {goal[time + d]: 0.3 * 0.7 ** (d - 1) for d in range(1, last - time)}
    geometric[goal[last]] = 1 - sum(geometric.values())
    assert sorted({*range(of.rows)} - {*of.valid}) == [10]
    anywhere = of.leaf(next_of(ACHIEVED))[of.valid, 0].tolist()
    wants: dict[Any, dict[float, float]] = {
        "current": {goal[time]: 1.0},
        "final": {goal[last]: 1.0},
        "future": uniform(*(goal[t] for t in range(time + 1, last + 1))),
        "episode": uniform(*(goal[t] for t in range(1, last + 1))),
        "geometric": geometric,
        "random": {one: n / len(anywhere) for one, n in Counter(anywhere).items()},
    }
    half = dict.fromkeys(wants["final"], 0.25) | {7e6 + number: 0.5}
    of_two = Counter(
        goals_of(of.derive(relabel({"current": 0.5, "final": 0.5}, 0.5, seed=3), [row] * MANY))
    )
    assert_distribution(of_two, half | {goal[time]: half.get(goal[time], 0) + 0.25})
    for strategy, want in wants.items():
        found = of.derive(relabel(strategy, 1, gamma=0.7, seed=1), [row] * MANY)
        assert_distribution(Counter(goals_of(found)), want)


def test_geometric_at_its_ends(sets: Any, episode: Any) -> None:
    of = sets.write([episode(6)])
    for gamma, time in ((0.0, 1), (1 - 1e-15, 6)):
        found = of.derive(relabel("geometric", 1, gamma=gamma, seed=0), [0] * 100)
        assert set(goals_of(found)) == {float(of.state(0, time, ACHIEVED)[0])}


def test_random_numbers_are_uniform_over_batches_and_leave_torchs_own_alone() -> None:
    torch.manual_seed(0)
    want = torch.rand(1)
    torch.manual_seed(0)
    numbers = torch.stack([random_numbers(0, torch.tensor([k, 1]), 1)[0] for k in range(2000)])
    assert torch.rand(1).equal(want)
    counts = np.histogram(numbers[:, 1].numpy(), bins=10, range=(0, 1))[0]
    assert ((counts - 200) ** 2 / 200).sum() < 27.9  # 9 degrees of freedom, 0.1 %
    assert abs(float(torch.corrcoef(numbers.T)[0, 1])) < 0.07
    assert random_numbers(2**63 - 1, torch.zeros(0, dtype=torch.int64), 2).shape == (2, 0)


def test_goals_are_drawn_apart_for_rows_and_batches(sets: Any, episode: Any) -> None:
    of = sets.write([episode(40), episode(40)])
    derived = relabel("episode", 1, seed=0)
    first = goals_of(of.derive(derived, [3] * 50))
    assert len(set(first)) > 20
    assert goals_of(of.derive(derived, [3] * 50)) == first
    other = goals_of(of.derive(derived, [3] * 49 + [4]))
    assert other[:49] != first[:49]
    again = relabel("episode", 1, seed=1)
    assert goals_of(of.derive(again, [3] * 50)) != first
    torch.manual_seed(4)
    one = relabel()
    torch.manual_seed(4)
    assert relabel() == one
    assert relabel() != one


def test_goals_where_there_were_none(sets: Any, episode: Any) -> None:
    of = sets.write(
        [episode(3), episode(2, "terminated", False), episode(1, "terminated", False)],
        keys=["action", "next", STATE],
    )
    derived = relabel("future", 1, goal_key="goal", achieved_key=STATE, seed=0)
    batch, rows = of.gather()
    before = batch["next", "reward"].clone()
    found = derived(batch, rows, of.storage)
    assert found["goal"].equal(found["next", "goal"])
    assert found["goal"][2:4, 0].tolist() == [1004, 2002]
    # Where the next state is not known: its own, and the reward it had.
    assert found["goal"][4:, 0].tolist() == [2002, 3001]
    assert found["next", "reward"][4:].equal(before[4:])
    assert found["next", "reward"][2:4, 0].tolist() == [0, 0]


def test_near_is_reached(sets: Any, episode: Any) -> None:
    of = sets.write([episode(4)])
    for threshold, want in [(0, [-1, -1, -1, 0]), (1.5, [-1, -1, 0, 0]), (10, [0, 0, 0, 0])]:
        derived = relabel("final", 1, threshold=threshold, seed=0)
        found = of.derive(derived)
        assert found["next", "reward"][:, 0].tolist() == want
    whole_states = relabel("final", 1, goal_key="goal", achieved_key="image", threshold=5, seed=0)
    assert of.derive(whole_states)["next", "reward"][:, 0].tolist() == [-1, -1, 0, 0]


def test_goals_are_a_part_of_a_leaf(grown: Any, sets: Any, episode: Any) -> None:
    """As D4RL's ant, whose observations begin with its position; goals have a dtype of their own."""
    storage, rows = grown(sets.write([episode(3), episode(2)])), torch.arange(5)
    stored = storage.gather(rows)
    goals = torch.full((5, 2), -7.0, dtype=torch.float64)
    storage.content["info"] = {"goal": goals}
    names: Any = {"goal_key": ("info", "goal"), "achieved_key": STATE}
    assert stored[STATE].shape == (5, 3)
    derived = relabel("final", 1, **names, achieved_part=slice(2), terminate=True, seed=0)
    assert hash(derived) == hash(pickle.loads(pickle.dumps(derived)))  # noqa: S301 - our own
    found = derived(storage.gather(rows), rows, storage)
    ends = stored[next_of(STATE)][[2, 2, 2, 4, 4], :2]
    assert found["info", "goal"].dtype == torch.float64
    assert found["info", "goal"].tolist() == ends.tolist()
    assert found["next", "info", "goal"].tolist() == ends.tolist()
    assert found["next", "reward"][:, 0].tolist() == [-1, -1, 0, -1, 0]
    assert found["next", "terminated"][:, 0].tolist() == [False, False, True, False, True]
    assert found[STATE].equal(stored[STATE])
    last = relabel("current", 1, **names, achieved_part=slice(1, None), seed=0)
    found = last(storage.gather(rows), rows, storage)
    assert found["info", "goal"].tolist() == stored[STATE][:, 1:].tolist()
    with pytest.raises(UsageError, match=r"'info/goal' is .* \[2\], .* \[3\]") as caught:
        relabel("final", 1, **names, seed=0)(storage.gather(rows), rows, storage)
    assert "achieved_part=slice(2)" in str(caught.value.hint)


def test_rewards_are_like_those_stored(grown: Any, sets: Any, episode: Any) -> None:
    storage, rows = grown(sets.write([episode(3)])), torch.arange(3)
    for dtype, made in ((torch.float64, torch.float64), (torch.int64, torch.float32)):
        storage.content["next", "reward"] = torch.zeros(3, 1, dtype=dtype)
        derived = relabel("final", 1, reward_fn=lambda a, g: -(a - g).norm(dim=-1) / 4, seed=0)
        found = derived(storage.gather(rows), rows, storage)["next", "reward"]
        assert found.dtype == made
        np.testing.assert_allclose(found[:, 0], [-(2**0.5) / 2, -(2**0.5) / 4, 0], rtol=1e-6)


def test_rewards_where_there_were_none(tmp_path: Path) -> None:
    path = write_ogbench(tmp_path / "x-v0.npz", toy_arrays("pointmaze", (4, 2, 6)))
    od.convert(path, "toy", root=tmp_path / "root", progress=False)
    goals = relabel("future", 1, goal_key="goal", achieved_key="observation", seed=3)
    dataset = od.load_dataset("local:toy", 4, root=tmp_path / "root", derived=goals)
    batch = dataset[:]
    reached = (batch["next", "observation"] == batch["goal"]).all(1, keepdim=True)
    assert batch["next", "reward"].tolist() == (reached.float() - 1).tolist()
    assert 0 < int(reached.sum()) < len(batch)
    assert dataset.sample()["next", "reward"].shape == (4, 1)
    some = relabel("future", 0.5, goal_key="goal", achieved_key="observation")
    dataset = od.load_dataset("local:toy", 4, root=tmp_path / "root", derived=some)
    with pytest.raises(UsageError, match="needs the feature"):
        dataset.sample()


def test_rewards_before_an_unknown_state_are_not_invented(sets: Any) -> None:
    of = sets.write()
    rows = sorted({*range(of.rows)} - {*of.valid})
    assert rows
    batch, index = of.gather(rows)
    del batch["next", "reward"]
    found = relabel("future", 1, goal_key="goal", achieved_key=ACHIEVED)(batch, index, of.storage)
    assert found["next", "reward"].isnan().all()
