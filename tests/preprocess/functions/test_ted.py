from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from offline_data.errors import FormatError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.ted import (
    TwoCopies,
    check_given,
    check_tree,
    equal_rows,
    from_ted,
    given,
    refuse_codes,
    to_ted,
    words_of,
)
from offline_data.testing.pieces import as_stored, assert_same_piece, toy_piece, with_leaves
from tests.preprocess.functions.loops import (
    ACTION,
    DONE,
    POSITION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VELOCITY,
    after,
    ted_rows,
)

PIECE = toy_piece([4, 1, 3], first_episode=1, unknown_final=[2])


@pytest.mark.parametrize("piece", [PIECE, as_stored(PIECE), toy_piece([1, 1]), toy_piece([6])])
def test_columns_are_rows_of_ted(piece: Any) -> None:
    table, rows = to_ted(piece), ted_rows(piece)
    assert set(table) == set(rows[0])
    for key, column in table.items():
        assert column.tolist() == [row[key].tolist() for row in rows]
        assert column.dtype == rows[0][key].dtype
        assert column.flags.c_contiguous
        assert column.flags.writeable
        assert not any(
            np.shares_memory(column, other)
            for other in (*piece.batch.steps.values(), *piece.batch.observations.values())
        )
        assert not any(np.shares_memory(column, other) for k, other in table.items() if k != key)
    assert_same_piece(from_ted(piece, table, ())[0], piece)


def test_what_is_given() -> None:
    found = {key: column.tolist() for key, column in given(PIECE).items()}
    assert found["index",] == list(range(4, 12))
    assert found["episode",] == [1, 1, 1, 1, 2, 3, 3, 3]
    assert all(found[name,] == [[False]] * 8 for name in ("done", "terminated", "truncated"))


def test_observations_that_do_not_follow_each_other() -> None:
    table = to_ted(PIECE)
    table[after(POSITION)][1, 0] += 1
    table[after(VELOCITY)][6] -= 1
    with pytest.raises(TwoCopies) as error:
        from_ted(PIECE, table, ())
    assert set(error.value.keys) == {POSITION, VELOCITY}
    assert str(error.value) == "observation/position, observation/velocity"
    with pytest.raises(TwoCopies, match=r"^observation/velocity$"):
        from_ted(PIECE, table, {POSITION})
    found, kept = from_ted(PIECE, table, {POSITION, VELOCITY})
    assert kept == []
    assert set(found.batch.observations) == {("info", "code")}
    for key in (POSITION, VELOCITY, ("next", *POSITION), ("next", *VELOCITY)):
        assert found.batch.steps[key].tolist() == table[key].tolist()


def test_across_episodes_nothing_has_to_follow() -> None:
    table = to_ted(PIECE)
    for row in (3, 4, 7):
        table[after(POSITION)][row] = -row
    found = from_ted(PIECE, table, ())[0].batch.observations[POSITION]
    assert found[:, 0].tolist() == [1001, 1002, 1003, 1004, -3, 2001, -4, 3001, 3002, 3003, -7]


@pytest.mark.parametrize(("root", "other", "same"), [(np.nan, np.nan, True), (0.0, -0.0, False)])
def test_values_are_compared_by_their_bits(root: float, other: float, same: bool) -> None:
    table = to_ted(PIECE)
    table[after(VELOCITY)][1], table[VELOCITY][2] = other, root
    if same:
        assert VELOCITY in from_ted(PIECE, table, ())[0].batch.observations
        return
    with pytest.raises(TwoCopies):
        from_ted(PIECE, table, ())


def test_a_pair_of_other_dtype_or_shape_is_none() -> None:
    table = to_ted(PIECE)
    table[after(POSITION)] = table[after(POSITION)].astype(np.float32)
    table[after(VELOCITY)] = table[after(VELOCITY)][:, None]
    found = from_ted(PIECE, table, ())[0].batch
    assert set(found.observations) == {("info", "code")}
    assert found.steps[after(POSITION)].dtype == np.float32
    assert found.steps[after(VELOCITY)].shape == (8, 1)


