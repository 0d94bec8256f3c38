"""Steps that choose episodes, and the expressions they choose by."""

from __future__ import annotations

import ast
import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import offline_data
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.errors import StepError, UsageError
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.base import Selection
from offline_data.preprocess.steps.episodes import DIGEST, Dedupe, Filter, Split
from offline_data.preprocess.steps.expressions import HINT, Expression, Text
from offline_data.preprocess.steps.registry import parse_step
from offline_data.store.reader import open_reader
from offline_data.testing.pieces import as_stored, episodes_of, joined, toy_piece, with_leaves
from offline_data.testing.toy import toy_batch, write_toy


def digests(piece: Piece) -> list[tuple[int, ...]]:
    found = Dedupe().measure(piece)[DIGEST]
    assert (found.dtype, found.shape) == (np.dtype("u8"), (len(piece.episodes), 2))
    return [tuple(row) for row in found.tolist()]


def kept(piece: Piece) -> Any:
    return Dedupe().choose(Dedupe().measure(piece), {}).tolist()


def repeated(*numbers: int) -> Piece:
    """Episodes of a toy piece in any order, each as often as it is named."""
    alone = episodes_of(toy_piece([3, 1, 3, 2]))
    return joined([alone[number] for number in numbers])


@pytest.mark.parametrize(
    ("numbers", "want"),
    [
        ((0, 1, 2, 3), [True, True, True, True]),
        ((0, 0), [True, False]),
        ((3, 1, 3, 0, 1, 3, 2), [True, True, False, True, False, False, True]),
        ((2,), [True]),
    ],
)
def test_the_first_of_each_stays(numbers: tuple[int, ...], want: list[bool]) -> None:
    assert kept(repeated(*numbers)) == want
    assert kept(as_stored(repeated(*numbers))) == want


def test_columns_of_the_episode_table_do_not_count() -> None:
    piece = repeated(1, 1)
    other = replace(piece.batch, episodes={("seed",): np.array([4, 5])})
    assert kept(replace(piece, batch=other)) == [True, False]


STEPS = [("action",), ("mission",), ("next", "reward"), ("next", "truncated")]


OBSERVATIONS = [("observation", "position"), ("observation", "velocity"), ("info", "code")]


def changed(piece: Piece, table: str, key: tuple[str, ...], row: int) -> Piece:
    """Flip the last bit of one item."""
    columns = dict(getattr(piece.batch, table))
    values = columns[key].copy()
    values.reshape(len(values), -1).view(np.uint8)[row, 0] ^= 1
    return piece.having(**{table: {**columns, key: values}})


@pytest.mark.parametrize("key", STEPS)
@pytest.mark.parametrize("row", [3, 4, 5])
def test_one_bit_of_a_step_counts(key: tuple[str, ...], row: int) -> None:
    piece = repeated(0, 0)
    assert kept(changed(piece, "steps", key, row)) == [True, True]


@pytest.mark.parametrize("key", OBSERVATIONS)
@pytest.mark.parametrize("row", [0, 3, 4, 7])
def test_one_bit_of_an_observation_counts(key: tuple[str, ...], row: int) -> None:
    piece = repeated(0, 0)
    assert kept(changed(piece, "observations", key, row)) == [True, True]


def test_whether_the_last_observation_is_known_counts() -> None:
    piece = repeated(0, 0)
    unknown = replace(piece.batch, final_observation=np.array([True, False]))
    assert kept(replace(piece, batch=unknown)) == [True, True]


def test_it_is_bytes_that_count() -> None:
    def with_values(values: list[float]) -> Piece:
        return with_leaves(repeated(1, 1), steps={"x": np.array(values, np.float32)})

    assert kept(with_values([0.0, -0.0])) == [True, True]
    assert kept(with_values([np.nan, np.nan])) == [True, False]
    assert kept(with_values([np.nan, -np.nan])) == [True, True]


def test_neither_a_seam_nor_the_type_is_lost() -> None:
    """Bytes in the same order with another cut, key or type are another content."""
    piece = repeated(1)
    pair = np.array([[1, 2]], np.int16)
    variants: list[dict[str, Any]] = [
        {"a": pair},
        {"b": pair},
        {"a": pair.view(np.uint16)},
        {"a": pair.view(np.int32)},
        {"a": pair[:, None]},
        {"a": pair[:, :1], "b": pair[:, 1:]},
        {"a": pair, "empty": np.zeros((1, 0), np.int16)},
    ]
    found = [digests(with_leaves(piece, steps=steps))[0] for steps in variants]
    assert len(set(found)) == len(variants)


