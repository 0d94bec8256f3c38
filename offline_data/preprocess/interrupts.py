"""Signals that have to wait until a dataset is in its place."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back what Python's handlers do with SIGINT, SIGTERM and SIGHUP until the end.

    Handlers run in the main thread; in another one there is nothing to hold back. What kills the
    process by default still does.
    """
    waiting: list[tuple[int, Any]] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in _ENDING}
        handlers = {number: one for number, one in handlers.items() if callable(one)}
    for number in handlers:
        signal.signal(number, lambda *args: waiting.append(args))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if waiting:
        number, frame = waiting[0]
        handlers[number](number, frame)
