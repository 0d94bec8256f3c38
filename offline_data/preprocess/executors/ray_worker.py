"""A job as a Ray worker calls it: with the modules that are found here, and threads as told."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from offline_data.errors import MissingDependencyError
from offline_data.processes.wire import loads, pack_function

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class JobOnWorker:
    """A function of one task that can be sent to a node of the caller's Ray cluster.

    Example:
        >>> JobOnWorker.of(lambda task: task + 1, threads=1)(6)
        7
    """

    function: bytes
    """The job, of `pack_function`."""
    paths: tuple[str, ...]
    """Where modules are found here; those on a shared filesystem are found there as well."""
    threads: int
    """Threads that torch computes with; numpy's are set by Ray."""

    @classmethod
    def of(cls, job: Callable[[Any], Any], threads: int) -> Self:
        """Make a job ready to be sent.

        Raises:
            UsageError: It refers to something that only exists in this process.
        """
        return cls(pack_function(job), tuple(sys.path), threads)

    def __call__(self, task: object) -> object:
        """Run one task.

        Raises:
            MissingDependencyError: What the job was made of is not installed on the node.
        """
        job = self._job
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(self.threads)
        return job(task)

    @cached_property
    def _job(self) -> Callable[[object], object]:
        sys.path.extend(path for path in self.paths if path not in sys.path)
        try:
            job: Callable[[object], object] = loads(self.function)
        except (ImportError, AttributeError) as error:
            raise MissingDependencyError(
                f"A Ray worker on {socket.gethostname()} does not find what the job uses: {error}",
                hint="install the same packages on every node of the cluster",
            ) from error
        return job