def test_leaves_without_numbers_and_no_observations_at_all() -> None:
    piece = with_leaves(repeated(0, 1, 0), steps={"empty": np.zeros((7, 0, 3))})
    assert kept(piece) == [True, True, False]
    assert kept(piece.having(observations={})) == [True, True, False]


def test_digests_are_the_same_on_every_machine() -> None:
    """A table of an interrupted run is taken up again by another version of this package."""
    import hashlib

    piece = repeated(1)
    batch = piece.batch
    schema = [
        [(key, table[key].dtype.str, table[key].shape[1:]) for key in sorted(table)]
        for table in (batch.steps, batch.observations)
    ]
    content = repr(schema).encode()
    for table in (batch.steps, batch.observations):
        rows = len(next(iter(table.values())))
        for row in range(rows):
            content += b"".join(table[key][row].tobytes() for key in sorted(table))
    want = hashlib.blake2b(content + b"\1", digest_size=16).digest()
    assert np.array(digests(piece), "<u8").tobytes() == want


def test_after_a_function_that_leaves_episodes_out(tmp_path: Path) -> None:
    batches = [toy_batch([3, 2]), toy_batch([3, 2, 4])]
    write_toy(tmp_path / "toy", batches)

    def without_short(episode: Any) -> Any:
        return episode if len(episode) > 2 else None

    offline_data.open_dataset(tmp_path / "toy").preprocess(
        [without_short, "dedupe"], by="episode", dest=tmp_path / "made"
    )
    made = open_reader(tmp_path / "made")
    assert made.lengths.tolist() == [3, 4]
    assert made.episodes[("id",)].tolist() == [0, 2]
    assert made.step(("action",))[:, 0].tolist() == [-1001, -1002, -1003, *range(-3001, -3005, -1)]


ID = ("id",)


def chosen(text: str, table: Any, words: Any = None) -> Any:
    step = parse_step(f"filter:{text}")
    assert isinstance(step, Filter)
    return step.choose(table, words or {}).tolist()


def toy_table() -> dict[tuple[str, ...], Any]:
    step = Filter("length > 0")
    return dict(step.measure(toy_piece([3, 1, 4, 2], first_episode=5, unknown_final=[6])))


def test_fields_of_the_episode_table() -> None:
    table = toy_table()
    piece = toy_piece([3, 1, 4, 2], first_episode=5, unknown_final=[6])
    rewards = piece.batch.steps["next", "reward"][:, 0].tolist()
    returns = [sum(rewards[:3]), sum(rewards[3:4]), sum(rewards[4:8]), sum(rewards[8:])]
    assert chosen("return > 2000", table) == [value > 2000 for value in returns]
    assert chosen("length in [3, 2]", table) == [True, False, False, True]
    assert chosen("number == 7", table) == [False, False, True, False]
    assert chosen("seed > 106", table) == [False, False, True, True]
    assert chosen("terminated", table) == [False, True, False, True]
    assert chosen("truncated", table) == [True, False, True, False]
    assert chosen("not final_observation", table) == [False, True, False, False]


def test_the_best_tenth() -> None:
    returns = np.random.default_rng(0).permutation(100).astype(float)
    found = chosen("return >= percentile(return, 90)", {("return",): returns})
    assert found == [value >= 90 for value in returns]


def test_commas_and_equal_signs_are_the_expressions_own() -> None:
    assert parse_step("filter: seed in [1, 2] and length==3 ") == Filter(
        "seed in [1, 2] and length==3"
    )


def test_text_by_its_words() -> None:
    table = {ID: np.array([2, 0, -1], np.int32), ("length",): np.array([1, 2, 3])}
    words = {ID: ["3", "7", "x"]}
    assert chosen('id != "3"', table, words) == [True, False, True]
    assert chosen("id in ['3', 'x'] and length < 2", table, words) == [True, False, False]
    with pytest.raises(StepError, match="text with a number"):
        chosen("id == 3", table, words)


@pytest.mark.parametrize("dtype", ["?", "u1", "i4", "u8", "f2", "f4"])
def test_columns_of_any_number(dtype: str) -> None:
    table = {("task", "good"): np.array([[1], [0], [1]], dtype)}
    assert chosen("task.good == 1", table) == [True, False, True]


