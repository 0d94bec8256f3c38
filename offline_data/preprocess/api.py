"""`preprocess` as a method of datasets, with TorchRL's argument names, and what these may be."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, cast

from offline_data.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    import torch

    from offline_data.buffers.storage import DatasetStorage, Storage
    from offline_data.executors.base import Executor
    from offline_data.preprocess.chunk import EpisodeSelection
    from offline_data.preprocess.functions.ted import On
    from offline_data.preprocess.recipe import Stage
    from offline_data.progress import Progress, Task
    from offline_data.store.layout import AuditMode, LayoutName


class Preprocesses:
    """Gives datasets `preprocess`."""

    if TYPE_CHECKING:

        @property
        def data_path(self) -> Path:
            """The dataset directory."""

        @property
        def storage(self) -> Storage:
            """The rows of this buffer."""

    def preprocess(
        self,
        fn: Stage | Sequence[Stage],
        dim: int = 0,
        num_workers: int | None = None,
        *,
        dest: str | os.PathLike[str] | None = None,
        name: str | None = None,
        batched: int | None = None,
        by: Literal["row", "episode"] = "row",
        on: On = "transitions",
        vectorize: Literal["auto"] | bool = "auto",
        num_frames: int | None = None,
        chunksize: int | None = None,
        num_chunks: int | None = None,
        pool: Any = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        index_with_generator: bool = False,
        max_tasks_per_child: int | None = None,
        worker_threads: int = 1,
        mp_start_method: str | None = None,
        engine: Literal["local", "ray"] | Executor = "local",
        pbar: bool = False,
        progress: Progress | None = None,
        layout: LayoutName | None = None,
        audit: AuditMode | None = None,
        resume: bool = False,
        force: bool = False,
        root: str | os.PathLike[str] | None = None,
    ) -> DatasetStorage:
        """Make a new dataset out of all transitions of this dataset, or of this view, on disk.

        `fn` gets one transition in TED, without batch size and with `index` and `episode` (those of
        the dataset on disk, also in a view), and returns one: leaves may be added, removed, reshaped
        and cast. What it returns for the first row is what it must return for all. The result does
        not depend on workers, chunks or order.

        `fn` is pure, as for `jax.jit`: what it returns depends on its row alone, and on random
        numbers of the global generators, which are seeded for every row. Where `torch.vmap` can run
        it, blocks of rows are run so, and the manifest says "vectorised": the same up to
        floating-point rounding, so that a comparison on a knife's edge may fall to the other side.
        A function that looks at values to decide what to do, draws random numbers, or does what
        `vmap` refuses, is run row by row. Of every block some rows (32 and 512 values at least) are
        compared with rows one at a time, integers and bools exactly, and a block that differs is run
        by rows. `vectorize=False` is row by row, exactly. Not found out: functions that keep a state
        which the first calls do not show, ask for the time, draw from a generator of their own, or
        read the text of a tensor.

        What was made of the same data by the same functions is not made again, and an interrupted
        run is resumed for the same functions only. They are told apart by their code and all that
        they refer to. Of what cannot be compared (an open file, a dataset of h5py, a generator)
        nothing is used again: close over arrays or paths.

        Where `fn` treats observations before and after actions alike, the new dataset keeps each
        once; leaves that it tells apart are stored twice, and the manifest names them.

        In TorchRL `fn` gets chunks whose size depends on the workers, unless `chunksize=0`.

        Args:
            fn: A function, a torchrl transform, a step (`Clip(("action",), high=1.0)`), the text of
                one (`"cast:obs=float32"`), or several of these, in order.
            dim: 0.
            num_workers: Processes at most; fewer where starting them would not pay. None: those of
                the settings (`OFFLINE_DATA_WORKERS`).
            dest: The dataset directory to make, absent or empty.
            name: Instead of `dest`: it becomes `local:NAME` under the root.
            batched: `fn` gets blocks `[n, …]` of at most so many rows, and returns as many. Blocks
                do not depend on workers or chunks.
            by: `"episode"`: `fn` gets each episode, `[T, …]`, and may return fewer or more rows, or
                None to leave it out.
            on: `"observations"`: `fn` gets every observation once, before an action or after an
                episode's last one, without the rest of the transition: half the work.
            vectorize: `"auto"`: by `torch.vmap` where it can; False: row by row.
            num_frames: Only the first so many transitions.
            chunksize: Transitions of a task, about: what is lost at most when a process dies.
            num_chunks: Number of tasks, about.
            pool: Runs the tasks: a `concurrent.futures.Executor` or a `multiprocessing.Pool`.
            generator: Its initial seed is `seed`.
            seed: Torch's, numpy's and Python's global generators are seeded with this and the number
                of the row before `fn` sees it.
            index_with_generator: False.
            max_tasks_per_child: Tasks after which a process is replaced.
            worker_threads: Threads of torch in each process.
            mp_start_method: Ignored: processes are new programs, never forks.
            engine: `"local"`, `"ray"`, or an executor.
            pbar: Whether to draw a bar on stderr.
            progress: Where to tell of long work instead.
            layout: Layout to write; None: that of this dataset.
            audit: Fraction of rows that are read back and compared, `"all"` or `"none"`.
            resume: Whether to resume an interrupted run.
            force: Whether to replace a dataset of that name or place, and what an interrupted run
                left.
            root: Where `local:NAME` goes.

        Returns:
            The new dataset as a storage, for `ReplayBuffer(storage=…)`; `open_dataset(dest)` opens
            it with all that is known of it.

        Raises:
            StepError: `fn` failed or returned what cannot be stored; names the row and the episode,
                and has the function's own traceback. Finished tasks are kept.
            UsageError: Another dataset is there; an invalid argument.
            WorkerDiedError: A process was ended from outside, twice with the same task.
            NoSpaceError, AccessError: The disk.

        Example:
            >>> import tempfile, offline_data
            >>> from offline_data.testing.toy import toy_batch, write_toy
            >>> folder = tempfile.TemporaryDirectory()
            >>> _ = write_toy(Path(folder.name) / "toy", [toy_batch([3, 2])])
            >>> ds = offline_data.open_dataset(Path(folder.name) / "toy")
            >>> def half(td):
            ...     td["next", "reward"] = td["next", "reward"] / 2
            ...     return td
            >>> storage = ds.preprocess(half, dest=Path(folder.name) / "half")
            >>> len(offline_data.ReplayBuffer(storage=storage))
            5
            >>> folder.cleanup()
        """
        from offline_data.buffers.storage import DatasetStorage
        from offline_data.config import resolve_settings
        from offline_data.preprocess import engine as making
        from offline_data.preprocess.job import Job, RunOptions
        from offline_data.preprocess.recipe import Calling
        from offline_data.progress import SILENT
        from offline_data.store.layout import DEFAULT_AUDIT

        if dim != 0:
            raise UsageError(f"dim is {dim}; rows are the transitions of a dataset, which is dim=0")
        if index_with_generator:
            raise UsageError(
                "index_with_generator=True is not there: rows are seeded by their number, whoever "
                "runs them",
                hint="leave it out; seed= says which random numbers they get",
            )
        if mp_start_method not in {None, "spawn", "forkserver", "fork"}:
            raise UsageError(
                f"mp_start_method is {mp_start_method!r}; expected 'spawn' or 'forkserver'"
            )
        if seed is not None and generator is not None:
            raise UsageError("seed= and generator= both say which random numbers; give one of them")
        seed = (seed or 0) if generator is None else generator.initial_seed()
        stages = fn if isinstance(fn, (list, tuple)) else [cast("Stage", fn)]
        options = RunOptions(
            num_frames=num_frames,
            view=_view_of(self.storage),
            layout=layout,
            workers=num_workers or None,
            worker_threads=worker_threads,
            max_tasks_per_child=max_tasks_per_child,
            chunksize=chunksize,
            num_chunks=num_chunks,
            executor=_executor_named(engine, pool, num_workers or None, worker_threads),
            audit=DEFAULT_AUDIT if audit is None else audit,
            resume=resume,
            force=force,
        )
        calling = Calling(batched, by, on, vectorize, seed)
        place = None if dest is None else Path(dest)
        job = Job(self.data_path, tuple(stages), calling, name, place, options)
        shown = progress or (_RichProgress() if pbar else SILENT)
        return DatasetStorage(making.preprocess(job, resolve_settings(root=root), shown).path)


def _executor_named(
    engine: str | Executor, pool: Any, workers: int | None, worker_threads: int
) -> Executor | None:
    """Return the executor that was asked for; None: it is chosen by what pays."""
    if pool is not None:
        if engine != "local":
            raise UsageError("pool= and engine= both say who runs the tasks; give one of them")
        from offline_data.executors.pool import GivenPool

        return GivenPool(pool)
    if not isinstance(engine, str):
        return engine
    if engine == "ray":
        from offline_data.executors.ray import RayExecutor

        return RayExecutor(workers=workers, worker_threads=worker_threads)
    if engine != "local":
        raise UsageError(f"engine is {engine!r}; expected 'local', 'ray' or an executor")
    return None


def _view_of(storage: Storage) -> EpisodeSelection | None:
    """Return the rows of a view, in its order; None for the storage of a whole dataset.

    Rows that follow each other in an episode are one piece, also where it is a single row.
    """
    from offline_data.buffers.views.rows import SubsetStorage
    from offline_data.preprocess.chunk import EpisodeSelection

    if not isinstance(storage, SubsetStorage):
        return None
    runs = storage.whole.runs()
    pieces = storage.row_map.cut(runs)
    if not len(pieces.first):
        raise UsageError("The view is empty, so there is nothing to preprocess")
    episodes = runs.of(pieces.first)
    steps = pieces.first - runs.starts[episodes]
    return EpisodeSelection(episodes.numpy(), pieces.lengths.numpy(), steps.numpy())


class _RichProgress:
    """Draws a bar on stderr for each task, one after the other; sentences stand above it."""

    @contextmanager
    def task(self, label: str, total: int | None, unit: str) -> Iterator[Task]:  # noqa: ARG002
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as live:
            row = live.add_task(label, total=total)

            def resize(total: int) -> None:
                live.update(row, total=total)

            advance = partial(live.advance, row)
            yield SimpleNamespace(advance=advance, skip=advance, resize=resize)

    def note(self, message: str) -> None:
        from rich.console import Console

        Console(stderr=True).print(message, markup=False, highlight=False)
