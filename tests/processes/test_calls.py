"""Values and errors of calls made elsewhere, also those that no pickle can carry."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from offline_data.errors import FormatError
from offline_data.processes.calls import RemoteError, RemoteTraceback, answer, answer_in_pool
from offline_data.processes.wire import dumps, loads, pack, pack_function, unpack


class TwoWordsError(Exception):
    """One of those that are pickled, and then cannot be made again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def by_pipe(function: Callable[[Any], Any], request: object) -> Any:
    return unpack(answer(pack_function(function), pack(request))).result()


def by_pool(function: Callable[[Any], Any], request: object) -> Any:
    return loads(answer_in_pool(pack_function(function), dumps(request))).result()


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
    assert [loads(one).result() for one in packed] == [[10], [10, 20], [10, 20, 30]]
    assert given == []
