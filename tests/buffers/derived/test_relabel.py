from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.derived import Derived, frame_stack, n_step, normalize, relabel
from offline_data.buffers.samplers import RandomSampler
from offline_data.episodes.fields import next_of
from offline_data.errors import UsageError

pytestmark = pytest.mark.usefixtures("gathering")

GOAL, ACHIEVED = ("observation", "desired_goal"), ("observation", "achieved_goal")
STATE = ("observation", "state")


def distance(achieved: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
    return -(achieved - goals).abs().sum(-1, keepdim=True)


def states(of: Any, law: str, row: int) -> set[tuple[float, ...]]:
    """List what a law may choose for a row, an observation at a time."""
    episode, time = of.place[row]
    one = of.episodes[episode]
    final = one.length if one.known else one.length - 1
    everywhere = {
        (e, t + 1)
        for e, other in enumerate(of.episodes)
        for t in range(other.length)
        if t < other.length - 1 or other.known or of.terminated[of.row(e, t)]
    }
    times = {
        "current": {(episode, time)},
        "final": {(episode, final)},
        "future": {(episode, t) for t in range(time + 1, final + 1)},
        "geometric": {(episode, t) for t in range(time + 1, final + 1)},
        "episode": {(episode, t) for t in range(1, final + 1)},
        "random": everywhere,
    }
    return {tuple(of.state(*place, ACHIEVED).tolist()) for place in times[law]}


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.data(),
    law=st.sampled_from(("current", "final", "future", "geometric", "episode", "random")),
    p=st.sampled_from((0.0, 0.5, 1.0)),
    dense=st.booleans(),
    terminate=st.booleans(),
)
def test_goals_rewards_and_flags(
    sets: Any, data: Any, law: Any, p: float, dense: bool, terminate: bool
) -> None:
    of = sets.write(*data.draw(sets.strategy))
    rows = data.draw(st.permutations([*range(of.rows), 0]))
    fn = distance if dense else None
    derived = relabel(law, p, reward_fn=fn, terminate=terminate, seed=data.draw(st.integers(0, 9)))
    batch, index = of.gather(rows)
    before = batch.clone()
    found = derived(batch, index, of.storage)
    moved = 0
    for place, row in enumerate(rows):
        episode, time = of.place[row]
        goal = tuple(found[GOAL][place].tolist())
        assert goal == tuple(found[next_of(GOAL)][place].tolist())
        own = tuple(of.state(episode, time, GOAL).tolist())
        unknown = time == of.episodes[episode].length - 1 and not of.episodes[episode].known
        if goal == own:
            assert p < 1 or unknown
            assert found["next", "reward"][place] == before["next", "reward"][place]
            assert found["next", "terminated"][place] == of.terminated[row]
            continue
        moved += 1
        assert not unknown
        assert goal in states(of, law, row)
        achieved = of.state(episode, time + 1, ACHIEVED)
        there = achieved.tolist() == list(goal)
        want = -np.abs(achieved - np.array(goal)).sum() if dense else float(there) - 1
        assert found["next", "reward"][place] == want
        assert found["next", "terminated"][place] == (there if terminate else of.terminated[row])
        done = bool(found["next", "terminated"][place]) or of.truncated[row]
        assert found["next", "done"][place] == done
    assert p > 0 or moved == 0
    for key in before.keys(include_nested=True, leaves_only=True):
        if key not in {GOAL, next_of(GOAL)} and key[0] != "next":
            assert found[key].equal(before[key])


def goals_of(found: Any) -> list[float]:
    return [float(goal) for goal in found[GOAL][:, 0]]


def test_the_share_of_rows_and_of_laws(sets: Any, episode: Any) -> None:
    of = sets.write([episode(6), episode(4)])
    rows = [2] * 20_000
    mixture = relabel({"current": 0.25, "final": 0.75}, 0.5, seed=3)
    found = goals_of(of.derive(mixture, rows))
    shares = [found.count(goal) / len(rows) for goal in (1003.0, 1007.0, 7e6)]
    np.testing.assert_allclose(shares, [0.125, 0.375, 0.5], atol=0.015)  # four deviations


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


