from __future__ import annotations

import numpy as np
import pytest

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.leaves import (
    REQUIRED,
    below,
    changed,
    check_names,
    check_required,
    column,
    leaves,
    matching,
    meant,
    numbers,
    place,
    replaced,
)
from offline_data.testing.pieces import assert_same_piece, toy_piece, transitions_of, with_leaves

POSITION, VELOCITY, CODE = (
    ("observation", "position"),
    ("observation", "velocity"),
    ("info", "code"),
)
ACTION, REWARD = ("action",), ("next", "reward")


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["action"], [ACTION]),
        (["observation"], [POSITION, VELOCITY]),
        (["obs"], [POSITION, VELOCITY]),
        (["obs.velocity"], [VELOCITY]),
        (["observation/position"], [POSITION]),
        (["next.observation"], [POSITION, VELOCITY]),
        (["next/obs/position"], [POSITION]),
        (["next.info.code"], [CODE]),
        (["reward"], [REWARD]),
        (["next.reward"], [REWARD]),
        (["terminated", "truncated"], [("next", "terminated"), ("next", "truncated")]),
        (["action", "info", "observation.position"], [POSITION, CODE, ACTION]),
        (["action", "action"], [ACTION]),
        ([], []),
    ],
)
def test_names_mean_columns(names: list[str], keys: list[tuple[str, ...]]) -> None:
    assert matching(toy_piece([2, 1]), names) == keys


def test_a_single_text_is_one_name() -> None:
    assert matching(toy_piece([1]), "action") == [ACTION]
    assert numbers(toy_piece([1]), "action") == [ACTION]


def test_next_alone_is_what_stands_there() -> None:
    found = matching(toy_piece([1]), ["next"])
    assert found == [REWARD, ("next", "terminated"), ("next", "truncated")]


def test_short_names_give_way_to_leaves_called_so() -> None:
    values = np.arange(1.0, 3.0)
    piece = with_leaves(
        toy_piece([2]),
        steps={"obs": values, "terminated.early": values},
        observations={"reward.past": np.arange(3.0)},
    )
    assert matching(piece, ["obs"]) == [("obs",)]
    assert matching(piece, ["reward"]) == [("reward", "past")]
    assert matching(piece, ["terminated"]) == [("terminated", "early")]
    assert matching(piece, ["next.reward"]) == [REWARD]


def test_a_beginning_is_whole_parts() -> None:
    piece = with_leaves(toy_piece([2]), steps={"action_old": np.array([1, 2])})
    assert matching(piece, ["action"]) == [ACTION]
    with pytest.raises(StepError):
        matching(piece, ["act"])


@pytest.mark.parametrize("name", ["next.action", "next.mission", "next.next.reward", "", "a..b"])
def test_no_such_leaf(name: str) -> None:
    with pytest.raises(StepError) as caught:
        matching(toy_piece([1]), [name])
    assert f"No leaf is called {name!r}; there are observation/position," in caught.value.message


def test_the_nearest_is_offered() -> None:
    with pytest.raises(StepError) as caught:
        matching(toy_piece([1]), ["action", "observation.positon"])
    assert caught.value.hint == "did you mean 'observation/position'?"
    with pytest.raises(StepError) as caught:
        meant(toy_piece([1]), "xyzzy")
    assert caught.value.hint is None


def test_beginnings() -> None:
    piece = toy_piece([1])
    assert meant(piece, "obs") == ("observation",)
    assert meant(piece, "next.observation.position") == POSITION
    assert meant(piece, "reward") == REWARD
    assert below(piece, ("info",)) == [CODE]
    assert below(piece, ("in",)) == []
    assert len(below(piece, ())) == len(leaves(piece)) == 8


def test_numbers_leave_out_what_is_none_below_a_beginning() -> None:
    piece = with_leaves(
        toy_piece([2]),
        steps={"extra.text": np.array([1, 0], np.int32), "extra.count": np.array([4, 5], np.int32)},
        observations={"observation.alive": np.array([True, False, True])},
        words={"extra.text": ["a", "b"]},
    )
    assert numbers(piece, ["obs", "extra"]) == [POSITION, VELOCITY, ("extra", "count")]
    assert numbers(piece, ["obs"], "b") == [("observation", "alive")]
    for name, kind in (("mission", "text"), ("extra.text", "text"), ("terminated", "bool")):
        with pytest.raises(StepError, match=f"{name!r} means no leaf of numbers.* is {kind}"):
            numbers(piece, ["obs", name])