def test_required_leaves_are_kept() -> None:
    found, kept = from_ted(PIECE, {("x",): np.arange(1, 9)}, ())
    assert set(kept) == {REWARD, TERMINATED, TRUNCATED, ACTION}
    assert set(found.batch.steps) == {("x",), REWARD, TERMINATED, TRUNCATED, ACTION}
    other = with_leaves(PIECE, steps={"action.grip": np.arange(1, 9)})
    assert set(from_ted(other, {("action", "arm"): np.arange(8)}, ())[1]) == {
        REWARD, TERMINATED, TRUNCATED,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        (REWARD, np.ones(8), r"'next/reward' must be \[N, 1\], not \[8\]"),
        (TRUNCATED, np.ones((8, 1)), "'next/truncated' must be bool, not float64"),
        (("x",), np.ones(7), "leaf 'x' has 7 rows, expected 8"),
    ],
)
def test_what_is_no_transition(key: Any, values: Any, message: str) -> None:
    with pytest.raises(StepError, match=f"is no transition: .*{message}") as error:
        from_ted(PIECE, {**to_ted(PIECE), key: values}, ())
    assert isinstance(error.value.__cause__, FormatError)


def test_untouched_columns() -> None:
    """They are believed: not looked at, and taken from the piece."""
    wrong = {key: values * 0 for key, values in to_ted(PIECE).items() if key[0] != "info"}
    wrong = {key: values for key, values in wrong.items() if key[:2] != ("next", "info")}
    found, _ = from_ted(PIECE, wrong, (), set(wrong))
    assert all(found.batch.steps[key] is column for key, column in PIECE.batch.steps.items())
    assert found.batch.observations[POSITION] is PIECE.batch.observations[POSITION]
    half = from_ted(PIECE, wrong, (), set(wrong) - {POSITION})[0]
    assert not half.batch.observations[POSITION].any()
    wrong[after(POSITION)] = wrong[after(POSITION)] + 1
    with pytest.raises(TwoCopies, match="observation/position"):
        from_ted(PIECE, wrong, (), set(wrong) - {after(POSITION)})


@pytest.mark.parametrize("dtype", ["bool", "u1", "i2", "f2", "f4", "f8", "c8", "c16", "i8"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0,)])
def test_equal_rows(dtype: str, shape: tuple[int, ...]) -> None:
    values = np.arange(1, 1 + 4 * max(1, int(np.prod(shape)))).astype(dtype)
    one = np.resize(values, (4, *shape)).astype(dtype)
    other = one.copy()
    assert equal_rows(one, other).tolist() == [True] * 4
    if other.size:
        other.reshape(4, -1)[2, -1] = 0
        assert equal_rows(one, other).tolist() == [True, True, False, True]
        assert equal_rows(np.asfortranarray(one), other).tolist() == [True, True, False, True]


def test_words_of_both_copies() -> None:
    piece = with_leaves(
        PIECE,
        observations={"observation.said": np.zeros(11, np.int32)},
        words={"observation.said": ["yes"]},
    )
    assert words_of(piece) == {
        ("mission",): ["go", "stop", "turn"],
        ("observation", "said"): ["yes"],
        ("next", "observation", "said"): ["yes"],
    }
    table = to_ted(piece)
    refuse_codes(type(piece).place, piece, table)
    table["next", "observation", "said"][5] = 1
    with pytest.raises(StepError, match=r"'next/observation/said' at row 9 .* the code 1, which"):
        refuse_codes(type(piece).place, piece, table)


def test_given_leaves_stay() -> None:
    before = {**given(PIECE), **PIECE.batch.steps}
    table = to_ted(PIECE)
    assert check_given(before, table) is None
    assert check_given(before, {}) is None
    for name, row in (("index", 3), ("episode", 5), ("done", 0), ("truncated", 7)):
        changed = table[name,].copy()
        changed[row] = ~changed[row] if changed.dtype == bool else changed[row] + 1
        assert check_given(before, {**table, (name,): changed}) == ((name,), row)
    ended = table[DONE].copy()
    ended[2] = True
    assert check_given(before, {**table, DONE: ended}) == (DONE, 2)
    assert check_given(before, {**table, DONE: ended, TERMINATED: ended}) is None
    assert check_given(before, {**table, TERMINATED: ended}) is None
    assert check_given(before, {**table, TERMINATED: np.zeros(8, bool)}) is None


@pytest.mark.parametrize(
    ("steps", "observations", "clash"),
    [
        ([("a",), ("b", "c")], [("d",), ("e", "f")], None),
        ([("a",)], [("a",)], "a"),
        ([("a",), ("next", "d")], [("d",)], "d"),
        ([("a",), ("next", "d", "x")], [("d",)], "next/d"),
        ([("a", "b")], [("a",)], "a"),
        ([("a",)], [("a", "b", "c")], "a"),
    ],
)
def test_names_that_clash(steps: Any, observations: Any, clash: str | None) -> None:
    if clash is None:
        check_tree(steps, observations)
        return
    with pytest.raises(StepError, match=f"returned '{clash}', and there is another leaf"):
        check_tree(steps, observations)