def test_prefetching_changes_no_goal(sets: Any, episode: Any) -> None:
    of = sets.write([episode(30), episode(20)])

    def goals(prefetch: int | None) -> list[list[float]]:
        derived = [relabel({"geometric": 0.5, "random": 0.5}, seed=5)]
        ds = BaseDatasetExperienceReplay(
            of.path, 16, sampler=RandomSampler(seed=2), derived=derived, prefetch=prefetch
        )
        return [goals_of(ds.sample()) for _ in range(20)]

    want = goals(None)
    assert goals(4) == want
    assert len({tuple(batch) for batch in want}) == 20


def test_the_seed_comes_from_torch_where_none_is_given() -> None:
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


def test_leaves_are_contiguous_and_apart(sets: Any, episode: Any) -> None:
    of = sets.write([episode(4)])
    found = of.derive(relabel("final", 1, terminate=True, seed=0))
    leaves = [found[key] for key in found.keys(include_nested=True, leaves_only=True)]
    assert all(leaf.is_contiguous() for leaf in leaves)
    assert len({leaf.untyped_storage().data_ptr() for leaf in leaves}) == len(leaves)


def test_a_storage_that_grows(grown: Any, sets: Any, episode: Any) -> None:
    storage, derived = grown(sets.write([episode(2)])), relabel("final", 1, seed=0)
    rows = torch.arange(2)
    assert goals_of(derived(storage.gather(rows), rows, storage)) == [1003, 1003]
    storage.extend(grown(sets.write([episode(2), episode(2)])).content[2:])
    rows = torch.arange(4)
    assert goals_of(derived(storage.gather(rows), rows, storage)) == [1003, 1003, 2003, 2003]


def test_with_frames_and_scales(sets: Any, episode: Any) -> None:
    of = sets.write([episode(4), episode(2)])
    derived: list[Derived] = [
        relabel("final", 1, seed=0),
        frame_stack(2, [STATE]),
        normalize(["observation"], dict.fromkeys((GOAL, ACHIEVED, STATE), (1.0, 2.0)), eps=0),
    ]
    ds = BaseDatasetExperienceReplay(of.path, 8, derived=derived)
    batch = pickle.loads(pickle.dumps(ds))[:]  # noqa: S301
    assert (batch[GOAL][:, 0] * 2 + 1).tolist() == [1005] * 4 + [2003] * 2
    assert batch["observation", "state"].shape == (6, 2, 3)


def test_it_is_a_value() -> None:
    one = relabel(reward_fn=distance, seed=1)
    assert one == pickle.loads(pickle.dumps(relabel(reward_fn=distance, seed=1)))  # noqa: S301
    assert len({one, relabel(seed=1), relabel(seed=2), relabel(seed=1)}) == 3
    assert repr(relabel("final", 1, seed=1)) == (
        "relabel('final', 1.0, goal_key='observation/desired_goal', "
        "achieved_key='observation/achieved_goal', reward_fn=None, threshold=0.0, "
        "terminate=False, gamma=0.99, seed=1)"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "past"}, "strategy is 'past'"),
        ({"p": 1.2}, r"p is 1\.2"),
        ({"threshold": -1}, "threshold is -1"),
        ({"gamma": 1}, "gamma below 1"),
        ({"gamma": 2}, "gamma is 2"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "seed is"),
    ],
)
def test_arguments_that_cannot_be_meant(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        relabel(**options)


@pytest.mark.parametrize(
    ("derived", "message"),
    [
        ([relabel(achieved_key="achieved", seed=0)], "needs the leaf 'achieved'"),
        ([relabel(goal_key="goal", seed=0)], "needs the leaf 'goal'"),
        (
            [relabel(goal_key=STATE, seed=0)],
            r"'observation/state' is torch\.flo",
        ),
        ([n_step(2), relabel(seed=0)], "do not go together"),
        ([relabel("random", 1, seed=0), n_step(2)], "n_step takes the leaf"),
        ([normalize(), relabel(seed=0)], "relabel takes the leaf 'observation/achieved_goal'"),
        ([frame_stack(2), relabel(seed=0)], "relabel takes the leaf 'observation/achieved_goal'"),
    ],
)
def test_batches_it_cannot_do(sets: Any, episode: Any, derived: Any, message: str) -> None:
    of = sets.write([episode(5)])
    ds = BaseDatasetExperienceReplay(of.path, 5, derived=derived)
    with pytest.raises(UsageError, match=message):
        ds[:]
    split = BaseDatasetExperienceReplay(of.path, 1, derived=[relabel(seed=0)], split_trajs=True)
    with pytest.raises(UsageError, match="whole episodes"):
        split.sample()
