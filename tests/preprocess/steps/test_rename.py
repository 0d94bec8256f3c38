from __future__ import annotations

import numpy as np
import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.columns import Rename
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import assert_same_piece, toy_piece, with_leaves
from offline_data.testing.steps import StepContract

POSITION, VELOCITY, CODE = (
    ("observation", "position"),
    ("observation", "velocity"),
    ("info", "code"),
)


class TestContract(StepContract):
    @pytest.fixture(
        params=[
            "rename:observation=state",
            "rename:mission=goal.text,info.code=info.number",
            "rename:obs.position=observation.velocity,obs.velocity=observation.position",
            "rename:action=action.arm",
        ]
    )
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("info.code=state", {CODE: ("state",)}),
        ("info/code=a.b/c", {CODE: ("a", "b", "c")}),
        (
            "obs=state",
            {POSITION: ("state", "position"), VELOCITY: ("state", "velocity")},
        ),
        ("next.observation.position=state", {POSITION: ("state",)}),
        ("observation.position=obs", {POSITION: ("obs",)}),
        ("mission=next.mission", {("mission",): ("next", "mission")}),
        ("action=action.arm", {("action",): ("action", "arm")}),
        ("info=observation.info", {CODE: ("observation", "info", "code")}),
        (
            "obs.position=observation.velocity,obs.velocity=x",
            {POSITION: VELOCITY, VELOCITY: ("x",)},
        ),
        (
            "obs.position=obs.velocity2,obs.velocity=observation.position",
            {POSITION: ("obs", "velocity2"), VELOCITY: POSITION},
        ),
        ("info.code=info.code", {}),
    ],
)
def test_leaves_are_called_otherwise(
    text: str, names: dict[tuple[str, ...], tuple[str, ...]]
) -> None:
    piece = toy_piece([2, 1])
    found = parse_step(f"rename:{text}").apply(piece)
    for table in ("steps", "observations"):
        old, new = getattr(piece.batch, table), getattr(found.batch, table)
        assert [*new] == [names.get(key, key) for key in old]
        assert all(new[names.get(key, key)] is column for key, column in old.items())
    assert found.words == {names.get(("mission",), ("mission",)): ["go", "stop", "turn"]}
    assert found.batch.episodes == piece.batch.episodes


def test_there_and_back() -> None:
    piece = with_leaves(
        toy_piece([2]),
        observations={"goal.text": np.array([1, 0, 1], np.int32)},
        words={"goal.text": ["a", "b"]},
    )
    there = parse_step("rename:goal=aim,obs=state,mission=goal").apply(piece)
    assert there.words == {("aim", "text"): ["a", "b"], ("goal",): ["go", "stop", "turn"]}
    assert_same_piece(
        parse_step("rename:aim=goal,state=observation,goal=mission").apply(there), piece
    )


def test_another_leaf_may_become_the_reward() -> None:
    shaped = np.array([[5.5], [6.5]], np.float32)
    piece = with_leaves(toy_piece([2]), steps={"next.shaped": shaped, "next.wide": np.ones((2, 3))})
    found = parse_step("rename:reward=next.sparse,next.shaped=next.reward").apply(piece).batch
    assert found.steps["next", "reward"].tolist() == [[5.5], [6.5]]
    assert found.steps["next", "sparse"].tolist() == [[0.125], [0.25]]
    with pytest.raises(StepError, match=r"Step 'rename': 'next/reward' must be \[N, 1\]"):
        parse_step("rename:reward=next.sparse,next.wide=next.reward").apply(piece)
    with pytest.raises(StepError, match="'next/terminated' must be bool"):
        parse_step("rename:terminated=next.x,next.shaped=next.terminated").apply(piece)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reward=next.r", "would leave no next/reward"),
        ("next=after", "would leave no next/reward, no next/terminated, no next/truncated"),
        ("terminated=next.over", "would leave no next/terminated"),
        ("action=act", "would leave no action"),
        ("mission=action", "two leaves the name 'action'"),
        ("info.code=observation.velocity", "two leaves the name 'observation/velocity'"),
        ("info.code=observation", "make 'observation' a leaf, and 'observation/position' is"),
        ("mission=next.observation", "make 'next/observation' a leaf, and 'next/obs"),
        ("mission=info", "make 'info' a leaf, and 'info/code' is below it"),
        ("info.code=mission.code", "make 'mission' a leaf, and 'mission/code' is below it"),
        ("info=action.info", "cannot call an observation leaf 'action/info/code'"),
        ("info.code=next.code", "cannot call an observation leaf 'next/code': the name is res"),
        ("info.code=done", "reserved"),
        ("mission=episode", "cannot call a step leaf 'episode': the name is reserved"),
        ("mission=next.done", "reserved"),
        ("mission=a//b", "cannot call a leaf so"),
        ("obs=a,obs.position=b", "has two new names for 'observation/position'"),
        ("obs=a,observation=b", "has two new names for 'observation/position'"),
        ("obs.position=x,obs.velocity=x", "two leaves the name 'x'"),
    ],
)
def test_names_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(StepError) as caught:
        parse_step(f"rename:{text}").apply(toy_piece([2]))
    assert message in caught.value.message
    assert caught.value.message.startswith("Step 'rename' ")


def test_a_leaf_that_is_not_there() -> None:
    with pytest.raises(StepError) as caught:
        parse_step("rename:misson=goal").apply(toy_piece([1]))
    assert caught.value.hint == "did you mean 'mission'?"


@pytest.mark.parametrize("text", ["", "action", "a=b,c", "a=", "a=b,a=c", "a.b=c,a/b=d"])
def test_arguments_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(UsageError, match="Step 'rename' ") as caught:
        parse_step(f"rename:{text}")
    assert caught.value.hint == "for example --step rename:observation.position=state,info=extra"


def test_no_names() -> None:
    with pytest.raises(UsageError, match="needs pairs"):
        Rename(())
