from __future__ import annotations

import ast
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.errors import UsageError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.steps.expressions import HINT, Expression, Text

RETURNS = [3.5, -7.0, 12.25, math.nan, 12.25]
LENGTHS = [10, 25, 3, 40, 8]
IDS = ["a", "b", None, "c-3", "a"]

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
def test_values(text: str, want: list[bool]) -> None:
    assert told(text) == want


def test_percentiles_are_interpolated() -> None:
    ordered = sorted(LENGTHS)  # 3 8 10 25 40: 60 % of the way is between the third and the fourth
    between = ordered[2] + 0.4 * (ordered[3] - ordered[2])
    assert told(f"percentile(length, 60) - {between} < 1e-9 and length > 0") == [True] * 5
    assert told(f"{between} - percentile(length, 60) < 1e-9 and length > 0") == [True] * 5


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
