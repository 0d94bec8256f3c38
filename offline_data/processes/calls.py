"""Calls made in another process: their value, or their error with the traceback it had there."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from offline_data.errors import OfflineDataError
from offline_data.processes.wire import Packed, dumps, loads, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

P = TypeVar("P")

_ALONE = Lock()
"""Held by a call in a pool, which may be one of threads; a function need not be ready for that."""


class RemoteError(OfflineDataError):
    """A function in another process raised what cannot be sent here."""

    code = "remote"


class RemoteTraceback(Exception):  # noqa: N818 - no error of its own, but where one came from
    """The cause of an error that another process raised: says where it was raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(f"in another process:\n\n{text}")


@dataclass(frozen=True)
class Outcome:
    """What became of a call."""

    value: Any = None
    """What it returned."""
    error: Exception | None = None
    """What it raised, or a `RemoteError` in its place."""
    trace: str = ""
    """The traceback it had, as text."""

    def result(self) -> Any:
        """Return the value, or raise the error; its cause is a `RemoteTraceback`."""
        if self.error is not None:
            raise self.error from RemoteTraceback(self.trace)
        return self.value


def outcome_of(call: Callable[[], Any]) -> Outcome:
    """Make a call that may raise anything.

    Example:
        >>> outcome_of(lambda: 6 * 7).result()
        42
        >>> outcome_of(lambda: {}["x"]).error
        KeyError('x')
    """
    try:
        return Outcome(call())
    except BaseException as error:  # noqa: BLE001 - the other process decides what to do with it
        return _failed(error)


def answer(function: bytes, request: Packed) -> Packed:
    """Call a function of `pack_function` with one argument; an `Outcome`, packed."""
    return _packed(outcome_of(lambda: _loaded(function)(unpack(request))), pack)


def answer_in_pool(function: bytes, request: bytes) -> bytes:
    """Do the same for a pool: with the argument of `dumps`, to an `Outcome` of `dumps`.

    One call at a time, also where the pool is one of threads.

    Example:
        >>> loads(answer_in_pool(dumps(abs), dumps(-3))).result()
        3
    """
    with _ALONE:
        return _packed(outcome_of(lambda: _loaded(function)(loads(request))), dumps)


@lru_cache(maxsize=2)
def _loaded(function: bytes) -> Callable[[Any], Any]:
    """Make a function of `pack_function` again, once for all its calls."""
    made: Callable[[Any], Any] = loads(function)
    return made


def _packed(outcome: Outcome, how: Callable[[Outcome], P]) -> P:
    try:
        return how(outcome)
    except Exception as error:  # noqa: BLE001 - a value that cannot be sent fails the call
        return how(_failed(error))


def _failed(error: BaseException) -> Outcome:
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, Exception) and _travels(error):
        return Outcome(error=error, trace=trace)
    summary = "".join(traceback.format_exception_only(error)).strip()
    return Outcome(
        error=RemoteError(f"A function in another process raised {summary}"), trace=trace
    )


def _travels(error: Exception) -> bool:
    """Return True if an error can be made again: many with a constructor of their own cannot."""
    try:
        return type(loads(dumps(error))) is type(error)
    except Exception:  # noqa: BLE001 - whatever pickling it, or its constructor, raises
        return False
