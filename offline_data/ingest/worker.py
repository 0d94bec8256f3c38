"""The child process of `reading.py`: reads its parts, one ahead, and writes them to its stdout."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from offline_data.errors import OfflineDataError
from offline_data.ingest.wire import receive, send


def main() -> None:
    """Serve one job given on stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us, and says why
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a print of some library must not land between the answers
    raw, parts = pickle.loads(receive(sys.stdin.buffer))  # noqa: S301 - sent by our own parent
    try:
        _serve(raw, parts, answers)
    except BrokenPipeError:
        os._exit(0)


def _serve(raw: Any, parts: list[Any], answers: IO[bytes]) -> None:
    with ThreadPoolExecutor(1) as sender:
        pending = None
        for part in parts:
            answer = _read(raw, part)
            if pending is not None:
                pending.result()
            pending = sender.submit(_answer, answers, answer)
        if pending is not None:
            pending.result()


def _read(raw: Any, part: Any) -> Any:
    try:
        return raw.read(part)
    except OfflineDataError as error:
        return error


def _answer(answers: IO[bytes], answer: Any) -> None:
    send(answers, answer)
    answers.flush()