def test_whole_numbers_do_not_overflow() -> None:
    table = {("task",): np.array([200, 100, 7], np.uint8)}
    assert chosen("task * 2 > 300", table) == [True, False, False]
    assert chosen("-task < -100", table) == [True, False, False]


@pytest.mark.parametrize(
    "column", [np.ones((3, 2)), np.ones(3, complex), np.array(["a", "b", "c"], object)]
)
def test_columns_that_are_no_field(column: Any) -> None:
    with pytest.raises(StepError, match=r"Step 'filter': 'goal' is .* for each episode"):
        chosen("goal == 1", {("goal",): column})
    assert chosen("length == 2", {("goal",): column, ("length",): np.array([1, 2, 3])}) == [
        False,
        True,
        False,
    ]


def test_a_field_that_is_not_there() -> None:
    with pytest.raises(StepError, match=r"have no 'lenght'; there are seed, number") as caught:
        parse_step("filter:lenght > 3").settled(toy_piece([2]))
    assert caught.value.hint == "did you mean 'length'?"
    with pytest.raises(StepError, match="have no 'lenght'"):
        chosen("lenght > 3", {("length",): np.array([1])})
    step = parse_step("filter:return > 3")
    assert step.settled(toy_piece([2])) == step


def test_nothing_is_left() -> None:
    table = {("return",): np.array([3.5, -7.0]), ID: np.array([0, 1], np.int32)}
    words = {ID: ["a", "b"]}
    with pytest.raises(StepError) as caught:
        chosen("return > 100 or id == 'c'", table, words)
    assert str(caught.value) == (
        "Step 'filter' leaves none of 2 episodes by \"return > 100 or id == 'c'\": return is from "
        "-7.0 to 3.5, id is one of ['a', 'b']"
    )


def test_what_cannot_be_read() -> None:
    with pytest.raises(UsageError, match="cannot be read after 'length'") as caught:
        parse_step("filter:length => 3")
    assert "percentile" in str(caught.value.hint)
    with pytest.raises(UsageError, match="no function 'open'"):
        Filter("open('x') == length")


SHARES = "train=0.7,val=0.2,test=0.1,seed=3"


def picked(text: str, count: int) -> Any:
    step = parse_step(text)
    assert isinstance(step, Selection)
    found = step.choose({("length",): np.ones(count, np.int64)}, {})
    assert (found.dtype, found.shape) == (np.dtype(bool), (count,))
    return found.nonzero()[0].tolist()


def test_parts_are_disjoint_and_cover() -> None:
    parts = [picked(f"split:{name},{SHARES}", 43) for name in ("train", "val", "test")]
    assert [len(part) for part in parts] == [30, 9, 4]
    assert sorted(itertools.chain(*parts)) == list(range(43))


def test_the_seed_counts_and_is_0_if_not_given() -> None:
    texts = [f"split:a,a=0.5,b=0.5{seed}" for seed in ("", ",seed=0", ",seed=1")]
    none, zero, one = (picked(text, 40) for text in texts)
    assert none == zero != one
    assert none != list(range(20))


def test_it_has_the_episodes_of_the_view(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([1 + e % 3 for e in range(23)])])
    ds = BaseDatasetExperienceReplay(tmp_path / "toy")
    views = ds.split(train=0.7, val=0.2, test=0.1, seed=3)
    for name, view in views.items():
        assert picked(f"split:{name},{SHARES}", 23) == view.episodes.numbers.tolist()


def test_values() -> None:
    step = parse_step(f"split: val , {SHARES}")
    assert step == Split("val", (("train", 0.7), ("val", 0.2), ("test", 0.1)), 3)
    assert step.describe() == {
        "step": "split",
        "part": "val",
        "shares": [["train", 0.7], ["val", 0.2], ["test", 0.1]],
        "seed": 3,
    }
    turned = parse_step("split:val,val=0.2,train=0.7,test=0.1,seed=3")
    assert turned != step  # the order of shares decides who gets which episodes
    assert picked("split:val,val=0.2,train=0.7,test=0.1,seed=3", 43) != picked(
        f"split:val,{SHARES}", 43
    )


def test_a_part_without_an_episode() -> None:
    with pytest.raises(StepError, match=r"Step 'split': val=0\.01 of 5 episodes is no episode"):
        picked("split:train,train=0.99,val=0.01", 5)


@pytest.mark.parametrize("count", [1, 9, 10, 11])
def test_every_so_many(count: int) -> None:
    assert picked("subsample:every=10", count) == [e for e in range(count) if e % 10 == 0]
    assert picked("subsample:every=1", count) == list(range(count))


