"""The executor that runs tasks on Ray: spread over nodes, run again when a worker dies."""

from __future__ import annotations

import logging
import re
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from typing import Any

from offline_data.base.config import child_environ
from offline_data.base.errors import (
    AuthError,
    MissingDependencyError,
    NetworkError,
    OfflineDataError,
    UsageError,
    WorkerDiedError,
)
from offline_data.base.progress import Progress
from offline_data.pipeline.jobs.executors import R, T, at_least
from offline_data.pipeline.jobs.processes.protocol import (
    answer_in_pool,
    dumps,
    load_function,
    loads,
    pack_function,
    result_of,
)

_LOCAL = "local"  # address with which Ray starts a cluster on this machine
_OBJECT_STORE = 128 << 20  # bytes of shared memory of a local Ray, for jobs and answers only
_ANSWERS_WITHIN = 10.0  # seconds to wait for a connection; Ray itself would try for minutes
_COLOURS = re.compile("\x1b\\[[0-9;]*m")  # in messages of Ray
_QUEUED = 2  # tasks submitted per running task, so that workers need not wait for this process
_ENDS_WITHIN = 60.0  # seconds to wait for cancelled tasks; longer only if a node does not answer
_CANCEL_AGAIN = 0.2  # seconds after which tasks that still run are cancelled once more

_LOSSES = {  # errors of Ray for a task whose worker, node or answer is lost
    "WorkerCrashedError": "A Ray worker died",
    "OutOfMemoryError": "A Ray worker was ended, because memory was short,",
    "NodeDiedError": "A Ray node was lost",
    "LocalRayletDiedError": "A Ray node was lost",
    "ObjectLostError": "A Ray node was lost",
}


