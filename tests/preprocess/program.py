"""A program that makes a dataset task by task, each for a while, so that tests can stop it.

Its argument is JSON: `parent`, `dest`, `root`, `marks` (a folder), `stages`, `seconds` (of a task),
`workers` (0: in this process), `shards`, `group_bytes`, `most` (tasks that may end, or None: the
others wait for ever), and `options`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from offline_data.config import Settings
from offline_data.errors import OfflineDataError
from offline_data.executors.base import Executor
from offline_data.executors.local import InProcess, LocalProcesses
from offline_data.preprocess import plan
from offline_data.progress import Progress
from tests.preprocess.runs import make


class Watched:
    """Leaves a mark for every task that begins, and for every one that ends; takes its time."""

    def __init__(
        self,
        inner: Executor,
        marks: Path,
        seconds: float = 0.0,
        *,
        shards: bool = False,
        most: int | None = None,
    ) -> None:
        self.name, self.shards = inner.name, shards
        self._inner, self._marks, self._seconds, self._most = inner, marks, seconds, most

    def run(
        self, job: Callable[[Any], Any], tasks: Sequence[Any], progress: Progress
    ) -> Iterator[tuple[int, Any]]:
        marked = marking(job, self._marks, self._seconds, self._most)
        return self._inner.run(marked, tasks, progress)


def marking(
    job: Callable[[Any], Any], marks: Path, seconds: float, most: int | None
) -> Callable[[Any], Any]:
    """Wrap a job; its copies in other processes know nothing of this module."""

    def marked(task: int) -> Any:
        import time
        import uuid

        name = f"{task}.{uuid.uuid4().hex}"
        (marks / f"{name}.begun").touch()
        time.sleep(seconds)
        while most is not None and len(list(marks.glob("*.done"))) >= most:
            time.sleep(0.01)
        answer = job(task)
        (marks / f"{name}.done").touch()
        return answer

    return marked


def tasks_marked(marks: Path, what: str) -> list[int]:
    """List the tasks that left such marks, once for each."""
    return sorted(int(path.name.partition(".")[0]) for path in marks.glob(f"*.{what}"))


def main() -> int:
    """Make the dataset; returns the exit code."""
    given = json.loads(sys.argv[1])
    plan.GROUP_BYTES = plan.TASK_BYTES = given["group_bytes"]
    root = Path(given["root"])
    settings = Settings(root=root, offline=True, workers=1, minari_path=root)
    inner: Executor = LocalProcesses(given["workers"]) if given["workers"] else InProcess()
    executor = Watched(
        inner,
        Path(given["marks"]),
        given["seconds"],
        shards=given["shards"],
        most=given["most"],
    )
    parent, dest = Path(given["parent"]), Path(given["dest"])
    try:
        found = make(parent, given["stages"], dest, settings, executor=executor, **given["options"])
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"{stop}\n")
        return 130
    except OfflineDataError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write(f"{found.existed}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
