"""What is sent is what arrives: values, arrays, functions, and errors that no pickle can carry."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import FormatError
from offline_data.pipeline.jobs.processes.protocol import (
    RemoteError,
    RemoteTraceback,
    answer,
    answer_in_pool,
    dumps,
    loads,
    pack,
    pack_function,
    read,
    result_of,
    unpack,
    write,
)


def test_values_arrive_whole_in_order_and_writable() -> None:
    stream = io.BytesIO()
    values = [{"a": np.arange(100_000), "b": np.zeros(0), "c": None}, "text", FormatError("x")]
    for value in values:
        write(stream, pack(value))
    stream.seek(0)
    first = unpack(read(stream))
    first["a"] += 1
    np.testing.assert_array_equal(first["a"], np.arange(1, 100_001))
    assert (first["b"].shape, first["c"]) == ((0,), None)
    assert unpack(read(stream)) == "text"
    assert str(unpack(read(stream))) == "x"
    with pytest.raises(EOFError):
        read(stream)


def test_a_cut_off_value_is_an_end() -> None:
    whole = io.BytesIO()
    write(whole, pack(np.arange(50)))
    data = whole.getvalue()
    for size in (0, 5, 16, 20, len(data) - 1):
        with pytest.raises(EOFError):
            read(io.BytesIO(data[:size]))


def test_large_arrays_are_not_in_the_pickle() -> None:
    array = np.arange(1 << 16, dtype=np.float64)
    packed = pack(("name", array))
    assert len(packed[0]) < 1000
    assert [len(buffer) for buffer in packed[1:]] == [array.nbytes]
    assert np.shares_memory(np.frombuffer(packed[1]), array)


def test_functions_travel_with_what_they_close_over() -> None:
    offset = 40

    class Here:
        def __init__(self, value: int) -> None:
            self.value = value

    def function(x: int) -> Here:
        return Here(x + offset)

    made = loads(pack_function(function))
    assert made is not function
    assert made(2).value == 42
    assert loads(dumps([1, None])) == [1, None]


def by_pipe(function: Callable[[Any], Any], request: object) -> Any:
    return result_of(unpack(answer(pack_function(function), pack(request))))


def by_pool(function: Callable[[Any], Any], request: object) -> Any:
    return result_of(loads(answer_in_pool(pack_function(function), dumps(request))))


def failures() -> dict[str, Callable[[Any], object]]:
    """Make functions that raise, which no other process can import."""

    def ours(x: int) -> None:
        raise FormatError(f"row {x} is broken", hint="look at it")

    def divide(x: int) -> int:
        return 1 // x

    def two_words(x: str) -> None:
        class TwoWordsError(Exception):
            """One of those that are pickled, and then cannot be made again."""

            def __init__(self, first: str, second: str) -> None:
                super().__init__(f"{first} {second}")

        raise TwoWordsError(x, "thing")

    made: dict[str, Any] = {"ours": ours, "divide": divide, "two_words": two_words}
    return {**made, "exit": sys.exit, "lock": lambda _: threading.Lock()}


@pytest.mark.parametrize("call", [by_pipe, by_pool])
class TestCalls:
    def test_values_come_back(self, call: Any) -> None:
        assert call(lambda x: {"twice": 2 * x}, 21) == {"twice": 42}

    @pytest.mark.parametrize(
        ("name", "given", "error", "told", "cause"),
        [
            ("ours", 7, FormatError, "row 7 is broken", "in ours"),
            ("divide", 0, ZeroDivisionError, "by zero", "return 1 // x"),
            ("two_words", "broken", RemoteError, "TwoWordsError: broken thing", "in two_words"),
            ("exit", 3, RemoteError, "SystemExit: 3", ""),
            ("lock", 1, TypeError, "lock", ""),
        ],
    )
    def test_errors(
        self, call: Any, name: str, given: Any, error: type[Exception], told: str, cause: str
    ) -> None:
        with pytest.raises(error, match=told) as caught:
            call(failures()[name], given)
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert cause in str(caught.value.__cause__)
        assert name != "ours" or vars(caught.value)["hint"] == "look at it"


def test_a_function_is_made_once_for_all_its_calls() -> None:
    given: list[int] = []

    def remember(x: int) -> list[int]:
        given.append(x)
        return given

    function = pack_function(remember)
    packed = [answer_in_pool(bytes(bytearray(function)), dumps(x)) for x in (10, 20, 30)]
    assert [result_of(loads(one)) for one in packed] == [[10], [10, 20], [10, 20, 30]]
    assert given == []
