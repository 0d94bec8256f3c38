from __future__ import annotations

import sys
from typing import Any

import pytest

from offline_data.errors import NotFoundError
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.functions.rows import called


def failure(fn: Any) -> StepError:
    with pytest.raises(StepError) as error:
        called(fn, 3, lambda: "row 5 (episode 1, step 2)")
    return error.value


def inner(x: int) -> float:
    return 1 / (x - 3)


def test_own_traceback() -> None:
    """The row, what was raised, and the function's frames without those of this package."""
    error = failure(lambda x: inner(x) + 1)
    first, *lines = error.message.split("\n")
    assert first == (
        "The function failed on row 5 (episode 1, step 2): ZeroDivisionError: division by zero"
    )
    assert lines[0] == "Traceback (most recent call last):"
    assert sum("in inner" in line for line in lines) == 1
    assert sum("in <lambda>" in line for line in lines) == 1
    assert sum(line.lstrip().startswith("File ") for line in lines) == 2
    assert "calling.py" not in error.message.replace("test_calling.py", "")
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert error.code == "step"


def test_causes_are_said_too() -> None:
    def fn(x: int) -> float:
        try:
            return inner(x)
        except ZeroDivisionError as error:
            raise KeyError("no") from error

    message = failure(fn).message
    assert message.startswith("The function failed on row 5 (episode 1, step 2): KeyError: 'no'\n")
    assert "ZeroDivisionError: division by zero" in message
    assert "direct cause" in message


def test_errors_of_this_package_have_a_row_too() -> None:
    def fn(x: int) -> None:
        raise NotFoundError(f"No file {x}", hint="look elsewhere")

    assert "failed on row 5 (episode 1, step 2): " in failure(fn).message
    assert "NotFoundError: No file 3" in failure(fn).message


def test_a_function_cannot_end_the_program() -> None:
    assert ": SystemExit: 7\n" in failure(lambda _: sys.exit(7)).message
    with pytest.raises(KeyboardInterrupt):
        called(_interrupted, 3, lambda: "row 5")


def _interrupted(_: int) -> None:
    raise KeyboardInterrupt


def test_messages_of_several_lines() -> None:
    """The first line says what it is, also where the message is empty or long."""

    def fn(x: int) -> None:
        raise ValueError(f"first {x}\nsecond")

    assert failure(fn).message.split("\n")[0].endswith("step 2): ValueError: first 3")

    def bare(_: int) -> None:
        raise RuntimeError

    assert failure(bare).message.split("\n")[0].endswith("step 2): RuntimeError")


def test_functions_without_frames() -> None:
    error = failure(ord)
    assert "TypeError: ord() expected" in error.message
