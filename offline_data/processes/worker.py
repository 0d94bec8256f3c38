"""The program of a child process: computes what is asked over its stdin, answers over its stdout.

It ends when the process that started it ends, also in the middle of a call.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import IO

from offline_data.processes.calls import answer
from offline_data.processes.wire import Packed, read, unpack, write


def main() -> None:
    """Serve the function and then the requests that come over stdin."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us, and says why
    requests, answers = _own_pipes()
    try:
        function = unpack(read(requests))
        _serve(function, _listen(requests), answers)
    except (EOFError, BrokenPipeError):
        os._exit(0)


def _own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Take stdin and stdout away from the function and whatever it starts.

    What a function prints goes to stderr, and must not land between answers. A process that the
    function forks must not keep the pipes open when this one has ended.
    """
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    _redirect(0)
    os.dup2(2, 1)
    # This process ends by being killed: what is printed must not wait in a buffer.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    for pipe in (requests, answers):
        os.register_at_fork(after_in_child=partial(_redirect, pipe.fileno()))
    return requests, answers


def _redirect(descriptor: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, descriptor)
    os.close(nothing)


def _listen(requests: IO[bytes]) -> SimpleQueue[Packed]:
    """Read requests as they come, so that the parent never waits to send one."""
    waiting: SimpleQueue[Packed] = SimpleQueue()

    def listen() -> None:
        try:
            while True:
                waiting.put(read(requests))
        except EOFError:
            os._exit(0)  # the parent has ended

    Thread(target=listen, daemon=True).start()
    return waiting


def _serve(function: bytes, waiting: SimpleQueue[Packed], answers: IO[bytes]) -> None:
    """Send each answer while the next one is computed."""
    sent: Future[None] | None = None
    with ThreadPoolExecutor(1) as sender:
        while True:
            packed = answer(function, waiting.get())
            if sent is not None:
                sent.result()
            sent = sender.submit(write, answers, packed)
