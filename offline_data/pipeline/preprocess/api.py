"""The `preprocess` method of datasets, with TorchRL's argument names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from offline_data.base.errors import UsageError
from offline_data.base.progress import Progress
from offline_data.store.layout import AuditMode, LayoutName

if TYPE_CHECKING:
    import torch

    from offline_data.pipeline.jobs.executors import Executor
    from offline_data.pipeline.preprocess.functions.ted import On
    from offline_data.pipeline.preprocess.job import Stage
    from offline_data.rows.storage import DatasetStorage, Storage
    from offline_data.store.chunk import EpisodeSelection


class Preprocesses:
    """Mixin with the `preprocess` method of datasets."""

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
        progress: bool | Progress = True,
        layout: LayoutName | None = None,
        audit: AuditMode | None = None,
        resume: bool = False,
        force: bool = False,
        root: str | os.PathLike[str] | None = None,
    ) -> DatasetStorage:
        """Map `fn` over all transitions of this dataset, or view, and write a new dataset.

        `fn` takes one transition in TED, without batch size, with `index` and `episode` (of the
        dataset on disk, also in a view), and returns one; it may add, remove, reshape and cast
        features. Keys, dtypes and shapes of its first result hold for all rows. The result does not
        depend on workers, chunks or order.

        `fn` must be pure, as for `jax.jit`: its result depends only on its row and on random
        numbers of the global generators, which are seeded for every row. If `torch.vmap` supports
        it, it runs on blocks of rows and the manifest records "vectorised". The result is then
        equal up to floating-point rounding, so a comparison of nearly equal floats may come out
        differently. A function with control flow that depends on values, with random numbers, or
        with operations that `vmap` rejects runs row by row. Some rows of every block (at least 8,
        and at least 128 values) are compared with a row-by-row run, integers and bools exactly; a
        block that differs is computed row by row. `vectorize=False` always runs row by row. Not
        detected: state that the first calls do not show, the clock, a generator of its own, and
        reading the text form of a tensor.

        A dataset that the same functions made of the same data is not made again, and an
        interrupted run is only resumed with the same functions. Functions are compared by their
        code and everything they refer to. If part of that cannot be compared (an open file, an h5py
        dataset, a generator), no result is reused: close over arrays or paths instead.

        If `fn` treats root and `next` observations alike, the new dataset stores each observation
        once; features for which it does not are stored twice, and the manifest lists them.

        TorchRL calls `fn` with chunks whose size depends on the workers, unless `chunksize=0`.

        Args:
            fn: A function, a torchrl transform, a step (`Clip(("action",), high=1.0)`), the text of
                one (`"cast:obs=float32"`), or several of these, in order.
            dim: 0.
            num_workers: Maximum number of processes; fewer are started if the work is short. None:
                from the settings (`OFFLINE_DATA_WORKERS`).
            dest: Dataset directory to make; absent or empty.
            name: Instead of `dest`: the new dataset is `local:NAME` under the root.
            batched: Call `fn` on blocks `[n, …]` of at most this many rows; it returns as many.
                Blocks do not depend on workers or chunks.
            by: `"episode"`: call `fn` on each episode, `[T, …]`. It may return fewer or more rows,
                or None to drop the episode. All features of a row move together: if `fn` reorders
                rows, it must also set `next` and the end flags, which would stay with their rows.
            on: `"observations"`: call `fn` once on every stored observation, the final ones
                included, without the rest of the transition: half the work.
            vectorize: `"auto"`: use `torch.vmap` if possible; False: row by row.
            num_frames: Use only the first `num_frames` steps.
            chunksize: Approximate number of transitions of a task, the most that is lost when a
                process dies.
            num_chunks: Approximate number of tasks.
            pool: Runs the tasks: a `concurrent.futures.Executor`.
            generator: Its initial seed is used as `seed`.
            seed: Torch's, numpy's and Python's global generators are seeded with it and the row
                number before each call.
            index_with_generator: False.
            max_tasks_per_child: Replace a process after this many tasks.
            worker_threads: Torch threads of each process.
            mp_start_method: Ignored: processes are always spawned, never forked.
            engine: `"local"`, `"ray"`, or an executor.
            pbar: Whether to show a bar at once, also where stderr is not a terminal.
            progress: Whether to show a bar after two seconds; or an object that receives progress.
            layout: Layout to write; None: that of this dataset.
            audit: Rows to read back and compare: `"auto"` (all; of data with text, encoded images
                or layout `ted` those of the first GiB, and 1 % above), `"all"`, a fraction, or
                `"none"`.
            resume: Whether to resume an interrupted run.
            force: Whether to replace an existing dataset and the work of an interrupted run.
            root: Root for `local:NAME`.

        Returns:
            The storage of the new dataset, for `ReplayBuffer(storage=…)`; `open_dataset(dest)`
            opens the dataset itself.

        Raises:
            StepError: `fn` failed or its result cannot be stored; names row and episode and has the
                function's own traceback. Finished tasks are kept.
            UsageError: Another dataset exists there; an invalid argument.
            WorkerDiedError: A process was killed twice at the same task.
            NoSpaceError, AccessError: Of the disk.

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
        from offline_data.base.config import resolve_settings
        from offline_data.base.progress import ProgressBars, progress_of
        from offline_data.pipeline.preprocess import engine as making
        from offline_data.pipeline.preprocess.job import Job, RunOptions
        from offline_data.rows.storage import DatasetStorage
        from offline_data.store.layout import DEFAULT_AUDIT

        if dim != 0:
            raise UsageError(f"dim is {dim}; rows are the transitions of a dataset, which is dim=0")
        if index_with_generator:
            raise UsageError(
                "index_with_generator=True is not supported: each row is seeded by its number, in any "
                "worker",
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
            batched=batched,
            by=by,
            on=on,
            vectorize=vectorize,
            seed=seed,
            num_frames=num_frames,
            view=selection_of(self.storage),
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
        place = None if dest is None else Path(dest)
        job = Job(self.data_path, tuple(stages), name, place, options)
        bar = pbar and isinstance(progress, bool)
        shown = ProgressBars(0, everywhere=True) if bar else progress_of(progress)
        return DatasetStorage(making.preprocess(job, resolve_settings(root=root), shown).path)


def _executor_named(
    engine: str | Executor, pool: Any, workers: int | None, worker_threads: int
) -> Executor | None:
    """Return the requested executor; None to choose one by the amount of work."""
    if pool is not None:
        if engine != "local":
            raise UsageError("pool= and engine= both say who runs the tasks; give one of them")
        from offline_data.pipeline.jobs.executors import GivenPool

        return GivenPool(pool)
    if not isinstance(engine, str):
        return engine
    if engine == "ray":
        from offline_data.pipeline.jobs.ray import RayExecutor

        return RayExecutor(workers=workers, worker_threads=worker_threads)
    if engine != "local":
        raise UsageError(f"engine is {engine!r}; expected 'local', 'ray' or an executor")
    return None


def selection_of(storage: Storage) -> EpisodeSelection | None:
    """Return a view's rows, in its order, by pieces of consecutive ones; None: a whole dataset."""
    from offline_data.rows.selection import SubsetStorage
    from offline_data.store.chunk import EpisodeSelection

    if not isinstance(storage, SubsetStorage):
        return None
    runs = storage.whole.runs()
    pieces = storage.row_map.cut(runs)
    if not len(pieces.first):
        raise UsageError("The view is empty: it has no rows")
    episodes = runs.of(pieces.first)
    steps = pieces.first - runs.starts[episodes]
    return EpisodeSelection(episodes.numpy(), pieces.lengths.numpy(), steps.numpy())
