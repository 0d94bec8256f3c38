"""The executor of a pool given by the caller, of `concurrent.futures`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent import futures

from offline_data.base.errors import UsageError, WorkerDiedError
from offline_data.base.progress import Progress
from offline_data.pipeline.jobs.executors.base import R, T
from offline_data.pipeline.jobs.processes.protocol import (
    answer_in_pool,
    dumps,
    loads,
    pack_function,
    result_of,
)


class GivenPool:
    """Runs tasks in a pool of the caller, which stays open; see `Executor`.

    Calls that are running when the iterator is closed cannot be stopped: it waits for them. In a
    pool of threads one task runs at a time.

    Args:
        pool: A `concurrent.futures.Executor`.

    Raises:
        UsageError: `pool` is something else; a `multiprocessing.Pool` would wait for ever for a
            task whose process died.

    Example:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from offline_data.base.progress import SILENT
        >>> with ThreadPoolExecutor(1) as pool:
        ...     list(GivenPool(pool).run(lambda x: 2 * x, [3], SILENT))
        [(0, 6)]
    """

    name = "given pool"
    shards = False

    def __init__(self, pool: futures.Executor) -> None:
        if not isinstance(pool, futures.Executor):
            raise UsageError(
                f"pool is {pool!r}; expected a concurrent.futures.Executor",
                hint="a ProcessPoolExecutor does what a multiprocessing.Pool does, and says when "
                "a process died",
            )
        self._pool = pool

    def run(
        self,
        job: Callable[[T], R],
        tasks: Sequence[T],
        progress: Progress,  # noqa: ARG002 - what a pool does about a death is its own
    ) -> Iterator[tuple[int, R]]:
        """Yield the number and the answer of each task as it finishes; see `Executor.run`.

        Also raises `UsageError` if the pool is closed or `job` only works in this process.
        """
        function = pack_function(job)
        numbers: dict[futures.Future[bytes], int] = {}
        try:
            for number, task in enumerate(tasks):
                try:
                    future = self._pool.submit(answer_in_pool, function, dumps(task))
                except futures.BrokenExecutor:
                    raise
                except RuntimeError as error:
                    raise UsageError(f"The pool does not accept tasks: {error}") from error
                numbers[future] = number
            for future in futures.as_completed(numbers):
                yield numbers[future], result_of(loads(future.result()))
        except futures.BrokenExecutor as error:
            raise WorkerDiedError(
                f"The pool is broken: {error}",
                hint="if memory was short, make a smaller pool; finished tasks are kept, and "
                "workers of this package's own are replaced when they die",
            ) from error
        except futures.CancelledError as error:
            raise UsageError("The pool was closed before it had done all tasks") from error
        finally:
            futures.wait([future for future in numbers if not future.cancel()])
