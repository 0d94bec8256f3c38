from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data.base.errors import StepError
from offline_data.pipeline.preprocess.functions.episodes import EpisodeStep
from offline_data.pipeline.preprocess.steps.base import Revision
from offline_data.testing.chunks import (
    as_stored,
    assert_same_chunk,
    episodes_of,
    join_chunks,
    toy_chunk,
    with_leaves,
)
from tests.pipeline.preprocess.functions.loops import (
    ACTION,
    DONE,
    POSITION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VELOCITY,
    Fn,
    after,
    run,
    ted_rows,
)

CHUNK = toy_chunk([4, 1, 5, 3], first_episode=1, unknown_final=[2, 3])
ROWS = ted_rows(CHUNK)
ENDS = {3: True, 4: False, 9: False, 12: True}
"""Last rows of the episodes, and whether the observation after them is known."""


def of(fn: Fn, chunk: Any = CHUNK) -> Any:
    return run(fn, chunk, by="episode")[0]


def longer(change: Fn) -> Fn:
    """Change episodes of several rows alone."""
    return lambda td: change(td) if len(td) > 1 else td


def terminated_early(td: Any) -> Any:
    td = td[:2].clone()
    td["next", "terminated"][-1] = True
    return td


def skipping(td: Any) -> Any:
    """Take every second step, its next observation two steps on."""
    first = td[::2].clone()
    first["next"] = td[torch.arange(1, len(td) + 1, 2).clamp(max=len(td) - 1)]["next"].clone()
    return first