def test_columns_and_new_ones_in_their_place() -> None:
    piece = toy_piece([2, 1])
    assert column(piece, CODE).tolist() == [[7], [14], [21], [7007], [7014]]
    assert column(piece, REWARD).tolist() == [[0.125], [0.25], [125.125]]
    found = changed(piece, [CODE, REWARD], lambda values: values * 2)
    assert found.batch.observations[CODE].tolist() == [[14], [28], [42], [14014], [14028]]
    assert found.batch.steps[REWARD].tolist() == [[0.25], [0.5], [250.25]]
    assert found.batch.observations[POSITION] is piece.batch.observations[POSITION]
    assert found.words == piece.words
    back = replaced(found, {key: column(piece, key) for key in (CODE, REWARD)})
    assert_same_piece(back, piece)


def test_places_of_rows() -> None:
    piece = toy_piece([2, 3], first_episode=4)
    assert [place(piece, ACTION, row) for row in range(5)] == [
        f"row {8 + row} (episode {4 + (row > 1)}, step {row - 2 * (row > 1)})" for row in range(5)
    ]
    assert [place(piece, POSITION, row) for row in range(7)] == [
        "row 8 (episode 4, step 0)",
        "row 9 (episode 4, step 1)",
        "the observation after row 9 (episode 4, step 1)",
        "row 10 (episode 5, step 0)",
        "row 11 (episode 5, step 1)",
        "row 12 (episode 5, step 2)",
        "the observation after row 12 (episode 5, step 2)",
    ]
    apart = transitions_of(piece)
    assert place(apart, POSITION, 5) == "the observation after row 10 (episode 5, step 0)"


STEPS = [("action",), *REQUIRED]
OBSERVATIONS = [("observation", "a"), ("info",)]


def test_what_every_dataset_has() -> None:
    check_required(STEPS, "toy")
    check_required([("action", "arm"), *REQUIRED, ("more",)], "toy")
    for gone in STEPS:
        kept = [key for key in STEPS if key != gone]
        with pytest.raises(StepError, match=f"Step 'toy' would leave no {'/'.join(gone)};"):
            check_required(kept, "toy")
    with pytest.raises(StepError, match="no action, no next/reward, no next/term"):
        check_required([("next", "truncated")], "toy")


@pytest.mark.parametrize("key", [("x",), ("next", "x"), ("observation", "b"), ("action_2",)])
def test_free_names(key: tuple[str, ...]) -> None:
    check_names([key], [*STEPS, key], OBSERVATIONS, "toy")
    if key[0] != "next":
        check_names([key], STEPS, [*OBSERVATIONS, key], "toy")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("next",), "'next': the name is reserved"),
        (("next", "done"), "'next/done': the name is reserved"),
        (("done",), "a step leaf 'done': the name is reserved"),
        (("episode",), "reserved"),
        (("index", "x"), "reserved"),
        (("terminated",), "reserved"),
        (("action",), "two leaves the name 'action'"),
        (("next", "reward"), "two leaves the name 'next/reward'"),
        (("info",), "two leaves the name 'info'"),
        (("next", "info"), "two leaves the name 'next/info'"),
        (("action", "arm"), "make 'action' a leaf, and 'action/arm' is below it"),
        (("observation",), "make 'observation' a leaf, and 'observation/a' is below it"),
        (("next", "observation"), "'next/observation' a leaf, and 'next/observation/a' is"),
        (("next", "reward", "x"), "'next/reward' a leaf, and 'next/reward/x' is below it"),
        (("", "a"), "cannot call a leaf so: A leaf is named ''"),
        (("..",), "cannot be a file name"),
    ],
)
def test_names_of_step_leaves_that_are_not_free(key: tuple[str, ...], message: str) -> None:
    with pytest.raises(StepError) as caught:
        check_names([key], [*STEPS, key], OBSERVATIONS, "toy")
    assert message in caught.value.message
    assert caught.value.message.startswith("Step 'toy' ")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("next", "x"), "an observation leaf 'next/x': the name is reserved"),
        (("action",), "an observation leaf 'action': the name is reserved"),
        (("action", "x"), "reserved"),
        (("index",), "reserved"),
        (("info",), "two leaves the name 'info'"),
        (("info", "x"), "make 'info' a leaf, and 'info/x' is below it"),
        (("observation",), "make 'observation' a leaf"),
        (("reward",), "two leaves the name 'next/reward'"),
        (("reward", "x"), "make 'next/reward' a leaf, and 'next/reward/x' is below it"),
    ],
)
def test_names_of_observation_leaves_that_are_not_free(key: tuple[str, ...], message: str) -> None:
    with pytest.raises(StepError) as caught:
        check_names([key], STEPS, [*OBSERVATIONS, key], "toy")
    assert message in caught.value.message


def test_old_names_are_nobodys_fault() -> None:
    check_names([("x",)], [*STEPS, ("next", "done"), ("x",)], [("a",), ("a", "b")], "toy")
