"""Rows of transitions and of observations, and the way back to episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offline_data.testing.chunks import (
    as_stored,
    assert_same_chunk,
    toy_chunk,
    with_leaves,
)
from tests.pipeline.preprocess.functions.loops import (
    ACTION,
    POSITION,
    VELOCITY,
    after,
    ready,
    run,
    ted_rows,
)

CHUNK = toy_chunk([4, 1, 3], first_episode=1, unknown_final=[2])


CODE, OBS = ("info", "code"), ("obs",)


def test_each_observation_once() -> None:
    """Also the last one of every episode; nothing of actions and rewards."""
    seen: list[tuple[float, set[Any]]] = []

    def fn(td: Any) -> Any:
        seen.append((td["observation", "position"][0].item(), set(td.keys(True, leaves_only=True))))
        return td

    step = ready(fn, CHUNK, on="observations", vectorize=False)
    seen.clear()
    step.apply(as_stored(CHUNK))
    expected = [1001, 1002, 1003, 1004, 1005, 2001, 2001, 3001, 3002, 3003, 3004]
    assert [value for value, _ in seen] == expected
    assert all(keys == {POSITION, VELOCITY, ("info", "code")} for _, keys in seen)


@pytest.mark.parametrize("vectorize", [True, False])
def test_what_is_made_of_observations(vectorize: bool) -> None:
    def fn(td: Any) -> Any:
        td["obs"] = torch.cat([td["observation", "position"], td["info", "code"] * 2])
        return td.exclude("observation")

    found, step = run(fn, CHUNK, on="observations", vectorize=vectorize)
    assert step.run == ("vectorised" if vectorize else "rows")
    assert set(found.batch.observations) == {("obs",), ("info", "code")}
    assert found.batch.steps is CHUNK.batch.steps
    for row, old in zip(ted_rows(found), ted_rows(CHUNK), strict=True):
        assert row[OBS].tolist() == [*old[POSITION], 2 * old[CODE][0]]
        assert row[after(OBS)].tolist() == [*old[after(POSITION)], 2 * old[after(CODE)][0]]
        assert (row[ACTION] == old[ACTION]).all()
    assert found.batch.observations["info", "code"] is CHUNK.batch.observations["info", "code"] or (
        not vectorize
    )


def test_blocks_of_observations() -> None:
    sizes: list[int] = []

    def fn(td: Any) -> Any:
        sizes.append(len(td))
        return td.set("mean", td["observation", "velocity"].mean().expand(len(td)))

    step = ready(fn, CHUNK, on="observations", batched=4)
    sizes.clear()
    found = step.apply(CHUNK).batch.observations["mean",]
    velocity = CHUNK.batch.observations[VELOCITY]
    expected = [velocity[:4].mean()] * 4 + [velocity[4:8].mean()] * 4 + [velocity[8:].mean()] * 3
    assert sizes == [4, 4, 3]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_text_of_observations() -> None:
    said = ("observation", "said")
    chunk = with_leaves(
        CHUNK,
        observations={"observation.said": (np.arange(11) % 3 - 1).astype(np.int32)},
        words={"observation.said": ["yes", "no"]},
    )
    found, _ = run(lambda td: td.set(said, (td[said] + 2) % 3 - 1), chunk, on="observations")
    assert found.words[said] == ["yes", "no"]
    assert found.batch.observations[said].tolist() == [0, 1, -1] * 3 + [0, 1]
    found, _ = run(lambda td: td.set(said, td[said].long() * 2), chunk, on="observations")
    assert said not in found.words


GIVEN = ["index", "episode", "done", "terminated", "truncated"]


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("name", GIVEN)
def test_what_follows_from_a_place_may_be_left_out(name: str, vectorize: bool) -> None:
    found, _ = run(lambda td: td.exclude(name), CHUNK, vectorize=vectorize)
    assert_same_chunk(found, CHUNK)


@pytest.mark.parametrize("vectorize", [True, False])
def test_done_follows_from_the_flags(vectorize: bool) -> None:
    """It may be left as it was, or set right; not set otherwise."""

    def ends(td: Any) -> Any:
        return td.set(("next", "terminated"), td["action"][:1] == 1002)

    def ends_and_says_so(td: Any) -> Any:
        td = ends(td)
        return td.set(("next", "done"), td["next", "terminated"] | td["next", "truncated"])

    for fn in (ends, ends_and_says_so):
        found, _ = run(fn, CHUNK, vectorize=vectorize)
        assert found.batch.steps["next", "terminated"].ravel().tolist() == [0, 1, 0, 0, 0, 0, 0, 0]


def test_untouched_columns_are_taken_over() -> None:
    """Those of the chunk itself, strided and read-only as they are."""
    chunk = as_stored(CHUNK)

    def fn(td: Any) -> Any:
        td["next", "reward"] = td["next", "reward"] * 2
        td["observation", "velocity"].add_(1)
        td["next", "observation", "velocity"].add_(1)
        return td.exclude("mission")

    found, step = run(fn, chunk)
    assert step.run == "vectorised"
    assert found.batch.observations[POSITION] is chunk.batch.observations[POSITION]
    assert found.batch.steps[ACTION] is chunk.batch.steps[ACTION]
    assert (found.batch.observations[VELOCITY] == CHUNK.batch.observations[VELOCITY] + 1).all()
    assert ("mission",) not in found.batch.steps