class RayExecutor:
    """Runs the tasks of a job on Ray; see `Executor`. Raises `UsageError` for a number too small.

    Tasks are spread over the nodes. Only the job, tasks and answers are sent; data go through files
    that all nodes see under the same path. This package, and everything that a job imports, must be
    installed on every node. A cluster or connection that was opened here is closed after each
    `run`.

    A task whose worker or node was lost is run again by this class, since Ray would not report it.
    A lost node may still be running: two attempts at a task must never write to the same file.

    Args:
        address: `host:port` or `ray://host:port` of a cluster; `auto`: the one running on this
            machine; `local`: start one here. None: the one that this process is connected to,
            else `RAY_ADDRESS`, else `local`.
        workers: For a Ray started here: number of concurrent tasks (None: one per CPU). For
            another one: maximum number of submitted tasks (None: twice what it can run).
        worker_threads: Threads of one task, and CPUs that it reserves.
        max_retries: How often a task is run again after its worker died.
        namespace: Ray namespace of a connection opened here.

    Example:
        >>> RayExecutor("10.0.0.1:6379", workers=8).name
        'ray'
    """

    name = "ray"
    shards = True

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        worker_threads: int = 1,
        max_retries: int = 1,
        namespace: str | None = None,
    ) -> None:
        self.address = address
        self.workers = None if workers is None else at_least(1, workers, "workers")
        self.worker_threads = at_least(1, worker_threads, "worker_threads")
        self.max_retries = at_least(0, max_retries, "max_retries")
        self.namespace = namespace

    def run(
        self, job: Callable[[T], R], tasks: Sequence[T], progress: Progress
    ) -> Iterator[tuple[int, R]]:
        """Run tasks on all nodes; see `Executor.run`.

        Raises:
            MissingDependencyError: Ray is not installed, or a node lacks a module of the job.
            UsageError: The job cannot be pickled; the address is invalid, or not that in use.
            NetworkError, AuthError: No cluster answers at the address, or it requires a token.
            WorkerDiedError: A task's worker or node was lost `max_retries + 1` times.
        """
        try:
            import ray
            import ray.exceptions
        except ImportError as error:
            raise MissingDependencyError(
                f"Running tasks on Ray needs ray: {error}", hint="pip install 'offline-data[ray]'"
            ) from error
        function = pack_function(
            partial(run_on_worker, pack_function(job), tuple(sys.path), self.worker_threads)
        )
        return self._answers(ray, function, tasks, progress)

    def _answers(
        self, ray: Any, function: bytes, tasks: Sequence[Any], progress: Progress
    ) -> Iterator[tuple[int, Any]]:
        if not tasks:
            return
        cpus = self.workers and self.workers * self.worker_threads
        with connect(ray, self.address, cpus=cpus, namespace=self.namespace) as is_ours:
            # Never more than a node has, or no task would start.
            nodes = (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
            reserved = min(self.worker_threads, int(max(nodes, default=0)) or self.worker_threads)
            run = _RayRun(ray, function, tasks, cpus=reserved, retries=self.max_retries)
            try:
                yield from run.answers(None if is_ours else self.workers, progress)
            finally:
                run.cancel()


class _RayRun:
    """State of one run: waiting tasks, submitted tasks, and how often their workers died."""

    def __init__(
        self, ray: Any, function: bytes, tasks: Sequence[Any], *, cpus: int, retries: int
    ) -> None:
        self._ray, self._function = ray, ray.put(function)
        self._tasks, self._cpus, self._retries = tasks, cpus, retries
        self._waiting = deque(range(len(tasks)))
        self._under_way: dict[Any, int] = {}
        self._deaths: Counter[int] = Counter()
        self._losses = tuple(getattr(ray.exceptions, name) for name in _LOSSES)
        options = {"num_cpus": cpus, "max_retries": 0, "scheduling_strategy": "SPREAD"}
        self._answer = ray.remote(**options)(answer_in_pool)

    def answers(self, most: int | None, progress: Progress) -> Iterator[tuple[int, Any]]:
        """Yield numbers and answers, with at most `most` tasks submitted (None: by CPUs)."""
        while self._waiting or self._under_way:
            limit = most or self._queue()
            while self._waiting and len(self._under_way) < limit:
                number = self._waiting.popleft()
                request = dumps(self._tasks[number])
                self._under_way[self._answer.remote(self._function, request)] = number
            finished, _ = self._ray.wait(list(self._under_way))
            for reference in finished:
                number = self._under_way.pop(reference)
                try:
                    answer = self._ray.get(reference)
                except self._losses as error:
                    self._lost(number, error, progress)
                except self._ray.exceptions.RayError as error:
                    raise OfflineDataError(
                        f"Ray could not run task {number + 1}: {_COLOURS.sub('', str(error))}",
                        hint="offline-data must be installed on every node of the cluster",
                    ) from error
                else:
                    yield number, result_of(loads(answer))

    def _queue(self) -> int:
        """Return how many tasks keep the cluster busy; it may have grown since the last call."""
        return _QUEUED * max(1, int(self._ray.cluster_resources().get("CPU", 0)) // self._cpus)

    def _lost(self, number: int, error: Exception, progress: Progress) -> None:
        self._deaths[number] += 1
        kinds = zip(self._losses, _LOSSES.values(), strict=True)
        loss = next(words for kind, words in kinds if isinstance(error, kind))
        what = f"{loss} while it ran task {number + 1} of {len(self._tasks)}"
        if self._deaths[number] > self._retries:
            raise WorkerDiedError(
                f"{what}, in attempt {self._deaths[number]} of {self._retries + 1}",
                hint="if memory was short, try again with fewer workers; finished tasks are kept",
                task=number,
            ) from error
        progress.note(f"{what[:1].lower()}{what[1:]}; running it again")
        self._waiting.appendleft(number)

    def cancel(self) -> None:
        pending = list(self._under_way)
        self._under_way.clear()
        deadline = time.monotonic() + _ENDS_WITHIN
        while pending and self._ray.is_initialized() and time.monotonic() < deadline:
            # Repeatedly: Ray may miss a task that is just being sent to a worker.
            for reference in pending:
                self._ray.cancel(reference, force=True)
            _, pending = self._ray.wait(pending, num_returns=len(pending), timeout=_CANCEL_AGAIN)


def run_on_worker(function: bytes, paths: tuple[str, ...], threads: int, task: object) -> object:
    """Run a task on a node, with the caller's import path (shared files) and threads of torch."""
    sys.path.extend(path for path in paths if path not in sys.path)
    try:
        job = load_function(function)
    except (ImportError, AttributeError) as error:
        raise MissingDependencyError(
            f"A Ray worker on {socket.gethostname()} does not find what the job uses: {error}",
            hint="install the same packages on every node of the cluster",
        ) from error
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)
    return job(task)


@contextmanager
def connect(
    ray: Any, address: str | None, *, cpus: int | None, namespace: str | None
) -> Iterator[bool]:
    """Connect to Ray for a block; yields whether it was started for it, see `RayExecutor`.

    An existing connection of this process is used and left open.
    """
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address if address not in {None, "auto"} else address
        if address != there:
            raise UsageError(
                f"This process is connected to the Ray at {there}, and {address!r} was requested",
                hint="leave the address out to use the first, or call ray.shutdown() before",
            )
        yield False
        return
    place = address or child_environ().get("RAY_ADDRESS") or _LOCAL
    # Ray always prints that a worker died; standard output is for results.
    with redirect_stdout(sys.stderr):
        _connect(ray, place, cpus, namespace)
        try:
            yield place == _LOCAL
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str, cpus: int | None, namespace: str | None) -> None:
    options: dict[str, object] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == _LOCAL:
        options["num_cpus"] = cpus
        options["object_store_memory"] = _OBJECT_STORE
        options["include_dashboard"] = False
    else:
        _check_answers(address)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, namespace=namespace, **options)
    except ValueError as error:
        raise UsageError(f"Ray cannot use the address {address!r}: {error}") from error
    except getattr(ray.exceptions, "AuthenticationError", ()) as error:  # not in older Rays
        raise AuthError(
            f"The Ray cluster at {address!r} refused authentication: {error}"
        ) from error
    except (OSError, RuntimeError) as error:
        raise NetworkError(
            f"Ray cannot be reached or started, address {address!r}: {error}",
            hint="is it the address that `ray start --head` printed? a cluster with tokens needs "
            "RAY_AUTH_MODE=token here, too",
        ) from error
    finally:
        # `ray.init` replaces the program's own reaction to SIGTERM. Neither it nor this can set one
        # in another thread, or one that is not Python's.
        with suppress(ValueError, TypeError):
            signal.signal(signal.SIGTERM, handler)


def _check_answers(address: str) -> None:
    """Raise early, with a clear message, if nothing listens at an address."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or "/" in host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWERS_WITHIN).close()
    except (OSError, OverflowError) as error:
        raise NetworkError(
            f"No Ray cluster answers at {address}: {error}",
            hint="`ray start --head` prints the address to give; the default port is 6379",
        ) from error
