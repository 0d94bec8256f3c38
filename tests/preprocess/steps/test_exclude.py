from __future__ import annotations

import pytest

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.columns import Exclude
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import toy_piece, with_leaves
from offline_data.testing.steps import StepContract


class TestContract(StepContract):
    @pytest.fixture(params=["exclude:info,obs.velocity", "exclude:mission", "exclude:observation"])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("info", {("info", "code")}),
        ("obs.velocity,mission", {("observation", "velocity"), ("mission",)}),
        ("next.observation", {("observation", "position"), ("observation", "velocity")}),
    ],
)
def test_what_goes(text: str, gone: set[tuple[str, ...]]) -> None:
    piece = toy_piece([2, 1])
    found = parse_step(f"exclude:{text}").apply(piece)
    for table in ("steps", "observations"):
        old, new = getattr(piece.batch, table), getattr(found.batch, table)
        assert set(new) == set(old) - gone
        assert all(new[key] is old[key] for key in new)
    assert (("mission",) in found.words) == (("mission",) not in gone)
    assert found.batch.episodes == piece.batch.episodes


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("reward", "no next/reward"),
        ("info,terminated", "no next/terminated"),
        ("next/truncated", "no next/truncated"),
        ("action", "no action"),
        ("next", "no next/reward, no next/terminated, no next/truncated"),
    ],
)
def test_what_every_dataset_has_stays(text: str, missing: str) -> None:
    with pytest.raises(StepError, match=f"Step 'exclude' would leave {missing}; every dataset has"):
        parse_step(f"exclude:{text}").apply(toy_piece([2]))


def test_one_action_leaf_of_two_may_go() -> None:
    piece = toy_piece([2])
    steps = dict(piece.batch.steps)
    arm = steps.pop(("action",))
    piece = piece.having(steps={**steps, ("action", "arm"): arm, ("action", "hand"): arm + 5})
    found = Exclude(("action.arm",)).apply(piece).batch.steps
    assert ("action", "hand") in found
    assert ("action", "arm") not in found
    with pytest.raises(StepError, match="no action"):
        Exclude(("action.arm", "action.hand")).apply(piece)


def test_the_same_name_under_next_may_go() -> None:
    piece = with_leaves(
        toy_piece([2]), steps={"next.action": toy_piece([2]).batch.steps["action",]}
    )
    assert ("next", "action") not in Exclude(("next.action",)).apply(piece).batch.steps
    with pytest.raises(StepError, match="no action"):
        Exclude(("action",)).apply(piece)


def test_a_leaf_that_is_not_there() -> None:
    with pytest.raises(StepError) as caught:
        parse_step("exclude:misson").apply(toy_piece([1]))
    assert caught.value.hint == "did you mean 'mission'?"


def test_no_leaf_named() -> None:
    with pytest.raises(UsageError, match="Step 'exclude' needs keys") as caught:
        parse_step("exclude:")
    assert caught.value.hint == "for example --step exclude:info,observation.velocity"
