"""Steps that choose episodes, and the expressions they choose by."""

from __future__ import annotations

import hashlib
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
from offline_data.base.errors import UsageError
from offline_data.pipeline.preprocess.steps.base import Selection
from offline_data.pipeline.preprocess.steps.episodes import DIGEST, Dedupe, Filter
from offline_data.pipeline.preprocess.steps.expressions import HINT, Expression
from offline_data.pipeline.preprocess.steps.registry import parse_step
from offline_data.store.chunk import EpisodeChunk
from offline_data.store.reader import open_reader
from offline_data.testing.chunks import as_stored, episodes_of, join_chunks, toy_chunk, with_leaves
from offline_data.testing.toy import toy_batch, write_toy


def digests(chunk: EpisodeChunk) -> Any:
    found = Dedupe().measure(chunk)[DIGEST]
    assert (found.dtype, found.shape) == (np.dtype("u8"), (len(chunk.episodes), 2))
    return found


def kept(chunk: EpisodeChunk) -> Any:
    return Dedupe().choose(Dedupe().measure(chunk), {}).tolist()


def repeated(*numbers: int) -> EpisodeChunk:
    """Episodes of a toy chunk in any order, each as often as it is named."""
    alone = episodes_of(toy_chunk([3, 1, 3, 2]))
    return join_chunks([alone[number] for number in numbers])


@pytest.mark.parametrize(
    ("numbers", "want"),
    [
        ((0, 1, 2, 3), [True, True, True, True]),
        ((3, 1, 3, 0, 1, 3, 2), [True, True, False, True, False, False, True]),
    ],
)
def test_the_first_of_each_stays(numbers: tuple[int, ...], want: list[bool]) -> None:
    chunk = repeated(*numbers)
    assert kept(chunk) == kept(as_stored(chunk)) == want
    other = replace(chunk.batch, episodes={("seed",): np.arange(len(numbers))})
    assert kept(replace(chunk, batch=other)) == want
    empty = with_leaves(chunk, steps={"empty": np.zeros((chunk.batch.transitions, 0, 3))})
    assert kept(empty) == kept(empty.having(observations={})) == want


def test_one_bit_counts() -> None:
    chunk = repeated(0, 0)
    for table in ("steps", "observations"):
        for key, column in getattr(chunk.batch, table).items():
            for row in (0, len(column) // 2, len(column) - 1):
                values = column.copy()
                values.reshape(len(values), -1).view(np.uint8)[row, 0] ^= 1
                columns = {**getattr(chunk.batch, table), key: values}
                assert kept(chunk.having(**{table: columns})) == [True, True], (key, row)
    unknown = replace(chunk.batch, final_observation=np.array([True, False]))
    assert kept(replace(chunk, batch=unknown)) == [True, True]


@pytest.mark.parametrize(
    ("values", "want"),
    [([0.0, -0.0], True), ([np.nan, np.nan], False), ([np.nan, -np.nan], True)],
)
def test_bytes_count(values: list[float], want: bool) -> None:
    column = np.array(values, np.float32)
    assert kept(with_leaves(repeated(1, 1), steps={"x": column})) == [True, want]


def test_neither_a_seam_nor_the_type_is_lost() -> None:
    """Bytes in the same order with another cut, key or type are another content."""
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
    found = [digests(with_leaves(repeated(1), steps=steps)).tobytes() for steps in variants]
    assert len(set(found)) == len(variants)


def test_digests_are_the_same_on_every_machine() -> None:
    """A table of an interrupted run is taken up again by another version of this package."""
    batch = repeated(1).batch
    tables = (batch.steps, batch.observations)
    schema = [[(k, t[k].dtype.str, t[k].shape[1:]) for k in sorted(t)] for t in tables]
    content = repr(schema).encode()
    for table in tables:
        for row in range(len(next(iter(table.values())))):
            content += b"".join(table[key][row].tobytes() for key in sorted(table))
    want = hashlib.blake2b(content + b"\1", digest_size=16).digest()
    assert np.array(digests(repeated(1)), "<u8").tobytes() == want


def test_after_a_function_that_leaves_episodes_out(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([3, 2]), toy_batch([3, 2, 4])])

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


