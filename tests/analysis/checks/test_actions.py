"""Actions against the space that the source declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.analysis.checks.planted import Write, changed, clean_batch, found

BOX = {"type": "Box", "shape": [2], "dtype": "float32", "low": [-1, -1], "high": [1, 1]}
ACTIONS = ["RL030", "RL031", "RL032", "RL033"]


def with_actions(write: Write, actions: Any, space: Any, **options: Any) -> Any:
    batch = changed(clean_batch(), steps={("action",): np.asarray(actions)})
    return write(batch, spaces={"action": space}, **options)


@pytest.mark.parametrize("space", [BOX, {**BOX, "low": None, "high": None}, None])
@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_clean(write: Write, layout: str, space: Any) -> None:
    path = write(clean_batch(), layout=layout, spaces={"action": space} if space else {})
    assert [one for code in ACTIONS for one in found(path, code)] == []


def test_outside_of_a_box(write: Write) -> None:
    actions = clean_batch().steps["action",].copy()
    actions[13, 1], actions[30, 0], actions[5, 0] = 1.5, -2, 1 + 1e-7
    (one,) = found(with_actions(write, actions, BOX), "RL030")
    assert (one.leaf, one.episode, one.row, one.count) == ("action", 1, 13, 2)
    assert one.message == "2 rows are outside Box(-1, 1): -2 to 1.5"


@pytest.mark.parametrize(
    ("space", "bad"),
    [
        ({"type": "Discrete", "n": 4, "start": 1}, 0),
        ({"type": "Discrete", "n": 3}, 3),
        ({"type": "MultiDiscrete", "nvec": [3, 3]}, 3),
        ({"type": "MultiBinary", "n": 2}, 2),
    ],
)
def test_outside_of_discrete_spaces(write: Write, space: dict[str, Any], bad: int) -> None:
    shape = (41,) if space["type"] == "Discrete" else (41, 2)
    actions = np.ones(shape, np.int64)
    assert found(with_actions(write, actions, space), "RL030") == []
    actions[20] = bad
    (one,) = found(with_actions(write, actions, space), "RL030")
    assert (one.row, one.count) == (20, 1)


def test_outside_of_a_box_beside_nan(write: Write) -> None:
    actions = clean_batch().steps["action",].copy()
    actions[2] = np.nan
    assert found(with_actions(write, actions, BOX), "RL030") == []
    actions[13, 1] = 1.5
    (one,) = found(with_actions(write, actions, BOX), "RL030")
    assert (one.row, one.count) == (13, 1)


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_observations_outside_of_their_space(write: Write, layout: Any) -> None:
    batch = clean_batch((12, 20, 9))
    seen = np.clip(batch.observations["observation",], -3, 3)
    space = {"type": "Box", "dtype": "float32", "shape": [3], "low": [-3] * 3, "high": [3] * 3}

    def findings(values: Any) -> list[Any]:
        path = write(
            changed(batch, observations={("observation",): values}),
            layout=layout,
            spaces={"observation": space},
        )
        assert found(path, "RL030") == []  # of the action
        return found(path, "RL023")

    assert findings(seen) == []
    seen[[14, 12], [0, 2]] = (
        3.5  # row 13 of episode 1, and what followed the last action of episode 0
    )
    (one,) = findings(seen)
    assert (one.leaf, one.episode, one.row) == ("next/observation", 0, 11)
    assert one.message == "2 rows are outside Box(-3, 3): 3.5"


def test_nested_spaces(write: Write) -> None:
    batch = clean_batch()
    steps = {key: column for key, column in batch.steps.items() if key != ("action",)}
    steps |= {
        ("action", "arm"): batch.steps["action",] * 3,
        ("action", "grip"): np.ones(41, np.int64),
    }
    space = {"type": "Dict", "subspaces": {"arm": BOX, "grip": {"type": "Discrete", "n": 2}}}
    path = write(
        type(batch)(batch.lengths, steps, batch.observations, batch.final_observation),
        spaces={"action": space},
    )
    (one,) = found(path, "RL030")
    assert one.leaf == "action/arm"


@pytest.mark.parametrize(
    "space", [{"type": "Box", "low": "x"}, {"type": "Discrete", "n": 2, "start": "y"}]
)
def test_spaces_that_cannot_be_read(write: Write, space: Any) -> None:
    (one,) = found(with_actions(write, np.ones((41, 2)), space), "RL030")
    assert one.code == "RL001"
    assert "action space" in one.message


def test_saturated(write: Write) -> None:
    actions = clean_batch().steps["action",].copy()
    actions[:, 1] = np.where(np.arange(41) % 3, 1, -1)
    (one,) = found(with_actions(write, actions, BOX), "RL031")
    assert one.message == "1 of 2 dimensions ([1]) is at the bounds in 100 % of the rows at most"
    actions[:22, 1] = 0
    assert found(with_actions(write, actions, BOX), "RL031") == []


def test_dtype(write: Write) -> None:
    (one,) = found(
        with_actions(write, np.ones(41, np.float32), {"type": "Discrete", "n": 3}), "RL032"
    )
    assert one.message == "Rows are float32, and the space is Discrete of int64"
    (other,) = found(with_actions(write, np.ones((41, 2), np.int64), BOX), "RL032")
    assert other.message == "Rows are int64, and the space is Box of float32"


def test_scale(write: Write) -> None:
    actions = clean_batch().steps["action",] * np.float32(0.005)
    (one,) = found(with_actions(write, actions, BOX), "RL033")
    assert one.message.startswith("No value exceeds 0.4")
