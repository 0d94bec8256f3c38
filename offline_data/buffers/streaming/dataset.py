"""`StreamingDataset`: batches of a dataset streamed from its host without a copy on disk."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import distributed
from torch.utils.data import IterableDataset, get_worker_info

from offline_data.base.ahead import Ahead
from offline_data.base.config import Settings, resolve_settings, user_path
from offline_data.base.errors import NotFoundError, UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.base.progress import SILENT, Progress
from offline_data.buffers.arguments import as_derived
from offline_data.buffers.bridges.epochs import Ranks, WorkerEpochs
from offline_data.buffers.streaming.windows import (
    BatchForm,
    Position,
    Window,
    batches_of_reader,
    read_windows,
    shard_order,
    share_of,
)
from offline_data.episode import Skipped
from offline_data.episode.fields import join_key
from offline_data.pipeline.ingest import Options
from offline_data.pipeline.ingest.stream import ShardReader, StreamPlan, plan_stream
from offline_data.rows.derived.base import Derived
from offline_data.rows.derived.normalize import Normalizer
from offline_data.rows.derived.relabel import Relabel
from offline_data.rows.indexing import positive
from offline_data.rows.keys import KeyLike, as_keys
from offline_data.rows.transforms import Transform

if TYPE_CHECKING:
    from typing_extensions import Self


WINDOW_BYTES = 256 << 20
"""Default size of the episodes shuffled together; images count as JPEG or PNG."""


@pickled_by_name
class StreamingDataset(IterableDataset[Any]):
    """A dataset streamed from its host: batches in TED, without a copy on disk.

    Batches have the same features, names, dtypes and shapes as those of the dataset on disk
    (`load_dataset(id, decode_text=True)`), so that a program can switch. Text is `str`, since codes
    are only known after all of it was read. `index` and `episode` are `shard << 32 | number in the
    shard`, int64: the same in every epoch and process.

    Shards are read in an order determined by `(seed, epoch)`, each once per epoch. Consecutive
    episodes form windows of about `window_bytes`; rows are shuffled within a window while the next
    one is read, so memory holds two windows (plus one batch of the source), and the disk raw files
    of at most two shards per reading process. Raw data are parsed in a child process.

    | arguments | a batch | an epoch |
    |---|---|---|
    | `batch_size` | transitions `[B]` | each step once, except those whose next observation is unknown |
    | `batch_size` and `num_slices` or `slice_len` | concatenated slices `[B]` | a slice of each episode |
    | `slice_len` | one slice `[slice_len]` | a slice of each episode |
    | none, or `num_slices` | one whole episode `[T]` | each episode |

    Slices begin uniformly anywhere in their episode; their last row has `truncated` and `done` set.
    Unlike in TorchRL's stream, a slice may also be the last that fits, transitions can be drawn,
    errors and positions are exact, and missing data are not replaced by zeros.

    In a `DataLoader` each worker reads its own shards, as does each of `world` ranks: together they
    read the same data as a single reader, and all ranks get as many batches as the one with most;
    see `docs/guides/streaming.md`. Every iteration is the next epoch. `state_dict` after a batch
    and `load_state_dict` resume with exactly the following batch; torchdata's `StatefulDataLoader`
    saves the states of its workers.

    Args:
        id: `source:name[@revision]`, a name as for `load_dataset`, or the path of raw files, as for
            `offline-data convert`, or of a dataset directory. Datasets made on this machine
            (`local:…`) are read from the disk.
        batch_size: Number of rows in a batch.
        num_slices, slice_len: Number of slices in a batch, or rows in a slice.
        pad: True: pad episodes shorter than a slice with 0; a number: pad floating-point and signed
            features with it. The feature `("collector", "mask")` is False for padding.
        strict_length: False: episodes shorter than a slice are returned as a whole, and batches
            that contain some are shorter. True: they are an error, unless `pad` is set.
        replacement: None or False: a stream draws without replacement.
        shuffle: Whether to shuffle; False: the dataset's order.
        seed: Seed of all orders; the same in all ranks.
        window_bytes: Size of the episodes shuffled together, in bytes.
        drop_last: Whether to drop the last batch of an epoch if it is not full.
        batches_per_epoch: Number of batches of an epoch, of each rank: shards begin again, or the
            epoch ends before all were read. None: see above.
        equal: Whether all ranks have as many batches; False: those of their shards, each row once.
        keys, decode, transform: See `load_dataset`.
        derived: Functions that add features computed from other rows of the same episode, as for
            `load_dataset`. `normalize` needs statistics, given or of `fit`, since a stream is read
            once. Only `relabel` with `random` goals, which may be in other windows, is refused.
        rank, world: Index and number of programs that each read a part of the shards; None: see
            `ds.dataloader`. With a trainer that divides batches among ranks by itself: 0 and 1.
        skip_bad_episodes: Whether to skip unreadable episodes and list them in `skipped`.
        split: Split of a folder that has several, or `all`; see `convert`.
        only: Names of features to read (`lerobot`); files of the others are not fetched; see
            `download`.
        root: Folder for raw files while they are read.
        source: Adapter for the raw files of a path; None: detected.
        progress: Receives download progress; picklable if there are workers.

    Attributes:
        epoch: The epoch of the next iteration.
        skipped: Episodes skipped so far in this process.

    Raises:
        NotFoundError, OfflineError, NetworkError, AuthError: The dataset is not available.
        FormatError: A damaged shard, after the batches of earlier windows were returned.
        UsageError: Invalid argument.
    """

    def __init__(
        self,
        id: str | os.PathLike[str],
        batch_size: int | None = None,
        *,
        num_slices: int | None = None,
        slice_len: int | None = None,
        pad: bool | float | None = None,
        strict_length: bool = True,
        replacement: Literal[False] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        window_bytes: int = WINDOW_BYTES,
        drop_last: bool = False,
        batches_per_epoch: int | None = None,
        equal: bool = True,
        keys: Iterable[KeyLike] | None = None,
        decode: bool = True,
        derived: Derived | Iterable[Derived] = (),
        transform: Transform | None = None,
        rank: int | None = None,
        world: int | None = None,
        skip_bad_episodes: bool = False,
        split: str | None = None,
        only: str | None = None,
        root: str | os.PathLike[str] | None = None,
        source: str | None = None,
        settings: Settings | None = None,
        progress: Progress = SILENT,
    ) -> None:
        if replacement:
            raise UsageError(
                "replacement=True draws from all of a dataset, and a stream has a window of it",
                hint="load_dataset(…, sampler=SliceSampler(…)) does, from the disk",
            )
        if seed < 0:
            raise UsageError(f"A seed must not be negative; found {seed}")
        leaves = None if keys is None else as_keys(keys), decode, as_derived(derived)
        self._form = BatchForm(batch_size, num_slices, slice_len, pad, strict_length, *leaves)
        for function in self._form.derived:
            _check_derived(function)
        self.batch_size = batch_size
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.window_bytes = positive(window_bytes, "window_bytes")
        if batches_per_epoch is not None:
            positive(batches_per_epoch, "batches_per_epoch")
        self.batches_per_epoch, self.equal = batches_per_epoch, equal
        self._ranks = Ranks(rank, world)
        self._transform = transform
        self._settings = settings or resolve_settings(root=root)
        self._progress = progress
        text = id if isinstance(id, str) else str(user_path(id, "the raw data").absolute())
        self.plan: StreamPlan = plan_stream(
            text,
            self._settings,
            Options(skip_bad_episodes=skip_bad_episodes, split=split, only=only),
            source=source,
            progress=progress,
        )
        self.epoch = 0
        self.skipped: list[Skipped] = []
        self._position = Position()
        self._loaded: Position | None = None
        self._epochs = WorkerEpochs()
        self._open: set[ExitStack] = set()
        self._warned = False
        self._sampling: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        info, shards = get_worker_info(), len(self.plan.shards)
        (rank, world), (worker, workers) = self._ranks.now(), _worker()
        if world > shards:
            raise UsageError(
                f"{self.plan.id} has {plural(shards, 'shard')}, and {plural(world, 'rank')} "
                "cannot have one each",
                hint="use fewer ranks",
            )
        used = min(workers, shards // world)
        begin, self._loaded = self._loaded, None
        if info is None:
            begin = begin or Position(self.epoch)
            self.epoch = begin.epoch + 1
        else:
            if begin is not None:
                self._epochs.restart(begin.epoch)
            number, epoch = self._epochs.begin(info, self.epoch)
            begin = begin or Position(epoch)
            if used < workers and rank == worker == number == 0:
                warnings.warn(
                    f"{self.plan.id} has {plural(shards, 'shard')}: {used} of "
                    f"{plural(workers, 'worker')} read them, and "
                    "the others have nothing to do",
                    stacklevel=2,
                )
        self._position = begin
        count = self._count_batches(begin.epoch, (rank, world), (worker, used))
        if worker >= used or (count is not None and begin.batches >= count):
            self._position = Position(begin.epoch + 1)
            return iter(())
        return self._batches(begin, rank * used + worker, world * used, count)

    def _count_batches(
        self, epoch: int, ranks: tuple[int, int], workers: tuple[int, int]
    ) -> int | None:
        """Return the number of batches of this reader in an epoch; None: those of its shards."""
        if self.batches_per_epoch is not None:
            return share_of(self.batches_per_epoch, *workers)
        if not self.equal or ranks[1] == 1 or workers[0] >= workers[1]:
            return None
        shards, by_row = self.plan.shards, self._form.transitions
        items = [shard.transitions if by_row else shard.episodes for shard in shards]
        known = [count for count in items if count is not None]
        if len(known) == len(items):
            order = shard_order(len(items), self.seed, epoch, shuffle=self.shuffle)
            return batches_of_reader(
                [known[shard] for shard in order],
                self._form.size[0],
                drop_last=self.drop_last,
                ranks=ranks,
                workers=workers,
            )
        if distributed.is_available() and distributed.is_initialized() and not self._warned:
            self._warned = True
            warnings.warn(
                f"How many {'rows' if by_row else 'episodes'} the shards of {self.plan.id} have is not "
                f"known, so its {plural(ranks[1], 'rank')} may get different numbers of batches, and "
                "those with more wait for the others until a time limit: set batches_per_epoch=… (of "
                "each rank), or equal=False if they need not be equal",
                stacklevel=3,
            )
        return None

    @property
    def rank(self) -> int:
        """Index of this program among those that read a part each."""
        return self._ranks.now()[0]

    @property
    def world(self) -> int:
        """Number of programs that read a part each."""
        return self._ranks.now()[1]

    def sample(self, batch_size: int | None = None) -> Any:
        """Return the next batch; starts the next epoch when one ends.

        `batch_size` is only for streams without one, and must be the same in every call.
        """
        if batch_size is not None and batch_size != self.batch_size:
            if self.batch_size is not None:
                raise UsageError(
                    f"batch_size is {batch_size}, but this stream has batches of {self.batch_size}",
                    hint="make another stream",
                )
            self._form, self.batch_size = replace(self._form, batch_size=batch_size), batch_size
        if self.batch_size is None and self._form.slice_len is None:
            raise UsageError("No batch size: call sample(N), or give the stream batch_size=N")
        for _ in range(2):
            self._sampling = self._sampling or iter(self)
            batch = next(self._sampling, None)
            if batch is not None:
                return batch
            self._sampling = None
        raise NotFoundError(f"{self.plan.id} has no batch in an epoch")

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; optional, since epochs advance by themselves."""
        self.epoch, self._loaded = epoch, None
        self._position = Position(epoch)
        self._epochs.restart(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch and the stream's identity, as JSON values."""
        return {**self._identity(), **asdict(self._position)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at a position in the next iteration; raises `UsageError` for a different stream."""
        own, position = self._identity(), asdict(Position())
        state = {"batches": 0, **state}  # of before it was counted
        if state.keys() != {*own, *position}:
            raise UsageError(f"A stream has no such state: {sorted(map(str, state))}")
        for name, value in own.items():
            if state[name] != value:
                raise UsageError(
                    f"The state is of a stream with {name}={state[name]!r}, and this one has {value!r}",
                    hint="make the stream, and the workers that read it, with the same arguments",
                )
        if not all(type(state[name]) is int and state[name] >= 0 for name in position):
            raise UsageError("The state has a position that is not made of numbers")
        self.close()
        self._loaded = self._position = Position(**{name: state[name] for name in position})

    def close(self) -> None:
        """Stop all iterations, their processes and threads, and delete the raw files."""
        self._sampling = None
        for opened in list(self._open):
            opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _identity(self) -> dict[str, Any]:
        (rank, world), (worker, workers) = self._ranks.now(), _worker()
        reader = [rank * workers + worker, world * workers]
        form = [*self._form.size, self._form.transitions, self.drop_last]
        return {
            "id": self.plan.id,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "window_bytes": self.window_bytes,
            "batch": form,
            "reader": reader,
        }

    def _batches(self, begin: Position, part: int, parts: int, count: int | None) -> Iterator[Any]:
        """Yield the batches of a reader's shards, or `count` of them, for which shards begin again."""
        epoch, done = begin.epoch, begin.batches
        while True:
            before = done
            with closing(self._pass(begin, part, parts)) as batches:
                for batch in batches:
                    done += 1
                    self._position = replace(self._position, batches=done)
                    yield batch
                    if done == count:
                        break
            if count in {None, done}:
                if get_worker_info() is None:  # a worker that resumes waits for the others
                    self._position = Position(epoch + 1)
                return
            if done == before and begin == Position(epoch, begin.window, batches=done):
                raise NotFoundError(f"{self.plan.id} has no batch in an epoch")
            begin = Position(epoch, self._position.window, batches=done)

    def _pass(self, begin: Position, part: int, parts: int) -> Generator[Any]:
        order = shard_order(len(self.plan.shards), self.seed, begin.epoch, shuffle=self.shuffle)
        left: deque[Window] = deque()
        with ExitStack() as opened:
            self._open.add(opened)
            opened.callback(self._open.discard, opened)
            reader = ShardReader(self.plan, self._settings, self._progress)
            windows = Ahead(
                read_windows(
                    reader,
                    order[part::parts],
                    begin,
                    self._form,
                    shuffle=self.shuffle,
                    seed=(self.seed, part),
                    limit=self.window_bytes,
                )
            )
            opened.callback(windows.close)
            opened.callback(reader.close)  # first, so that the thread of the windows ends
            for window in windows:
                left.append(window)
                self.skipped += window.skipped
                del window  # frees memory before the next one is awaited
                while sum(window.left for window in left) >= self._form.size[0]:
                    yield self._batch(left)
            if not self.drop_last and any(window.left for window in left):
                yield self._batch(left)

    def _batch(self, left: deque[Window]) -> Any:
        missing, taken = self._form.size[0], []
        while left and missing:
            window = left[0]
            count = min(missing, window.left)
            missing -= count
            taken.append(window.take(count))
            self._position = window.position
            if not window.left:
                left.popleft()
        if left:
            self._position = left[0].position
        batch = self._form.make(taken)
        return batch if self._transform is None else self._transform(batch)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out iterations in progress: the other process reads for itself."""
        return {**vars(self), "_open": set(), "_sampling": None}

    def __repr__(self) -> str:
        return (
            f"StreamingDataset({self.plan.id!r}, shards={len(self.plan.shards)}, "
            f"batch_size={self.batch_size}, epoch={self._position.epoch})"
        )


def _check_derived(function: Derived) -> None:
    if isinstance(function, Normalizer) and not function.prepare():
        raise UsageError(
            f"normalize has no statistics of {', '.join(map(join_key, function.keys))!r}, and a stream "
            "is read once",
            hint="normalize(keys, statistics={key: (mean, std)}), or normalize(keys).fit(ds) with a "
            "dataset on this disk",
        )
    if isinstance(function, Relabel) and "random" in dict(function.distributions):
        raise UsageError(
            f"relabel draws {join_key(function.goal_key)!r} from all rows of a dataset ('random'), and "
            "a stream has a window of them",
            hint="the other distributions draw goals from the same episode",
        )


def _worker() -> tuple[int, int]:
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