TABLE = Filter("length > 0").measure(toy_chunk([3, 1, 4, 2], first_episode=5, unknown_final=[6]))
WORDS = {ID: ["3", "7", "x"]}
TEXTS = {ID: np.array([2, 0, -1], np.int32), ("length",): np.array([1, 2, 3])}
MORE = {**TEXTS, ("goal",): np.ones((3, 2))}


@pytest.mark.parametrize(
    ("text", "table", "want"),
    [
        ("return > 2000", TABLE, [False, False, True, True]),
        ("length in [3, 2]", TABLE, [True, False, False, True]),
        ("number == 7", TABLE, [False, False, True, False]),
        ("seed > 106", TABLE, [False, False, True, True]),
        ("terminated", TABLE, [False, True, False, True]),
        ("truncated", TABLE, [True, False, True, False]),
        ("not final_observation", TABLE, [False, True, False, False]),
        ('id != "3"', TEXTS, [True, False, True]),
        ("id in ['3', 'x'] and length < 2", TEXTS, [True, False, False]),
        ("length == 2", MORE, [False, True, False]),
    ],
)
def test_fields_of_the_episode_table(text: str, table: Any, want: list[bool]) -> None:
    assert chosen(text, table, WORDS) == want


@pytest.mark.parametrize("dtype", ["?", "u1", "u8", "f2"])
def test_columns_of_any_number(dtype: str) -> None:
    table = {("task", "good"): np.array([[200], [100], [1]]).astype(dtype)}
    assert chosen("task.good == 1", table) == [dtype == "?", dtype == "?", True]
    assert chosen("task.good * 2 > 300 or task.good == 1", table) == [True, dtype == "?", True]


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
    turned = picked("split:val,val=0.2,train=0.7,test=0.1,seed=3", 43)
    assert turned != parts[1]  # the order of shares decides who gets which episodes


def test_the_seed_counts_and_is_0_if_not_given() -> None:
    for text in ("split:a,a=0.5,b=0.5", "subsample:episodes=20"):
        none, zero, one = (picked(f"{text}{seed}", 40) for seed in ("", ",seed=0", ",seed=1"))
        assert none == zero != one
        assert none != list(range(20))


def test_a_split_has_the_episodes_of_the_view(tmp_path: Path) -> None:
    write_toy(tmp_path / "toy", [toy_batch([1 + e % 3 for e in range(23)])])
    views = offline_data.open_dataset(tmp_path / "toy").split(train=0.7, val=0.2, test=0.1, seed=3)
    for name, view in views.items():
        assert picked(f"split:{name},{SHARES}", 23) == view.episodes.numbers.tolist()


@pytest.mark.parametrize("count", [1, 10, 11])
def test_every_so_many(count: int) -> None:
    assert picked("subsample:every=10", count) == [e for e in range(count) if e % 10 == 0]
    assert picked("subsample:every=1", count) == list(range(count))


@pytest.mark.parametrize(
    ("fraction", "count", "kept"),
    [(0.1, 104, 10), (0.1, 105, 11), (0.001, 5, 1), (1, 7, 7), (0.29, 100, 29)],
)
def test_a_fraction_is_rounded_and_never_nothing(fraction: float, count: int, kept: int) -> None:
    assert len(picked(f"subsample:fraction={fraction}", count)) == kept


def test_fewer_episodes_are_a_part_of_more() -> None:
    twenty = picked("subsample:episodes=20", 100)
    assert len(twenty) == 20
    assert twenty == picked("subsample:0.2", 100) == picked("split:a,a=0.2,b=0.8", 100)
    assert set(picked("subsample:episodes=5", 100)) < set(twenty)
    assert picked("subsample:episodes=40", 40) == list(range(40))


