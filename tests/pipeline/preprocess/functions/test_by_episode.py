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
    Fn,
    after,
    run,
    ted_rows,
)

CHUNK = toy_chunk([4, 1, 5, 3], first_episode=1, unknown_final=[2, 3])


def of(fn: Fn, chunk: Any = CHUNK) -> Any:
    """Run a function of episodes; the chunk and its rows of TED by episode."""
    return run(fn, chunk, by="episode")[0]


def rows_by_episode(chunk: Any) -> list[list[Any]]:
    """Take a chunk apart into rows of TED, by episode."""
    return [ted_rows(one) for one in episodes_of(chunk)]


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
    assert seen == [
        (1, (4,), [4, 5, 6, 7]), (2, (1,), [8]), (3, (5,), [9, 10, 11, 12, 13]),
        (4, (3,), [14, 15, 16]),
    ]  # fmt: skip
    for rows, old in zip(rows_by_episode(found), rows_by_episode(CHUNK), strict=True):
        rewards = [row[REWARD].item() for row in old]
        for t, row in enumerate(rows):
            assert row["to_go",].item() == sum(rewards[t:])
            assert row[REWARD].item() == np.float32(rewards[t] / max(rewards))
            assert (row[POSITION] == old[t][POSITION]).all()
            assert (row[after(POSITION)] == old[t][after(POSITION)]).all()
    assert found.batch.final_observation.tolist() == CHUNK.batch.final_observation.tolist()
    assert_same_chunk(step.apply(CHUNK), found)


def test_episodes_that_end_earlier() -> None:
    """They are truncated there, unless their last row is terminated; what came next is known."""
    found = of(lambda td: td[:2])
    assert found.batch.lengths.tolist() == [2, 1, 2, 2]
    for rows, old in zip(rows_by_episode(found), rows_by_episode(CHUNK), strict=True):
        for t, row in enumerate(rows):
            last = t == 1 and len(old) > 1
            assert row[TRUNCATED].item() is (last or bool(old[t][TRUNCATED]))
            assert row[TERMINATED].item() is bool(old[t][TERMINATED])
            assert row[DONE].item() is (last or bool(old[t][DONE]))
            assert (row[after(POSITION)] == old[t][after(POSITION)]).all()
    assert found.batch.final_observation.tolist() == [True, False, True, True]
    assert found.batch.episodes["seed",].tolist() == [101, 102, 103, 104]
    assert found.step_numbers.tolist() == [0, 1, 0, 0, 1, 0, 1]

    def dies(td: Any) -> Any:
        td = td[:2].clone()
        td["next", "terminated"][-1] = True
        return td

    assert of(dies).batch.steps[TRUNCATED][:2].tolist() == [[False], [False]]
    assert of(dies).batch.steps[TERMINATED][:2].tolist() == [[False], [True]]


