"""Running the tasks of a job, and what is said when they are stopped."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from offline_data.base.progress import Progress
    from offline_data.pipeline.jobs.executors.base import Executor

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def run_tasks(
    executor: Executor,
    function: Callable[[T], R],
    tasks: Sequence[T],
    progress: Progress,
    shown: tuple[str, str],
    sizes: Sequence[int] | None = None,
) -> Iterator[Iterator[tuple[T, R]]]:
    """Run tasks; yields an iterator of each finished task and its answer.

    Leaving the block ends the tasks that still run. Progress is `shown` with a label and a unit,
    in the `sizes` of the tasks; None: 1 each.
    """
    answers = cast("Generator[Any, None, None]", executor.run(function, tasks, progress))
    label, unit = shown
    sizes = [1] * len(tasks) if sizes is None else sizes
    with progress.task(label, sum(sizes), unit) as bar, closing(answers):

        def finished() -> Iterator[tuple[T, R]]:
            for number, answer in answers:
                bar.advance(sizes[number])
                yield tasks[number], answer

        yield finished()


@contextmanager
def says_what_is_kept(keep: Callable[[], tuple[str, bool]], progress: Progress) -> Iterator[None]:
    """After a failure, say what is kept: in the error of an interrupt, else in a note.

    `keep` is called then; it returns the words, and whether they are worth a note.
    """
    try:
        yield
    except BaseException as error:
        kept, is_news = keep()
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(f"interrupted; {kept}") from None
        if is_news:
            progress.note(kept)
        raise
