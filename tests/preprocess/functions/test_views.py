"""Rows of transitions and of observations, and the way back to episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from offline_data.errors import FormatError, StepError
from offline_data.preprocess.functions.ted import (
    Made,
    NeedsExplicitNext,
    Transitions,
    check_given,
    check_tree,
    from_ted,
    given,
    refuse_codes,
    to_ted,
    words_of,
)
from offline_data.testing.pieces import (
    as_stored,
    assert_same_piece,
    toy_piece,
    with_leaves,
)
from tests.preprocess.functions.loops import (
    ACTION,
    DONE,
    POSITION,
    REWARD,
    TERMINATED,
    TRUNCATED,
    VELOCITY,
    Fn,
    after,
    ready,
    run,
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


def test_observations_that_do_not_follow_each_other() -> None:
    table = to_ted(PIECE)
    table[after(POSITION)][1, 0] += 1
    table[after(VELOCITY)][6] -= 1
    with pytest.raises(NeedsExplicitNext) as error:
        from_ted(PIECE, table, ())
    assert set(error.value.keys) == {POSITION, VELOCITY}
    assert str(error.value) == "observation/position, observation/velocity"
    with pytest.raises(NeedsExplicitNext, match=r"^observation/velocity$"):
        from_ted(PIECE, table, {POSITION})
    found, kept = from_ted(PIECE, table, {POSITION, VELOCITY})
    assert kept == []
    assert set(found.batch.observations) == {("info", "code")}
    for key in (POSITION, VELOCITY, ("next", *POSITION), ("next", *VELOCITY)):
        assert found.batch.steps[key].tolist() == table[key].tolist()


@pytest.mark.parametrize(("root", "other", "same"), [(np.nan, np.nan, True), (0.0, -0.0, False)])
def test_values_are_compared_by_their_bits(root: float, other: float, same: bool) -> None:
    table = to_ted(PIECE)
    table[after(VELOCITY)][1], table[VELOCITY][2] = other, root
    if same:
        assert VELOCITY in from_ted(PIECE, table, ())[0].batch.observations
        return
    with pytest.raises(NeedsExplicitNext):
        from_ted(PIECE, table, ())


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
    with pytest.raises(NeedsExplicitNext, match="observation/position"):
        from_ted(PIECE, wrong, (), set(wrong) - {after(POSITION)})


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


CODE, OBS = ("info", "code"), ("obs",)


def test_each_observation_once() -> None:
    """Also the last one of every episode; nothing of actions and rewards."""
    seen: list[tuple[float, set[Any]]] = []

    def fn(td: Any) -> Any:
        seen.append((td["observation", "position"][0].item(), set(td.keys(True, leaves_only=True))))
        return td

    step = ready(fn, PIECE, on="observations", vectorize=False)
    seen.clear()
    step.apply(as_stored(PIECE))
    expected = [1001, 1002, 1003, 1004, 1005, 2001, 2001, 3001, 3002, 3003, 3004]
    assert [value for value, _ in seen] == expected
    assert all(keys == {POSITION, VELOCITY, ("info", "code")} for _, keys in seen)


@pytest.mark.parametrize("vectorize", [True, False])
def test_what_is_made_of_observations(vectorize: bool) -> None:
    def fn(td: Any) -> Any:
        td["obs"] = torch.cat([td["observation", "position"], td["info", "code"] * 2])
        return td.exclude("observation")

    found, step = run(fn, PIECE, on="observations", vectorize=vectorize)
    assert step.run == ("vectorised" if vectorize else "rows")
    assert set(found.batch.observations) == {("obs",), ("info", "code")}
    assert found.batch.steps is PIECE.batch.steps
    for row, old in zip(ted_rows(found), ted_rows(PIECE), strict=True):
        assert row[OBS].tolist() == [*old[POSITION], 2 * old[CODE][0]]
        assert row[after(OBS)].tolist() == [*old[after(POSITION)], 2 * old[after(CODE)][0]]
        assert (row[ACTION] == old[ACTION]).all()
    assert found.batch.observations["info", "code"] is PIECE.batch.observations["info", "code"] or (
        not vectorize
    )


def test_blocks_of_observations() -> None:
    sizes: list[int] = []

    def fn(td: Any) -> Any:
        sizes.append(len(td))
        return td.set("mean", td["observation", "velocity"].mean().expand(len(td)))

    step = ready(fn, PIECE, on="observations", batched=4)
    sizes.clear()
    found = step.apply(PIECE).batch.observations["mean",]
    velocity = PIECE.batch.observations[VELOCITY]
    expected = [velocity[:4].mean()] * 4 + [velocity[4:8].mean()] * 4 + [velocity[8:].mean()] * 3
    assert sizes == [4, 4, 3]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_place_in_a_message() -> None:
    def fails(td: Any) -> Any:
        assert td["observation", "position"][0] != 1005
        return td

    with pytest.raises(StepError, match=r"failed on the observation after row 7 .*AssertionError"):
        run(fails, PIECE, on="observations")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda td: {**td, "action": torch.ones(2)}, "'action', and there is another leaf"),
        (lambda td: {**td, "action": {"x": torch.ones(2)}}, "'action', and there is another leaf"),
        (lambda td: {**td, "mission": torch.ones(2)}, "'mission', and there is another leaf"),
        (lambda td: {**td, "reward": torch.ones(1)}, "'reward', and there is another leaf"),
        (lambda td: {**td, "next": {"x": torch.ones(2)}}, "no observation.*named 'next/x'"),
        (lambda td: {**td, "done": torch.ones(2)}, "no observation.*named 'done'"),
        (lambda td: {**td, "index": torch.ones(2)}, "no observation.*named 'index'"),
        (lambda _: {}, "without leaves for the observation before row 4"),
        (lambda _: None, "returned None .is a `return` missing"),
    ],
)
def test_no_observations(fn: Fn, message: str) -> None:
    with pytest.raises(StepError, match=message):
        run(fn, PIECE, on="observations")


def test_text_of_observations() -> None:
    said = ("observation", "said")
    piece = with_leaves(
        PIECE,
        observations={"observation.said": (np.arange(11) % 3 - 1).astype(np.int32)},
        words={"observation.said": ["yes", "no"]},
    )
    found, _ = run(lambda td: td.set(said, (td[said] + 2) % 3 - 1), piece, on="observations")
    assert found.words[said] == ["yes", "no"]
    assert found.batch.observations[said].tolist() == [0, 1, -1] * 3 + [0, 1]
    place = r"the observation (before row 6|after row 5) \(.*\)"
    message = rf"'observation/said' at {place} the code 2, which stands for no text"
    for vectorize in (True, False):
        with pytest.raises(StepError, match=message):
            run(
                lambda td: td.set(said, torch.where(td[said] == 1, 2, td[said])),
                piece,
                on="observations",
                vectorize=vectorize,
            )
    found, _ = run(lambda td: td.set(said, td[said].long() * 2), piece, on="observations")
    assert said not in found.words


GIVEN = ["index", "episode", "done", "terminated", "truncated"]


@pytest.mark.parametrize("vectorize", [True, False])
@pytest.mark.parametrize("name", GIVEN)
def test_what_follows_from_a_place_cannot_be_changed(name: str, vectorize: bool) -> None:
    changes: list[Fn] = [
        lambda td: td.set(name, ~td[name] if td[name].dtype == torch.bool else td[name] + 1),
        lambda td: td.set(name, td[name].unsqueeze(-1)),
    ]
    for change in changes:
        with pytest.raises(StepError, match=f"changed '{name}' at row 4 .episode 1, step 0.") as e:
            run(change, PIECE, vectorize=vectorize)
        assert "by='episode'" in str(e.value.hint)
    found, _ = run(lambda td: td.exclude(name), PIECE, vectorize=vectorize)
    assert_same_piece(found, PIECE)


@pytest.mark.parametrize("vectorize", [True, False])
def test_done_follows_from_the_flags(vectorize: bool) -> None:
    """It may be left as it was, or set right; not set otherwise."""

    def ends(td: Any) -> Any:
        return td.set(("next", "terminated"), td["action"][:1] == 1002)

    def ends_and_says_so(td: Any) -> Any:
        td = ends(td)
        return td.set(("next", "done"), td["next", "terminated"] | td["next", "truncated"])

    for fn in (ends, ends_and_says_so):
        found, _ = run(fn, PIECE, vectorize=vectorize)
        assert found.batch.steps["next", "terminated"].ravel().tolist() == [0, 1, 0, 0, 0, 0, 0, 0]
    with pytest.raises(StepError, match=r"changed 'next/done' at row 5 \(episode 1, step 1\)"):
        run(
            lambda td: td.set(("next", "done"), td["next", "done"] | (td["action"][:1] == 1002)),
            PIECE,
            vectorize=vectorize,
        )


def test_untouched_columns_are_taken_over() -> None:
    """Those of the piece itself, strided and read-only as they are."""
    piece = as_stored(PIECE)

    def fn(td: Any) -> Any:
        td["next", "reward"] = td["next", "reward"] * 2
        td["observation", "velocity"].add_(1)
        td["next", "observation", "velocity"].add_(1)
        return td.exclude("mission")

    found, step = run(fn, piece)
    assert step.run == "vectorised"
    assert found.batch.observations[POSITION] is piece.batch.observations[POSITION]
    assert found.batch.steps[ACTION] is piece.batch.steps[ACTION]
    assert (found.batch.observations[VELOCITY] == PIECE.batch.observations[VELOCITY] + 1).all()
    assert ("mission",) not in found.batch.steps

    view, table = Transitions(), Transitions().table(piece)
    other = {
        **table,
        POSITION: table[POSITION] + 1,
        ("next", *POSITION): table[after(POSITION)] + 1,
    }
    for untouched, expected in ((frozenset(), 1), (frozenset([POSITION, ("next", *POSITION)]), 0)):
        made = view.rebuilt(piece, Made(other, frozenset(untouched)), ())[0]
        wanted = piece.batch.observations[POSITION] + expected
        assert (made.batch.observations[POSITION] == wanted).all()
