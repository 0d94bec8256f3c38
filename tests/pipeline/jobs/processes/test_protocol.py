"""What is sent is what arrives: values, arrays, functions, and errors that no pickle can carry."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import FormatError, UsageError
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


def test_values_arrive_whole_and_in_order() -> None:
    stream = io.BytesIO()
    values = [{"a": np.arange(100_000), "b": np.zeros(0), "c": None}, "text", FormatError("x")]
    for value in values:
        write(stream, pack(value))
    stream.seek(0)
    first = unpack(read(stream))
    np.testing.assert_array_equal(first["a"], np.arange(100_000))
    assert first["b"].shape == (0,)
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


def test_arrays_that_arrive_can_be_written_to() -> None:
    stream = io.BytesIO()
    write(stream, pack(np.arange(5)))
    stream.seek(0)
    array = unpack(read(stream))
    array += 1
    assert array.tolist() == [1, 2, 3, 4, 5]


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


def test_what_exists_here_only_is_refused_in_words() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be sent.*lock") as caught:
        pack_function(lambda x: (x, lock))
    assert "inside the function" in str(caught.value.hint)


class TwoWordsError(Exception):
    """One of those that are pickled, and then cannot be made again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def by_pipe(function: Callable[[Any], Any], request: object) -> Any:
    return result_of(unpack(answer(pack_function(function), pack(request))))


def by_pool(function: Callable[[Any], Any], request: object) -> Any:
    return result_of(loads(answer_in_pool(pack_function(function), dumps(request))))


each_way = pytest.mark.parametrize("call", [by_pipe, by_pool])


@each_way
def test_values_come_back(call: Callable[..., Any]) -> None:
    assert call(lambda x: {"twice": 2 * x}, 21) == {"twice": 42}


@each_way
def test_an_error_of_this_package_keeps_its_hint(call: Callable[..., Any]) -> None:
    def fail(x: int) -> None:
        raise FormatError(f"row {x} is broken", hint="look at it")

    with pytest.raises(FormatError, match="row 7 is broken") as caught:
        call(fail, 7)
    assert caught.value.hint == "look at it"


@each_way
def test_an_error_has_the_traceback_it_had_there(call: Callable[..., Any]) -> None:
    def divide(x: int) -> int:
        return 1 // x

    with pytest.raises(ZeroDivisionError) as caught:
        call(divide, 0)
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteTraceback)
    assert "in divide" in str(cause)
    assert "return 1 // x" in str(cause)


@each_way
def test_an_error_that_cannot_be_made_again_is_told(call: Callable[..., Any]) -> None:
    def fail(x: str) -> None:
        raise TwoWordsError(x, "thing")

    with pytest.raises(RemoteError, match=r"TwoWordsError: broken thing") as caught:
        call(fail, "broken")
    assert "in fail" in str(caught.value.__cause__)


@each_way
def test_leaving_the_program_there_is_an_error_here(call: Callable[..., Any]) -> None:
    with pytest.raises(RemoteError, match="SystemExit: 3"):
        call(sys.exit, 3)


@each_way
def test_a_value_that_cannot_be_sent_is_an_error(call: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match="lock"):
        call(lambda _: threading.Lock(), 1)


def test_a_function_is_made_once_for_all_its_calls() -> None:
    given: list[int] = []

    def remember(x: int) -> list[int]:
        given.append(x)
        return given

    function = pack_function(remember)
    packed = [answer_in_pool(bytes(bytearray(function)), dumps(x)) for x in (10, 20, 30)]
    assert [result_of(loads(one)) for one in packed] == [[10], [10, 20], [10, 20, 30]]
    assert given == []
