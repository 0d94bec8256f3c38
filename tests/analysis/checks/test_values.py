"""Values that are not finite, constant or all zero are found, at their rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.checks.planted import Write, changed, clean_batch, found

VALUES = ["RL020", "RL021", "RL022"]


@pytest.mark.parametrize("layout", ["compact", "ted"])
@pytest.mark.parametrize("code", VALUES)
def test_clean(write: Write, code: str, layout: str) -> None:
    assert found(write(clean_batch(), layout=layout), code) == []


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_not_finite(write: Write, layout: str) -> None:
    batch = clean_batch()
    seen = batch.observations["observation",].copy()
    seen[14, 1], seen[33, [0, 2]] = (
        np.nan,
        (np.inf, np.nan),
    )  # 33: after the last action of episode 1
    path = write(changed(batch, observations={("observation",): seen}), layout=layout)
    (one,) = found(path, "RL020")
    assert (one.leaf, one.episode, one.row, one.count) == ("observation", 1, 13, 2)
    assert one.message == "2 rows have 2 NaN and 1 infinite value"
    assert one.severity == "error"


def test_not_finite_after_the_last_action(write: Write) -> None:
    batch = clean_batch()
    seen = batch.observations["observation",].copy()
    seen[12, 1] = np.nan
    (one,) = found(write(changed(batch, observations={("observation",): seen})), "RL020")
    assert (one.leaf, one.episode, one.row) == ("next/observation", 0, 11)


def test_constant_features(write: Write) -> None:
    batch = clean_batch()
    seen = batch.observations["observation",].copy()
    seen[:, 1] = 7
    (one,) = found(write(changed(batch, observations={("observation",): seen})), "RL021")
    assert (one.leaf, one.count) == ("observation", 1)
    assert one.message == "1 of 3 dimensions ([1]) is constant"


def test_all_zero_leaves(write: Write) -> None:
    batch = clean_batch()
    zeros = {("action",): np.zeros_like(batch.steps["action",])}
    path = write(changed(batch, steps={**zeros, ("grip",): np.zeros((41, 1))}))
    action, grip = found(path, "RL022")
    assert (action.leaf, action.severity, action.count) == ("action", "error", 41)
    assert (grip.leaf, grip.severity) == ("grip", "info")
    assert found(path, "RL021") == []


def test_the_action_zero_may_be_an_index(write: Write) -> None:
    zeros = {("action",): np.zeros(41, np.int64)}
    (one,) = found(write(changed(clean_batch(), steps=zeros)), "RL022")
    assert (one.leaf, one.severity) == ("action", "warning")