RETURNS = [3.5, -7.0, 12.25, math.nan, 12.25]
LENGTHS = [10, 25, 3, 40, 8]
COLUMNS: dict[str, Any] = {
    "return": np.array(RETURNS),
    "length": np.array(LENGTHS),
    "terminated": np.array([True, False, True, True, False]),
    "id": np.array(["a", "b", None, "c-3", "a"], object),
    "info.class": np.array([2, 3, 5, 7, 11]),
}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("return > 3", [r > 3 for r in RETURNS]),
        ("length < 10 < return", [n < 10 < r for n, r in zip(LENGTHS, RETURNS, strict=True)]),
        ("length not in (3, 8)", [n not in (3, 8) for n in LENGTHS]),
        ("terminated", [True, False, True, True, False]),
        ("not terminated", [False, True, False, False, True]),
        ("terminated + terminated == 2", [True, False, True, True, False]),
        ("-return / length < -0.3", [-r / n < -0.3 for r, n in zip(RETURNS, LENGTHS, strict=True)]),
        ("length % 5 == 3", [n % 5 == 3 for n in LENGTHS]),
        ("(length - +1) * 2 > 18", [(n - 1) * 2 > 18 for n in LENGTHS]),
        ("length / 0 > 5", [True] * 5),
        ('"a" == id', [True, False, False, False, True]),
        ("id != 'a'", [False, True, True, True, False]),
        ("id in ['b', 'c-3', 'x']", [False, True, False, True, False]),
        ("id not in ['b']", [True, False, True, True, True]),
        ("length == 3 or id == 'a' and return > 10", [False, False, True, False, True]),
        ("(length == 3 or id == 'a') and return > 10", [False, False, True, False, True]),
        ("return == max(return)", [False, False, True, False, True]),
        ("mean(terminated) == 0.6 and length > 0", [True] * 5),
        ("length >= percentile(length, 50)", [n >= 10 for n in LENGTHS]),
        (
            "length in [percentile(length, 0), percentile(length, 100)]",
            [n in (3, 40) for n in LENGTHS],
        ),
        ("return >= percentile(return, 50)", [False, False, True, False, True]),
        ("max(length / info.class) == length / info.class", [False, True, False, False, False]),
        ("length == 3or id == 'c\\-3'", [False, False, True, False, False]),  # warns nobody
        ("0 <= (" * 40 + "length" + ") <= 40" * 40, [True] * 5),
    ],
)
def test_expression_values(text: str, want: list[bool]) -> None:
    assert Expression(text).evaluate(COLUMNS, 5).tolist() == want


EXACT = {
    "seed": np.array([2**63 + 1, 2**63], np.uint64),
    "other": np.array([2**53 + 1, 2**53]),
    "return": np.array([math.nan, math.nan]),
    "class": np.array(["return", "for 'import'"], object),
}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (f"seed == {2**63 + 1}", [True, False]),  # whole numbers are compared exactly
        (f"other == {2**53 + 1}", [True, False]),
        (f"other in [{2**53 + 1}]", [True, False]),
        ("return >= min(return)", [False, False]),  # nothing known is no extreme
        ("return >= max(return)", [False, False]),
        ("return >= mean(return)", [False, False]),
        ("return >= percentile(return, 9)", [False, False]),
        ("class == 'return'", [True, False]),  # words of Python are names, quoted text is text
        ("class == \"for 'import'\"", [False, True]),
    ],
)
def test_odd_values(text: str, want: list[bool]) -> None:
    assert Expression(text).evaluate(EXACT, 2).tolist() == want


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


@settings(max_examples=40, deadline=None)
@given(text=flags())
def test_columns_are_what_rows_are_one_by_one(text: str) -> None:
    columns = {"x": np.array([1, 2, -3]), "y": np.array([0.5, 2.0, 7.0]), "return": np.arange(3)}
    rows = zip(*(columns[name].tolist() for name in columns), strict=True)
    code = text.replace("return", "z")
    want = [eval(code, {"x": x, "y": y, "z": z}) for x, y, z in rows]  # noqa: S307 - of `flags`
    if any(name in text for name in columns):
        assert Expression(text).evaluate(columns, 3).tolist() == want


@pytest.mark.parametrize(
    "text",
    ["", "return > 5 && length > 3", "lambda x: x", "(lambda: length)() == 1", "length\0", "*length",
     "[length for _ in (1,)][0] == 1", "length if terminated else 3", "await length > 1",
     "length is terminated", "(" * 5000 + "length" + ")" * 5000],
)  # fmt: skip
def test_what_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        Expression(text)
    assert caught.value.hint == HINT
    with pytest.raises(UsageError, match="more than 200000 characters"):
        Expression("(" * 100_000 + "length" + ")" * 100_000)