@pytest.mark.parametrize(
    ("fraction", "count", "kept"),
    [(0.1, 100, 10), (0.1, 104, 10), (0.1, 105, 11), (0.001, 5, 1), (1, 7, 7), (0.29, 100, 29)],
)
def test_a_fraction_is_rounded_and_never_nothing(fraction: float, count: int, kept: int) -> None:
    assert len(picked(f"subsample:fraction={fraction}", count)) == kept


def test_a_number_of_episodes() -> None:
    assert len(picked("subsample:episodes=13", 40)) == 13
    assert picked("subsample:episodes=40", 40) == list(range(40))
    with pytest.raises(StepError, match="keep 41 episodes, and there are 40") as caught:
        picked("subsample:episodes=41", 40)
    assert caught.value.hint == "subsample:fraction=1 keeps all"


def test_the_seed_counts_and_fewer_are_a_part_of_more() -> None:
    zero, one = (
        picked("subsample:episodes=20,seed=0", 100),
        picked("subsample:episodes=20,seed=1", 100),
    )
    assert zero == picked("subsample:episodes=20", 100) == picked("subsample:0.2", 100)
    assert zero != one
    assert zero != list(range(20))
    assert set(picked("subsample:episodes=5", 100)) < set(zero)


def test_a_fraction_is_the_first_share_of_a_split() -> None:
    split = parse_step("split:a,a=0.3,b=0.7,seed=4")
    assert isinstance(split, Selection)
    want = split.choose({("length",): np.ones(33, np.int64)}, {}).nonzero()[0].tolist()
    assert picked("subsample:fraction=0.3,seed=4", 33) == want


RETURNS = [3.5, -7.0, 12.25, math.nan, 12.25]


LENGTHS = [10, 25, 3, 40, 8]


COLUMNS: dict[str, Any] = {
    "return": np.array(RETURNS),
    "length": np.array(LENGTHS),
    "terminated": np.array([True, False, True, True, False]),
    "id": Text(np.array([0, 1, -1, 2, 0], np.int32), ["a", "b", "c-3"]),
    "info.class": np.array([2, 3, 5, 7, 11]),
}


def told(text: str) -> Any:
    return Expression(text).evaluate(COLUMNS, 5).tolist()


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("return > 3", [r > 3 for r in RETURNS]),
        ("return != 12.25", [r != 12.25 for r in RETURNS]),
        ("3 <= length < 25", [3 <= n < 25 for n in LENGTHS]),
        ("length < 10 < return", [n < 10 < r for n, r in zip(LENGTHS, RETURNS, strict=True)]),
        ("length in [3, 2 * 4, 99]", [n in (3, 8) for n in LENGTHS]),
        ("length not in (3, 8)", [n not in (3, 8) for n in LENGTHS]),
        ("length in []", [False] * 5),
        ("terminated", [True, False, True, True, False]),
        ("not terminated", [False, True, False, False, True]),
        ("terminated == True", [True, False, True, True, False]),
        ("terminated == 0", [False, True, False, False, True]),
        ("terminated + terminated == 2", [True, False, True, True, False]),
        ("-return / length < -0.3", [-r / n < -0.3 for r, n in zip(RETURNS, LENGTHS, strict=True)]),
        ("length % 5 == 3", [n % 5 == 3 for n in LENGTHS]),
        ("(length - +1) * 2 > 18", [(n - 1) * 2 > 18 for n in LENGTHS]),
        ("length / 0 > 5", [True] * 5),
        ("id == 'a'", [True, False, False, False, True]),
        ('"a" == id', [True, False, False, False, True]),
        ("id != 'a'", [False, True, True, True, False]),
        ("id in ['b', 'c-3', 'x']", [False, True, False, True, False]),
        ("id not in ['b']", [True, False, True, True, True]),
        ("info.class == 5", [False, False, True, False, False]),
        ("length == 3 or id == 'a' and return > 10", [False, False, True, False, True]),
        ("(length == 3 or id == 'a') and return > 10", [False, False, True, False, True]),
        ("not length == 3", [n != 3 for n in LENGTHS]),
        ("length > mean(length)", [n > sum(LENGTHS) / 5 for n in LENGTHS]),
        ("length == max(length)", [False, False, False, True, False]),
        ("length == min(length)", [False, False, True, False, False]),
        ("return == max(return)", [False, False, True, False, True]),
        ("mean(terminated) == 0.6 and length > 0", [True] * 5),
        ("length >= percentile(length, 50)", [n >= 10 for n in LENGTHS]),
        ("return >= percentile(return, 50)", [False, False, True, False, True]),
        ("max(length / info.class) == length / info.class", [False, True, False, False, False]),
    ],
)
def test_expression_values(text: str, want: list[bool]) -> None:
    assert told(text) == want


