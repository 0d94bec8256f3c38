"""Arguments of the Python call that need a decision: who runs it, seeds, TorchRL's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.errors import UsageError
from offline_data.preprocess.reading import Chosen
from offline_data.progress import SILENT

if TYPE_CHECKING:
    import torch

    from offline_data.buffers.storage import Storage
    from offline_data.preprocess.executors.base import Executor
    from offline_data.progress import Progress


def executor_named(
    engine: str | Executor, pool: Any, workers: int | None, worker_threads: int
) -> Executor | None:
    """Return the executor that was asked for; None: it is chosen by what pays.

    Raises:
        UsageError: No such engine, or two of them.
        MissingDependencyError: Ray is not installed.
    """
    if pool is not None:
        if engine != "local":
            raise UsageError("pool= and engine= both say who runs the tasks; give one of them")
        from offline_data.preprocess.executors.pool import GivenPool

        return GivenPool(pool)
    if not isinstance(engine, str):
        return engine
    if engine == "ray":
        from offline_data.preprocess.executors.ray import RayExecutor

        return RayExecutor(workers=workers, worker_threads=worker_threads)
    if engine != "local":
        raise UsageError(f"engine is {engine!r}; expected 'local', 'ray' or an executor")
    return None


def check_torchrl(dim: int, mp_start_method: str | None, *, index_with_generator: bool) -> None:
    """Refuse what TorchRL's arguments of these names may mean and cannot mean here.

    Raises:
        UsageError: See the messages.
    """
    if dim != 0:
        raise UsageError(f"dim is {dim}; rows are the transitions of a dataset, which is dim=0")
    if index_with_generator:
        raise UsageError(
            "index_with_generator=True is not there: rows are seeded by their number, whoever runs them",
            hint="leave it out; seed= says which random numbers they get",
        )
    if mp_start_method not in {None, "spawn", "forkserver", "fork"}:
        raise UsageError(
            f"mp_start_method is {mp_start_method!r}; expected 'spawn' or 'forkserver'"
        )


def seed_of(seed: int | None, generator: torch.Generator | None) -> int:
    """Return the seed that either stands for; raises `UsageError` where both are given."""
    if seed is not None and generator is not None:
        raise UsageError("seed= and generator= both say which random numbers; give one of them")
    if generator is not None:
        return generator.initial_seed()
    return seed or 0


def shown(progress: Progress | None, *, pbar: bool) -> Progress:
    """Return where long work tells of itself."""
    if progress is not None:
        return progress
    if not pbar:
        return SILENT
    from offline_data.preprocess.bar import RichProgress

    return RichProgress()


def view_of(storage: Storage) -> Chosen | None:
    """Return the rows of a view, in its order; None for the storage of a whole dataset.

    Rows that follow each other in an episode are one piece, also where it is a single row.

    Raises:
        UsageError: The view is empty.
    """
    from offline_data.buffers.views.storage import SubsetStorage

    if not isinstance(storage, SubsetStorage):
        return None
    runs = storage.whole.runs()
    pieces = storage.row_map.cut(runs)
    if not len(pieces.first):
        raise UsageError("The view is empty, so there is nothing to preprocess")
    episodes = runs.of(pieces.first)
    steps = pieces.first - runs.starts[episodes]
    return Chosen(episodes.numpy(), pieces.lengths.numpy(), steps.numpy())