ALL = [[0, 1, 2, 3], [4], [5, 6, 7, 8, 9], [10, 11, 12]]
CUT = [[0, 1, 2], [4], [5, 6, 7, 8], [10, 11]]
CASES: dict[str, tuple[Fn, list[list[int]], list[bool] | None]] = {
    # name: function, the rows of the chunk that are left, by episode, and, where rows cannot tell,
    # whether the last observation is known
    "all": (lambda td: td, ALL, None),
    "two": (lambda td: td[:2], [[0, 1], [4], [5, 6], [10, 11]], None),
    "the end": (longer(lambda td: td[1:]), [[1, 2, 3], [4], [6, 7, 8, 9], [11, 12]], None),
    "the beginning": (longer(lambda td: td[:-1]), CUT, None),
    "every second": (lambda td: td[::2], [[0, 2], [4], [5, 7, 9], [10, 12]], None),
    "twice": (lambda td: torch.cat([td, td]), [2 * rows for rows in ALL], None),
    "some": (lambda td: None if len(td) in {1, 5} else td, [ALL[0], ALL[3]], None),
    "no index": (
        lambda td: longer(lambda td: td[:-1])(td).exclude("index"), CUT, [True, False, False, True],
    ),
    "another index": (
        longer(lambda td: td[:-1].set("index", torch.arange(len(td) - 1))), CUT, [True, False, False, True],
    ),
    "an index of another shape": (
        lambda td: longer(lambda td: td[:-1])(td.set("index", td["index"].unsqueeze(-1))), CUT, [True, False, False, True],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rows_that_are_left(name: str) -> None:
    """An episode that ends earlier is truncated there; what came next is known then."""
    fn, wanted, final = CASES[name]
    found = of(fn)
    assert found.batch.lengths.tolist() == [len(rows) for rows in wanted]
    numbers = [1 + next(n for n, rows in enumerate(ALL) if one[0] in rows) for one in wanted]
    assert found.episodes.tolist() == numbers
    assert found.batch.episodes["seed",].tolist() == [100 + number for number in numbers]
    assert found.rows.tolist() == [4 + ALL[number - 1][0] for number in numbers]
    for rows, numbers in zip(map(ted_rows, episodes_of(found)), wanted, strict=True):
        for t, (row, number) in enumerate(zip(rows, numbers, strict=True)):
            cut = final is None and t == len(numbers) - 1 and number not in ENDS
            for key in (ACTION, REWARD, POSITION, after(POSITION), ("mission",), TERMINATED):
                assert (row[key] == ROWS[number][key]).all()
            if final is None:
                assert row[TRUNCATED].item() is (cut or bool(ROWS[number][TRUNCATED]))
                assert row[DONE].item() is (cut or bool(ROWS[number][DONE]))
    known = [ENDS.get(rows[-1], True) for rows in wanted]
    assert found.batch.final_observation.tolist() == (final or known)


def test_an_episode_that_is_terminated_earlier_is_not_truncated() -> None:
    found = of(terminated_early).batch.steps
    assert found[TRUNCATED][:2].tolist() == [[False], [False]]
    assert found[TERMINATED][:2].tolist() == [[False], [True]]


def test_an_episode_at_a_time() -> None:
    """Values may come from anywhere in the episode, and from nowhere else."""
    seen = []

    def to_go(td: Any) -> Any:
        seen.append((int(td["episode"][0]), tuple(td.batch_size), td["index"].tolist()))
        td["to_go"] = td["next", "reward"].flip(0).cumsum(0).flip(0)
        td["next", "reward"] = td["next", "reward"] / td["next", "reward"].max()
        return td

    step = EpisodeStep(to_go).settled(CHUNK)
    seen.clear()
    found = step.apply(as_stored(CHUNK))
    assert seen == [(n + 1, (len(rows),), [4 + r for r in rows]) for n, rows in enumerate(ALL)]
    rows = ted_rows(found)
    for numbers in ALL:
        rewards = [ROWS[number][REWARD].item() for number in numbers]
        for t, number in enumerate(numbers):
            assert rows[number]["to_go",].item() == sum(rewards[t:])
            assert rows[number][REWARD].item() == np.float32(rewards[t] / max(rewards))
    assert_same_chunk(step.apply(CHUNK), found)


def test_longer_episodes() -> None:
    def slower(td: Any) -> Any:
        twice = td[torch.arange(2 * len(td)) // 2].clone()
        for root in (twice, twice["next"]):
            root["observation", "position"] = root["observation", "position"].float()
        return twice

    chunk = toy_chunk([3, 2])
    found, step = run(slower, chunk, by="episode")
    assert found.batch.lengths.tolist() == [6, 4]
    assert step.explicit_next == ("info/code", "observation/position", "observation/velocity")
    rows, old = ted_rows(found), ted_rows(chunk)
    for t, row in enumerate(rows):
        for key in (ACTION, REWARD, VELOCITY, ("next", "info", "code"), after(POSITION)):
            assert (row[key] == old[t // 2][key]).all()
        assert row[POSITION].dtype == np.float32
    assert found.row_numbers.tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6]


def test_one_copy_where_observations_follow_each_other() -> None:
    found, step = run(skipping, toy_chunk([4, 5, 1]), by="episode")
    assert step.explicit_next == ()
    position = found.batch.observations[POSITION][:, 0]
    assert position.tolist() == [1, 3, 5, 1001, 1003, 1005, 1006, 2001, 2002]


def test_all_left_out() -> None:
    """A chunk without episodes has the columns that others have."""
    step = EpisodeStep(lambda td: td.set("x", td["action"][:, 0]) if len(td) > 3 else None)
    step = step.settled(CHUNK)
    found, kept = step.apply(episodes_of(CHUNK)[1]), step.apply(CHUNK)
    assert (found.batch.transitions, len(found.episodes)) == (0, 0)
    for table in ("steps", "observations", "episodes"):
        mine, theirs = (
            {key: (column.dtype, column.shape[1:]) for key, column in getattr(one.batch, table).items()}
            for one in (found, kept)
        )  # fmt: skip
        assert mine == theirs
    assert_same_chunk(join_chunks([step.apply(one) for one in episodes_of(CHUNK)]), kept)


def test_all_of_the_probe_left_out() -> None:
    """What is returned is guessed to be what was given, until there is something."""
    probe, rest = episodes_of(CHUNK)[1], CHUNK
    same = EpisodeStep(lambda td: td if len(td) > 3 else None).settled(probe)
    assert same.guessed
    assert same.apply(rest).episodes.tolist() == [1, 3]

    other = EpisodeStep(lambda td: td.exclude("info", ("next", "info")) if len(td) > 3 else None)
    step = other.settled(probe)
    assert step.apply(probe).batch.transitions == 0
    with pytest.raises(Revision, match=r"episode 1 \(4 steps\) is the first one") as error:
        step.apply(rest)
    again = step.with_state(error.value.state)
    assert not again.guessed
    for chunk in (rest, probe):
        assert set(again.apply(chunk).batch.observations) == {POSITION, VELOCITY}

    lacking = EpisodeStep(lambda td: td.exclude("action") if len(td) > 3 else None).settled(probe)
    with pytest.raises(StepError, match=r"for episode 1 \(4 steps\) lacks action, which"):
        lacking.apply(rest)


def test_leaves_come_go_and_change() -> None:
    def fn(td: Any) -> Any:
        td = td.exclude("mission", VELOCITY, after(VELOCITY))
        td["action"] = td["action"].double().unsqueeze(1)
        td["new"] = TensorDict({"deep": torch.arange(len(td)) + 1}, batch_size=[len(td)])
        return td

    found = of(fn)
    assert set(found.batch.observations) == {POSITION, ("info", "code")}
    assert set(found.batch.steps) == {ACTION, REWARD, TERMINATED, TRUNCATED, ("new", "deep")}
    assert found.batch.steps["new", "deep"].tolist() == [1, 2, 3, 4, 1, 1, 2, 3, 4, 5, 1, 2, 3]
    assert found.batch.steps[ACTION].shape == (13, 1, 3)
    assert found.batch.steps[ACTION].dtype == np.float64
    assert not found.words


def test_text_stays_text() -> None:
    codes, words = {"observation.said": (np.arange(17) % 2).astype(np.int32)}, ["yes", "no"]
    chunk = with_leaves(CHUNK, observations=codes, words={"observation.said": words})
    said = ("observation", "said")
    assert dict(of(lambda td: td[:2], chunk).words) == {
        ("mission",): ["go", "stop", "turn"], said: words,
    }  # fmt: skip
    told_apart = of(lambda td: td.set(after(said), td[after(said)] * 0), chunk)
    assert told_apart.words[said] == told_apart.words[after(said)] == words


def test_states_travel_as_json() -> None:
    step = EpisodeStep(lambda td: td, {"name": "same"}, 4)
    assert step.state() == {}
    assert step.with_state({}) == step
    assert step.describe() == {"step": "fn", "name": "same", "by": "episode", "seed": 4}
    ready = step.settled(CHUNK)
    assert step.with_state(json.loads(json.dumps(ready.state()))) == ready
    assert ready.describe() == step.describe()
    assert (ready.per_row, ready.keeps_rows, ready.notes()) == (True, False, ())
    (note,) = replace(ready, explicit_next=("a", "b/c")).notes()
    assert note == "a, b/c: stored before and after every action, for same tells them apart"


def test_state_is_noted() -> None:
    number, drops = itertools.count(), itertools.cycle([True, False, False, True, True])
    again = "it gives something else when it is called again"
    for fn, unsteady in (
        (lambda td: td.set("n", torch.full((len(td),), next(number))), again),
        (lambda td: td if next(drops) else None, again),
        (lambda td: td.set("n", torch.rand(len(td))), ""),
    ):
        assert EpisodeStep(fn).settled(CHUNK).unsteady == unsteady