def test_whole_numbers_are_compared_exactly() -> None:
    columns = {
        "seed": np.array([2**63 + 1, 2**63], np.uint64),
        "other": np.array([2**53 + 1, 2**53]),
    }
    for text in (f"seed == {2**63 + 1}", f"other == {2**53 + 1}", f"other in [{2**53 + 1}]"):
        assert Expression(text).evaluate(columns, 2).tolist() == [True, False]


def test_nothing_known_is_no_extreme() -> None:
    columns = {"return": np.array([math.nan, math.nan])}
    for call in ("min(return)", "max(return)", "mean(return)", "percentile(return, 9)"):
        assert Expression(f"return >= {call}").evaluate(columns, 2).tolist() == [False, False]


NAMES = st.sampled_from(["x", "y", "return", "2", "0.5", "-3"])


@st.composite
def numbers(draw: Any, depth: int = 2) -> str:
    if depth == 0 or draw(st.booleans()):
        return str(draw(NAMES))
    operator = draw(st.sampled_from("+-*"))
    return f"({draw(numbers(depth - 1))} {operator} {draw(numbers(depth - 1))})"


@st.composite
def flags(draw: Any, depth: int = 2) -> str:
    if depth == 0 or draw(st.booleans()):
        operator = draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]))
        return f"{draw(numbers())} {operator} {draw(numbers())}"
    kind = draw(st.sampled_from(["and", "or", "not"]))
    if kind == "not":
        return f"not ({draw(flags(depth - 1))})"
    return f"({draw(flags(depth - 1))} {kind} {draw(flags(depth - 1))})"


