"""A child process that computes one function on many requests, queued and answered in order.

Not `multiprocessing`: a script without an `if __name__ == "__main__"` guard can start one at its
top level. A process with a single thread is forked on Linux, in milliseconds and with all modules
imported: another thread could hold a lock that the child would wait for forever, and other systems
do not guarantee that libraries work after a fork. The child ends when the process that started it
ends, also in the middle of a call. Where it handles strangers' data, its memory and processor time
are limited.
"""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any, cast

from typing_extensions import Self

from offline_data.base.config import child_environ, shorten_blas_spinning
from offline_data.base.errors import OfflineDataError
from offline_data.pipeline.jobs.processes.protocol import (
    Packed,
    answer,
    pack,
    pack_function,
    read,
    result_of,
    unpack,
    write,
)

# Imports in the child use the import path of this process.
_PROGRAM = """\
import sys
sys.path[:] = sys.argv[1:]
del sys.argv[1:]
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from offline_data.pipeline.jobs.processes.child import main
main()
"""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # of torch and numpy

_PIPE = 1 << 20  # capacity of the pipe from a child in bytes, if the system allows it

_GRACE = 5.0  # seconds for a process that has closed its pipe to end by itself

_POLL = 0.001  # seconds between two checks whether a forked process has ended

MEMORY_SHARE = 0.75  # of this machine's memory that parsing may use, if it can be limited

_PLACE = 512  # bytes of the last place that a process has reported

_is_child = False
_place: mmap.mmap | None = None


def is_child() -> bool:
    """Return True in a process that a `Child` has started."""
    return _is_child


class ChildDiedError(OfflineDataError):
    """A child process ended before it had answered; the message says how."""

    code = "child_died"


def how_ended(status: int) -> str:
    """Describe how a process ended, from the status of `subprocess`: -9 is SIGKILL."""
    if status >= 0:
        return f"ended with status {status}"
    if status == -signal.SIGPROF:  # see `limit_resources`
        return "took too much processor time and was ended by SIGPROF"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


class Child:
    """A process that receives a function once, and then computes it on every request.

    It starts on entering a `with` block or by `start`, and is killed at the block's end or by
    `close`; it also ends with this process. Not thread-safe, except `kill`.

    An answer is sent while the next request is computed: if requests are queued, the function must
    not change a value that it has returned. Its standard output goes to stderr. Raises `UsageError`
    if the function refers to something that exists in this process only.

    Args:
        function: Of one argument; also a lambda, or one of a script or notebook. Or the bytes of
            `pack_function`, where several children are given the same one.
        threads: Threads of torch and numpy in the child, at most the number of cores; None: as the
            environment says.
        quiet: Whether to discard its output, including messages of crashing libraries.

    Example:
        >>> with Child(lambda x: 2 * x) as child:
        ...     child.ask(21)
        42
    """

    def __init__(
        self,
        function: Callable[[Any], Any] | bytes,
        *,
        threads: int | None = None,
        quiet: bool = False,
    ) -> None:
        self._function = function if isinstance(function, bytes) else pack_function(function)
        self._threads = threads
        self._quiet = quiet
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start the process and send it the function; raises `OfflineDataError` if it cannot."""
        try:
            if self._threads is None and can_fork():
                self._process = ForkedProcess(main, quiet=self._quiet)
            else:
                self._process = self._spawn()
        except OSError as error:
            raise OfflineDataError(
                f"A process could not be started: {error}", hint="try again with fewer workers"
            ) from error
        # Wakes both processes less often; fails on some systems, or beyond the user's pipe limit.
        with suppress(AttributeError, OSError):
            fcntl.fcntl(cast("IO[bytes]", self._process.stdout), fcntl.F_SETPIPE_SZ, _PIPE)
        self.send(self._function)
        return self

    def _spawn(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", _PROGRAM, *sys.path]
        names = _THREADS if self._threads is not None else ()
        return subprocess.Popen(  # noqa: S603 - our own module, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if self._quiet else None,
            env=child_environ(**dict.fromkeys(names, str(self._threads))),
        )

    def send(self, request: object) -> None:
        """Queue a request without waiting; if the process has ended, `receive` raises."""
        with suppress(BrokenPipeError):
            write(cast("IO[bytes]", self._running_process.stdin), pack(request))

    def receive(self) -> Any:
        """Wait for the answer to the oldest open request.

        Raises:
            ChildDiedError: The process has ended.
            RemoteError: The function raised an error that cannot be pickled.
            Exception: Any other error of the function; `__cause__` has its traceback as text.
        """
        process = self._running_process
        try:
            packed = read(cast("IO[bytes]", process.stdout))
        except EOFError:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
            self.kill()
            raise ChildDiedError(f"A process {self.ending}") from None
        return result_of(unpack(packed))

    def ask(self, request: object) -> Any:
        """Send a request and wait for its answer; raises what `receive` raises."""
        self.send(request)
        return self.receive()

    def kill(self) -> None:
        """Kill the process; a thread that waits for an answer gets a `ChildDiedError`."""
        self._running_process.kill()

    def close(self) -> None:
        """Kill the process and wait for its end; may be called again."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        with suppress(BrokenPipeError):  # of a request that it did not read
            cast("IO[bytes]", process.stdin).close()
        cast("IO[bytes]", process.stdout).close()

    @property
    def pid(self) -> int:
        return self._running_process.pid

    @property
    def ending(self) -> str:
        """Wait for the end; returns a description of how it ended."""
        return how_ended(self._running_process.wait())

    @property
    def _running_process(self) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._process is None:
            raise OfflineDataError("The process was not started, or was closed")
        return self._process