@pytest.mark.parametrize(
    ("fn", "final"),
    [
        (lambda td: td, [True, False, False, True]),
        (lambda td: td[1:] if len(td) > 1 else td, [True, False, False, True]),
        (lambda td: td[:-1] if len(td) > 1 else td, [True, False, True, True]),
        (lambda td: td[:-1].exclude("index") if len(td) > 1 else td.exclude("index"),
         [True, False, False, True]),
        (lambda td: td[::2], [True, False, False, True]),
        (lambda td: torch.cat([td, td]), [True, False, False, True]),
        (lambda td: td[:-1].set("index", torch.arange(len(td) - 1)) if len(td) > 1 else td,
         [True, False, False, True]),
        (lambda td: td[:-1].set("index", td["index"][:-1].unsqueeze(-1)) if len(td) > 1
         else td.set("index", td["index"].unsqueeze(-1)), [True, False, False, True]),
    ],
)  # fmt: skip
def test_final_observations(fn: Fn, final: list[bool]) -> None:
    """The one after the last row is known where the parent's was, or that row was not the last."""
    assert of(fn).batch.final_observation.tolist() == final


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
        for key in (ACTION, REWARD, ("observation", "velocity"), ("next", "info", "code")):
            assert (row[key] == old[t // 2][key]).all()
        assert row[POSITION].dtype == np.float32
        assert (row[after(POSITION)] == old[t // 2][after(POSITION)]).all()
    assert found.row_numbers.tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6]


def test_one_copy_where_observations_follow_each_other() -> None:
    """Every second step, its next observation two steps on: nothing is stored twice."""

    def skipping(td: Any) -> Any:
        first = td[::2].clone()
        after = td[torch.arange(1, len(td) + 1, 2).clamp(max=len(td) - 1)]
        first["next"] = after["next"].clone()
        return first

    found, step = run(skipping, toy_chunk([4, 5, 1]), by="episode")
    assert step.explicit_next == ()
    expected = [[1, 3, 5], [1001, 1003, 1005, 1006], [2001, 2002]]
    assert found.batch.observations[POSITION][:, 0].tolist() == [
        *itertools.chain.from_iterable(expected)
    ]


def test_left_out() -> None:
    found = of(lambda td: None if len(td) in {1, 5} else td)
    assert found.episodes.tolist() == [1, 4]
    assert found.batch.episodes["seed",].tolist() == [101, 104]
    assert found.rows.tolist() == [4, 14]
    expected = [row for rows in rows_by_episode(CHUNK) if len(rows) in {3, 4} for row in rows]
    for row, old in zip(ted_rows(found), expected, strict=True):
        assert all((row[key] == old[key]).all() for key in old)


def test_all_left_out() -> None:
    """A chunk without episodes has the columns that others have."""
    step = EpisodeStep(lambda td: td.set("x", td["action"][:, 0]) if len(td) > 3 else None)
    step = step.settled(CHUNK)
    found = step.apply(episodes_of(CHUNK)[1])
    assert (found.batch.transitions, len(found.episodes)) == (0, 0)
    kept = step.apply(CHUNK)
    for table in ("steps", "observations", "episodes"):
        mine, theirs = getattr(found.batch, table), getattr(kept.batch, table)
        assert {k: (v.dtype, v.shape[1:]) for k, v in mine.items()} == {
            k: (v.dtype, v.shape[1:]) for k, v in theirs.items()
        }
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
    with pytest.raises(Revision, match=r"episode 1 \(4 transitions\) is the first one") as error:
        step.apply(rest)
    again = step.with_state(error.value.state)
    assert not again.guessed
    assert set(again.apply(rest).batch.observations) == {POSITION, ("observation", "velocity")}
    assert set(again.apply(probe).batch.observations) == {POSITION, ("observation", "velocity")}

    lacking = EpisodeStep(lambda td: td.exclude("action") if len(td) > 3 else None).settled(probe)
    with pytest.raises(StepError, match=r"for episode 1 \(4 transitions\) lacks action, which"):
        lacking.apply(rest)


def test_leaves_come_go_and_change() -> None:
    def fn(td: Any) -> Any:
        td = td.exclude("mission", ("observation", "velocity"), ("next", "observation", "velocity"))
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
    chunk = with_leaves(
        CHUNK,
        observations={"observation.said": (np.arange(17) % 2).astype(np.int32)},
        words={"observation.said": ["yes", "no"]},
    )
    said = ("observation", "said")
    found = of(lambda td: td[:2], chunk)
    assert {key: list(words) for key, words in found.words.items()} == {
        ("mission",): ["go", "stop", "turn"], said: ["yes", "no"],
    }  # fmt: skip

    def told_apart(td: Any) -> Any:
        return td.set(("next", *said), td[after(said)] * 0)

    found = of(told_apart, chunk)
    assert found.words[said] == found.words[after(said)] == ["yes", "no"]
    with pytest.raises(
        StepError, match=r"'mission' at row 4 .episode 1, step 0. the code 5, which"
    ):
        of(lambda td: td.set("mission", torch.full((len(td),), 5, dtype=torch.int32)))


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda td: td[:0], r"returned no rows .* for episode 1 \(4 transitions\); expected rows"),
        (lambda td: td["action"].sum(), "The function returned a Tensor for episode 1"),
        (lambda td: [td, td], "The function returned a list for episode 1 .*expected a TensorDict"),
        (lambda td: {**td, "x": torch.ones(2)}, "leaves of different lengths.*x \\[2\\]"),
        (lambda td: {**td, "x": 3.5}, "leaves of different lengths, or without rows .*x \\[\\]"),
        (lambda td: {**td, "s": "text"}, "'s' as str for episode 1 .*; expected a tensor"),
        (lambda td: td.exclude(("next", "reward")), "lacks next/reward, which every dataset has"),
        (lambda td: td.exclude("action", ("next", "terminated")), "lacks next/terminated, action"),
        (lambda td: td.set("x", td["action"].bfloat16()), "'x' as bfloat16 for episode 1"),
        (lambda td: {**td, "x": td["action"].to("meta")}, "'x' as a tensor on device meta for episode 1"),
        (lambda td: td.set(("next", "done"), torch.ones_like(td["next", "done"])),
         "is done at row 0, and neither terminated nor truncated"),
        (lambda td: td.set(("next", "reward"), td["next", "reward"].squeeze(-1)),
         r"'next/reward' as float32 \[\] for episode 1 .*; expected numbers \[1\]"),
        (lambda td: td.set(("next", "truncated"), td["next", "truncated"].float()),
         r"'next/truncated' as float32 \[1\] for episode 1 .*; expected bool \[1\]"),
        (lambda td: td.set("x", td["action"]) if td["episode"][0] != 3 else td,
         r"for episode 3 \(5 transitions\) lacks x"),
        (lambda td: td.set("x", td["action"]) if td["episode"][0] == 3 else td,
         r"for episode 3 \(5 transitions\) has, unlike the first one, x"),
        (lambda td: td.set("action", td["action"].to([torch.float32, torch.float64][len(td) == 5])),
         r"'action' as float64 \[3\] for episode 3 .*; expected float32 \[3\] as before"),
    ],
)  # fmt: skip
def test_what_cannot_be(fn: Fn, message: str) -> None:
    with pytest.raises(StepError, match=message):
        of(fn)


def test_states_travel_as_json() -> None:
    step = EpisodeStep(lambda td: td, {"name": "same"}, 4)
    assert step.state() == {}
    assert step.with_state({}) == step
    assert step.describe() == {"step": "fn", "name": "same", "by": "episode", "seed": 4}
    ready = step.settled(CHUNK)
    assert step.with_state(json.loads(json.dumps(ready.state()))) == ready
    assert ready.describe() == step.describe()
    assert ready.per_row
    assert not ready.keeps_rows
    assert ready.notes() == ()
    told = replace(ready, explicit_next=("a", "b/c"))
    assert told.notes() == (
        "a, b/c: stored before and after every action, for same tells them apart",
    )


def test_state_is_noted() -> None:
    number = itertools.count()
    shows = EpisodeStep(lambda td: td.set("n", torch.full((len(td),), next(number))))
    assert shows.settled(CHUNK).unsteady == "it gives something else when it is called again"
    drops = itertools.cycle([True, False, False, True, True])
    dropping = EpisodeStep(lambda td: td if next(drops) else None)
    assert dropping.settled(CHUNK).unsteady == "it gives something else when it is called again"
    step = EpisodeStep(lambda td: td.set("n", torch.rand(len(td)))).settled(CHUNK)
    assert step.unsteady == ""