def of_row(node: ast.expr, row: dict[str, float]) -> Any:
    """Walk the tree for one row with plain numbers."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return row[node.id]
    if isinstance(node, ast.UnaryOp):
        inner = of_row(node.operand, row)
        return (not inner) if isinstance(node.op, ast.Not) else -inner
    if isinstance(node, ast.BoolOp):
        parts = [of_row(one, row) for one in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if isinstance(node, ast.BinOp):
        one, two = of_row(node.left, row), of_row(node.right, row)
        return {ast.Add: one + two, ast.Sub: one - two, ast.Mult: one * two}[type(node.op)]
    assert isinstance(node, ast.Compare)
    one, two = of_row(node.left, row), of_row(node.comparators[0], row)
    return {
        ast.Lt: one < two, ast.LtE: one <= two, ast.Gt: one > two,
        ast.GtE: one >= two, ast.Eq: one == two, ast.NotEq: one != two,
    }[type(node.ops[0])]  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(text=flags())
def test_columns_are_what_rows_are_one_by_one(text: str) -> None:
    columns = {"x": np.array([1, 2, -3]), "y": np.array([0.5, 2.0, 7.0]), "return": np.arange(3)}
    tree = ast.parse(text.replace("return", "return_"), mode="eval").body
    want = [
        of_row(tree, {"x": x, "y": y, "return_": r})
        for x, y, r in zip(*(columns[k].tolist() for k in ("x", "y", "return")), strict=True)
    ]
    if any(name in text for name in columns):
        assert Expression(text).evaluate(columns, 3).tolist() == want


def test_fields_in_order() -> None:
    text = "return > 1 and (id == 'length' or percentile(info.class, 5) > return)"
    assert Expression(text).fields == ("return", "id", "info.class")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "cannot be read"),
        ("return >", "cannot be read"),
        ("return = 5", "cannot be read"),
        ("return > 5 && length > 3", "cannot be read"),
        ("(return > 5", "cannot be read"),
        ("id == 'a", "cannot be read"),
        ("return > 5; length > 3", "cannot be read"),
        ("lambda x: x", "cannot be read"),
        ("length is 3", "cannot be read"),
        ("length if id else 3", "cannot be read"),
        ("return > 5\nlength > 3", "cannot be read"),
        ("length\0", "cannot be read"),
        ("(length := 3) > 1", "'(length := 3)' is no part"),
        ("return > 5 & length", "'5 & length' has an operator that is not known"),
        ("length ** 9 > 1", "'length ** 9' has an operator"),
        ("length // 2 > 1", "'length // 2' has an operator"),
        ("~terminated", "'~terminated' has an operator"),
        ("length in 3", "in takes a list [a, b], not '3'"),
        ("length in id", "in takes a list [a, b], not 'id'"),
        ("length in [3] == terminated", "nothing is compared with a list, as '[3]'"),
        ("[length] == 3", "'[length]' is no part"),
        ("length[0] == 3", "'length[0]' is no part"),
        ("{length} == 3", "'{length}' is no part"),
        ("[x for x in length] == 3", "cannot be read"),
        ("f'{length}' == 'a'", "is no part"),
        ("length == 3j", "'3j' is no part"),
        ("id == b'a'", "is no part"),
        ("length == ...", "is no part"),
        ("length == 99999999999999999999", "99999999999999999999 is too large"),
        ("median(length) > 3", "there is no function 'median'"),
        ("id.strip() == 'a'", "there is no function 'id.strip'"),
        ("min(length)(3) > 2", "there is no function 'min(length)'"),
        ("min(length).real > 2", "'min(length).real' is no part"),
        ("'a'.x == 2", "is no part"),
        ("min(length, 3) > 2", "min takes one value"),
        ("percentile(length) > 2", "percentile takes 2 values"),
        ("percentile(length, q=3) > 2", "percentile takes 2 values"),
        ("percentile(*length) > 2", "percentile takes 2 values"),
        ("mean(*length) > 2", "'*length' is no part"),
        ("mean(x=length) > 2", "mean takes one value"),
        ("1 < 2", "it names no field"),
        ("-" * 60 + "length > 1", "more than 50 levels"),
        ("(" * 10_000 + "length" + ")" * 10_000, "more than 20000 characters"),
        ("(" * 5000 + "length" + ")" * 5000, "cannot be read"),
    ],
)
def test_what_is_no_expression(text: str, what: str) -> None:
    with pytest.raises(UsageError) as caught:
        Expression(text)
    assert what in str(caught.value)
    assert caught.value.hint == HINT


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('touch x') == 0 and length",
        "open('x') == length",
        "length.__class__.__base__.__subclasses__() == 1",
        "(lambda: length)() == 1",
        "[length for _ in (1,)][0] == 1",
        "globals()['x'] == length",
    ],
)
def test_nothing_of_it_is_run(text: str) -> None:
    with pytest.raises(UsageError):
        Expression(text)


def test_odd_spelling_warns_nobody() -> None:
    assert told("length == 3or id == 'c\\-3'") == [False, False, True, False, False]


def test_words_of_python_are_names_here_and_quoted_text_is_left_alone() -> None:
    columns = {"class": Text(np.array([0, 1], np.int32), ["return", "for 'import'"])}
    assert Expression("class == 'return'").evaluate(columns, 2).tolist() == [True, False]
    assert Expression("class == \"for 'import'\"").evaluate(columns, 2).tolist() == [False, True]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("length", "'length' is a number, where true or false is wanted"),
        ("id", "'id' is text, where true or false is wanted"),
        ("length and terminated", "'length' is a number"),
        ("not length", "'length' is a number"),
        ("terminated or return", "'return' is a number"),
        ("length + 1", "'length + 1' is a number"),
        ("id == 3", "'id' and '3': text with a number cannot be compared"),
        ("length == '3'", "'length' and \"'3'\": text with a number"),
        ("length in ['3']", "text with a number"),
        ("id == id", "two fields of text cannot be compared"),
        ("id > 'a'", "'id' is text, where a number is wanted"),
        ("id + 1 == 2", "'id' is text"),
        ("-id == 2", "'id' is text"),
        ("length + 'a' == 2", "\"'a'\" is text"),
        ("max(id) == 2", "'id' is text"),
        ("percentile(length, 101) > 2", "expected a number from 0 to 100"),
        ("percentile(length, -1) > 2", "expected a number from 0 to 100"),
        ("percentile(length, return) > 2", "expected a number from 0 to 100"),
        ("percentile(length, 'a') > 2", "\"'a'\" is text"),
    ],
)
def test_what_does_not_fit_the_fields(text: str, what: str) -> None:
    with pytest.raises(StepError) as caught:
        told(text)
    assert what in str(caught.value)
    assert caught.value.hint