def main() -> None:
    """Receive the function and then requests over stdin, and answer them."""
    global _is_child
    _is_child = True
    shorten_blas_spinning()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us, and says why
    requests, answers = _own_pipes()
    sent: Future[None] | None = None
    try:
        function = unpack(read(requests))
        waiting = _listen(requests)
        with ThreadPoolExecutor(1) as sender:
            while True:  # each answer is sent while the next one is computed
                packed = answer(function, waiting.get())
                if sent is not None:
                    sent.result()
                sent = sender.submit(write, answers, packed)
    except (EOFError, BrokenPipeError):
        os._exit(0)


def _own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """Move the pipes away from stdin and stdout, for the function and its child processes."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    _redirect(0)
    os.dup2(2, 1)  # output of the function never goes between answers
    # This process will be killed: output must not wait in a buffer.
    if isinstance(sys.stdout, TextIOWrapper):  # a forked process may have none
        sys.stdout.reconfigure(line_buffering=True)
    for pipe in (requests, answers):  # a child of the function must not keep them open
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


def can_fork() -> bool:
    """Return True if forking this process is safe."""
    try:
        return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


class ForkedProcess:
    """A forked process with the part of the interface of `subprocess.Popen` that is used here.

    It runs `main` with stdin and stdout as pipes to this process; if `quiet`, its stderr is
    discarded. Raises `OSError` if the system cannot start it.
    """

    def __init__(self, main: Callable[[], None], *, quiet: bool) -> None:
        requests, answers = os.pipe(), os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become_child(main, requests, answers, quiet=quiet)
        os.close(requests[0])
        os.close(answers[1])
        self.stdin: IO[bytes] = os.fdopen(requests[1], "wb")
        self.stdout: IO[bytes] = os.fdopen(answers[0], "rb")

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if done else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired` after `timeout` seconds."""
        begin = time.monotonic()
        while (status := self.poll()) is None:
            if timeout is not None and time.monotonic() - begin > timeout:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(_POLL)
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _become_child(
    main: Callable[[], None], requests: tuple[int, int], answers: tuple[int, int], *, quiet: bool
) -> None:
    """Run `main` and exit, without the exit handlers of the parent."""
    try:
        gc.freeze()  # never flush files that the parent has dropped
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(requests[0], 0)
        os.dup2(answers[1], 1)
        for descriptor in (*requests, *answers):
            if descriptor > 2:
                os.close(descriptor)
        if quiet:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with suppress(BaseException):
            main()
    finally:
        os._exit(1)


def limit_memory() -> None:
    """Make allocations of a child process fail before the machine's memory is full."""
    if not is_child():
        return
    with suppress(AttributeError, OSError, ValueError):  # not supported on this platform
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        _set_memory(int(MEMORY_SHARE * pages))


@contextmanager
def limit_resources(memory: int, seconds: float) -> Iterator[None]:
    """Limit memory and processor time of a block in a child process; without effect in others.

    An allocation of more than `memory` bytes beyond those of now fails. A process whose threads use
    more `seconds` is ended by `SIGPROF`, as no regular expression or template can be interrupted.
    """
    if not is_child():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with suppress(OSError, ValueError):  # only Linux says how much is allocated
        status = Path("/proc/self/status").read_text().partition("VmData:")[2]
        _set_memory(memory + 1024 * int(status.split()[0]))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_DATA, before)


def _set_memory(size: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [size, *(limit for limit in (soft, hard) if limit >= 0)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))


def share_place() -> None:
    """Share the last place that this process and those that it forks report from now on."""
    global _place
    _place = mmap.mmap(-1, _PLACE)


def report_place(place: str) -> None:
    """Say what this process begins to do; nothing happens unless that is shared."""
    if _place is not None:
        _place[:] = place.encode(errors="replace")[:_PLACE].ljust(_PLACE, b"\0")


def last_place() -> str:
    """Return what was reported last; empty if nothing was."""
    return "" if _place is None else _place[:].rstrip(b"\0").decode(errors="replace")
