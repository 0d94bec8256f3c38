from __future__ import annotations

import numpy as np
import pytest

from offline_data.preprocess.errors import StepError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.base import Step
from offline_data.preprocess.steps.columns import Flatten
from offline_data.preprocess.steps.registry import parse_step
from offline_data.testing.pieces import as_stored, toy_piece, with_leaves
from offline_data.testing.steps import StepContract


def grids() -> Piece:
    """Make a piece with leaves of two and of three axes, one of them empty, and text."""
    grid = (np.arange(14 * 6) + 1).reshape(14, 2, 3)
    return with_leaves(
        toy_piece([3, 1, 4, 2]),
        steps={
            "action": (np.arange(10 * 12, dtype=np.float16) + 0.5).reshape(10, 2, 2, 3),
            "label": np.arange(10, dtype=np.int32).reshape(10, 1) % 3,
            "extra": np.arange(40).reshape(10, 2, 2),
        },
        observations={
            "observation.grid": np.asfortranarray(grid),
            "observation.none": np.zeros((14, 0, 3)),
            "observation.text": (np.arange(28, dtype=np.int32) % 2).reshape(14, 2, 1),
        },
        words={"label": ["x", "y", "z"], "observation.text": ["a", "b"]},
    )


class TestContract(StepContract):
    @pytest.fixture
    def piece(self) -> Piece:
        return grids()

    @pytest.fixture(params=["flatten", "flatten:extra,mission", "flatten:observation.grid"])
    def step(self, request: pytest.FixtureRequest) -> Step:
        return parse_step(request.param)


def flat(row: np.ndarray) -> list[float]:
    """List the numbers of a row, the last axis fastest."""
    if row.ndim == 0:
        return [row.item()]
    return [number for part in row for number in flat(part)]


@pytest.mark.parametrize("stored", [False, True])
def test_rows_have_one_axis(stored: bool) -> None:
    piece = as_stored(grids()) if stored else grids()
    found = Flatten().apply(piece)
    for table in ("steps", "observations"):
        for key, old in getattr(piece.batch, table).items():
            new = getattr(found.batch, table)[key]
            if key[0] in {"observation", "action"}:
                assert new.ndim == 2
                assert new.dtype == old.dtype
                assert new.tolist() == [flat(row) for row in old]
            else:
                assert new is old
    assert found.batch.observations["observation", "none"].shape == (14, 0)
    assert found.batch.observations["observation", "velocity"].shape == (14, 1)
    assert found.words == piece.words


def test_only_the_leaves_that_are_named() -> None:
    piece = grids()
    found = parse_step("flatten:extra,mission,obs.grid").apply(piece).batch
    assert found.steps["extra",].shape == (10, 4)
    assert found.steps["mission",].shape == (10, 1)
    assert found.observations["observation", "grid"].shape == (14, 6)
    assert found.steps["action",] is piece.batch.steps["action",]
    assert parse_step("flatten:mission").apply(piece).words == piece.words


def test_a_leaf_that_is_not_there() -> None:
    with pytest.raises(StepError) as caught:
        parse_step("flatten:observation.gird").apply(grids())
    assert caught.value.hint == "did you mean 'observation/grid'?"


def test_the_reward_stays_one_number() -> None:
    found = parse_step("flatten:next").apply(grids()).batch.steps
    assert found["next", "reward"].shape == (10, 1)
