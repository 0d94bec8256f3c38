from __future__ import annotations

import pytest

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.leaves import REQUIRED, check_names, check_required

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
