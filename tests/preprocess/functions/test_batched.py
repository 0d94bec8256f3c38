from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.preprocess.errors import StepError
from offline_data.testing.pieces import as_stored, toy_piece
from tests.preprocess.functions.loops import (
    ACTION,
    POSITION,
    REWARD,
    Fn,
    after,
    as_row,
    as_td,
    assert_rows,
    ready,
    run,
    ted_rows,
)

PIECE = toy_piece([4, 1, 5, 3], first_episode=1)


@pytest.mark.parametrize("size", [1, 2, 5, 13, 100])
def test_blocks_end_where_rows_are_counted(size: int) -> None:
    """From the first row of the piece on, whatever episodes there are."""
    seen: list[list[int]] = []

    def fn(td: Any) -> Any:
        seen.append(td["index"].tolist())
        return td.set("action", td["action"] - td["action"].mean(0))

    step = ready(fn, PIECE, batched=size)
    seen.clear()
    found = step.apply(as_stored(PIECE))
    indices, actions = list(range(4, 17)), PIECE.batch.steps[ACTION]
    parts = [slice(begin, begin + size) for begin in range(0, 13, size)]
    assert seen == [indices[part] for part in parts]
    expected = np.concatenate([actions[part] - actions[part].mean(0) for part in parts])
    np.testing.assert_allclose(found.batch.steps[ACTION], expected, atol=1e-4)
    assert (step.run, step.per_row) == ("blocks", False)


def test_functions_of_each_row() -> None:
    """What works on the last axes gives what it gives for single rows."""

    def fn(td: Any) -> Any:
        for root in (td, td["next"]):
            position = root["observation", "position"]
            root["obs"] = torch.cat([position, position[..., :1] * 2], -1)
        td["action"][..., 0] = 3.5
        return td.exclude("observation", ("next", "observation"))

    found, _ = run(fn, PIECE, batched=3)
    assert_rows(found, [as_row(fn(as_td(row))) for row in ted_rows(PIECE)])
    assert set(found.batch.observations) == {("obs",), ("info", "code")}


def test_numpy_inside() -> None:
    """What is written past torch counts too, whatever torch says of it."""

    def fn(td: Any) -> Any:
        td["observation", "position"].numpy()[:] += 1
        td["next", "observation", "position"].numpy()[:] += 1
        td["action"] = torch.from_numpy(np.sort(td["action"].numpy(), axis=1))
        return td

    found, _ = run(fn, PIECE, batched=4)
    position = PIECE.batch.observations[POSITION]
    assert found.batch.observations[POSITION].tolist() == (position + 1).tolist()
    assert (found.batch.steps[ACTION] == np.sort(PIECE.batch.steps[ACTION], axis=1)).all()


def test_one_buffer_that_is_used_again() -> None:
    buffer = torch.zeros(13, 3)

    def fn(td: Any) -> Any:
        return td.set("action", torch.mul(td["action"], 2, out=buffer[: len(td)]))

    for size in (4, 13):
        found, _ = run(fn, PIECE, batched=size)
        kept = found.batch.steps[ACTION].copy()
        buffer.fill_(7)
        np.testing.assert_array_equal(found.batch.steps[ACTION], kept)
        np.testing.assert_array_equal(kept, PIECE.batch.steps[ACTION] * 2)


def test_two_copies_in_blocks() -> None:
    def fn(td: Any) -> Any:
        after = td["next", "observation", "position"]
        return td.set(("next", "observation", "position"), after + 0.5)

    found, step = run(fn, PIECE, batched=6)
    assert step.two_copies == ("observation/position",)
    for row, old in zip(ted_rows(found), ted_rows(PIECE), strict=True):
        assert (row[POSITION] == old[POSITION]).all()
        assert (row[after(POSITION)] == old[after(POSITION)] + 0.5).all()


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda td: td[:-1], r"'.*' as \[3.*\] for the block of 4 rows from row .*; expected 4 rows"),
        (lambda td: {**td, "x": torch.ones(3)}, r"'x' as \[3\] for the block of 4 rows from row 4"),
        (lambda td: {**td, "x": 2.5}, r"'x' as \[\] for the block of 4 rows"),
        (lambda td: td["action"], "returned a Tensor for the block of 4 rows"),
        (lambda td: {**td, "x": ["a"] * 4}, "'x' for the block of 4 rows .* as list; expected"),
        (lambda td: {**td, "x": td["action"].bfloat16()}, "'x' for the block .* as bfloat16, which"),
        (lambda td: {**td, "x": td["action"].to("meta")}, "'x' for the block .* on device meta: its"),
        (lambda td: {**td, "x": td["action"].to_sparse()}, "'x' for .* on device cpu, sparse_coo: its"),
        (lambda td: {**td, "next": td["action"]}, "a leaf 'next' for the block .*; expected leaves"),
        (lambda _: 1 / 0, r"failed on the block of 4 rows from row 4 \(episode 1, step 0\) to row "),
    ],
)  # fmt: skip
def test_what_cannot_be(fn: Fn, message: str) -> None:
    with pytest.raises(StepError, match=message):
        run(fn, PIECE, batched=4)


def test_a_later_block_is_held_to_the_first() -> None:
    def fn(td: Any) -> Any:
        if 10 in td["index"].tolist() and len(td) == 4:
            return td.set("reward", td["next", "reward"]).exclude("action")
        return td

    with pytest.raises(StepError, match=r"block of 4 .* lacks action and has, unlike .*, reward"):
        ready(fn, PIECE, batched=4)

    def double(td: Any) -> Any:
        return td.set("action", td["action"].double()) if td["index"][0] > 1000 else td

    step = ready(double, PIECE, batched=4)
    later = replace(PIECE, rows=PIECE.rows + 1000)
    place = r"for the block of 4 rows from row 1004 \(episode 1, step 0\) to row 1007 "
    with pytest.raises(
        StepError, match=rf"'action' as float64 \[3\] {place}.*, and as float32 \[3\]"
    ):
        step.apply(later)


def test_leaves_may_come_in_any_order() -> None:
    """Columns are put together by name."""

    def fn(td: Any) -> Any:
        names = ["action", "next"] if td["index"][0] % 8 == 0 else ["next", "action"]
        return {name: td[name] for name in names}

    found, _ = run(fn, PIECE, batched=4)
    assert (found.batch.steps[ACTION] == PIECE.batch.steps[ACTION]).all()
    assert (found.batch.steps[REWARD] == PIECE.batch.steps[REWARD]).all()
