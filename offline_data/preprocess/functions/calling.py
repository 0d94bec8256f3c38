"""Calling a function of the user's: what it raises is said with its row and its own traceback."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from offline_data.preprocess.errors import StepError

if TYPE_CHECKING:
    from types import TracebackType

Place: TypeAlias = Callable[[], str]
"""Says which row, block or episode it is, when a message needs it."""


def called(fn: Callable[[Any], Any], data: Any, place: Place) -> Any:
    """Call a function of the user's.

    Args:
        fn: The function.
        data: What it gets.
        place: Where that comes from.

    Raises:
        StepError: What it raised, with its own traceback; also where it would end the program.

    Example:
        >>> called(len, "abc", lambda: "row 0")
        3
    """
    try:
        return fn(data)
    except (Exception, SystemExit) as error:
        below = traceback.format_exception(type(error), error, _below(error.__traceback__))
        raise StepError(
            f"The function failed on {place()}: {_said(error)}\n" + "".join(below).rstrip(),
        ) from error


def _said(error: BaseException) -> str:
    """Write an error in one line."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _below(trace: TracebackType | None) -> TracebackType | None:
    """Leave the frame of `called` out of a traceback."""
    return trace.tb_next if trace is not None else None
