"""Windows of a stream: consecutive episodes in memory, shuffled and combined into batches.

```
episodes of the stream   e0 e1 e2 | e3 e4 | e5 e6 …     windows of about equal size in bytes
drawn                    2 0 1    | 4 3   | …           each shuffled separately
batches                  [2 0][1     4][3 …             a batch may span two windows
```
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import NonTensorData, NonTensorStack
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.episode.fields import DONE, TERMINATED, TRUNCATED, Key, next_of
from offline_data.episode.joining import concatenate
from offline_data.pipeline.ingest.shards import naming
from offline_data.pipeline.ingest.stream import ShardReader, StreamPiece
from offline_data.rows.derived.base import Derived, leaf_keys, widen
from offline_data.rows.gather.assemble import assemble, tree_of
from offline_data.rows.gather.plan import FLAGS, INDEX
from offline_data.rows.indexing import positive
from offline_data.rows.keys import KeyLike, select_keys
from offline_data.rows.samplers.base import EpisodeIndex, Sampleable, ValidRows
from offline_data.rows.samplers.slices import MASK, SliceSampler
from offline_data.rows.selection import end_to_end
from offline_data.store.encoded import EncodedColumn
from offline_data.store.layout import EPISODE, OBSERVATIONS, STEPS
from offline_data.store.tables import Schema, Vocabularies, encode_column, schema_of

if TYPE_CHECKING:
    from offline_data.episode import EpisodeBatch, Skipped

SHARD_BITS = 32  # bits of a row's number within its shard, in the features `index` and `episode`

_ORDER, _ROWS = 0, 1  # separates the random numbers of shard orders from those of windows


@pickled_by_name
@dataclass(frozen=True)
class Position:
    """Position in a stream: the number of items already returned."""

    epoch: int = 0
    window: int = 0  # number of the window in this reader's epoch
    shard: int = 0  # start of the window: number of preceding shards in this reader's order, …
    episode: int = 0  # … and number of preceding episodes in the next shard
    taken: int = 0  # number of rows, slices or episodes of the window already returned
    batches: int = 0  # number of batches of the epoch that were returned already


@pickled_by_name
@dataclass(frozen=True)
class BatchForm:
    """Contents of a batch: transitions, slices, or one whole episode, and their features."""

    batch_size: int | None = None
    num_slices: int | None = None
    slice_len: int | None = None
    pad: bool | float | None = None
    strict_length: bool = True
    keys: tuple[Key, ...] | None = None
    decode: bool = True
    derived: tuple[Derived, ...] = ()

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            positive(self.batch_size, "batch_size")
        if self._sampler is not None:
            self.size  # noqa: B018 - raises for a batch size that is not a multiple
        elif self.padded:
            raise UsageError("pad fills up slices: give num_slices or slice_len, too")

    @property
    def padded(self) -> bool:
        return self.pad is not None and self.pad is not False

    @property
    def size(self) -> tuple[int, int | None]:
        """Number of items in a batch, and of rows in a slice; None: a whole episode, or one row."""
        if self._sampler is not None and self.batch_size is not None:
            return self._sampler.slices_of(self.batch_size)
        if self._sampler is None and self.batch_size is not None:
            return self.batch_size, None
        return 1, self.slice_len

    @property
    def transitions(self) -> bool:
        return self._sampler is None and self.batch_size is not None

    @property
    def _sampler(self) -> SliceSampler | None:
        if self.num_slices is None and self.slice_len is None:
            return None
        return SliceSampler(
            num_slices=self.num_slices,
            slice_len=self.slice_len,
            strict_length=self.strict_length and not self.padded,
            pad_output=self.padded,
        )

    def draw(
        self, window: Sampleable, generator: np.random.Generator, *, shuffle: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return first rows and lengths `[K]` of all items of a window, in order.

        Raises `UsageError` for an episode that is too short.
        """
        if self.transitions:
            valid = window.rows(valid_only=True)
            starts = valid.at(torch.arange(valid.count)).numpy()
            lengths = np.ones_like(starts)
        else:
            runs = window.runs()
            starts, lengths = runs.starts.numpy(), runs.lengths.numpy()
        order = generator.permutation(len(starts)) if shuffle else np.arange(len(starts))
        starts, lengths, (_, width) = starts[order], lengths[order], self.size
        if width is None:
            return starts, lengths
        if self.strict_length and not self.padded and (lengths < width).any():
            raise UsageError(
                f"An episode has {plural(lengths.min(), 'step')}, and slices have {width}",
                hint="ask for shorter slices, take short episodes whole with strict_length=False, "
                "or fill them up with pad=True",
            )
        counts = np.maximum(lengths - width + 1, 1)
        starts = starts + (generator.random(len(starts)) * counts).astype(np.int64)
        return starts, np.minimum(lengths, width)

    def make(self, parts: Sequence[tuple[Window, NDArray[Any], NDArray[Any]]]) -> Any:
        """Return the batch of items, given by window, first rows and lengths."""
        sampler, (_, width) = self._sampler, self.size
        batches, leaves = [], dict[Any, Tensor]()
        for window, starts, lengths in parts:
            if sampler is None or width is None:
                rows = end_to_end(torch.from_numpy(starts), torch.from_numpy(lengths))
            else:
                rows, leaves = sampler.batch_of(starts, lengths, width)
            batch = window.gather(rows)
            for derive in self.derived:
                batch = derive(batch, rows, window)
            if sampler is not None:
                sampler.complete(batch, leaves)
            batches.append(batch)
        batch = batches[0] if len(batches) == 1 else torch.cat(batches)
        if self.padded:
            _fill(batch, 0 if self.pad is True else self.pad or 0)
        return batch


class Window:
    """Consecutive whole episodes in memory: a `Storage`, and the items that remain to be drawn."""

    items: tuple[NDArray[np.int64], NDArray[np.int64]]  # all, in order; see `BatchForm.draw`

    def __init__(
        self,
        pieces: Sequence[StreamPiece],
        form: BatchForm,
        begin: Position,
        end: Position,
        skipped: Sequence[Skipped],
    ) -> None:
        batch = self._batch = concatenate([piece.batch for piece in pieces])
        self._begin, self._end, self.skipped = begin, end, tuple(skipped)
        self._taken, self._decode = begin.taken, form.decode
        self._numbers = {
            INDEX: _numbers((p.shard, p.row, p.batch.transitions) for p in pieces),
            EPISODE: _numbers((p.shard, p.episode, len(p.batch.lengths)) for p in pieces)[
                batch.episode_of
            ],
        }
        observed = list(batch.observations)
        nexts = map(next_of, observed)
        self._known: list[Key] = [*observed, EPISODE, *batch.steps, *FLAGS, *nexts, DONE]
        self.keys = self._select(self._known if form.keys is None else form.keys)
        columns = batch.starts, batch.lengths, batch.final_observation
        starts, lengths, final = (torch.from_numpy(np.array(column)) for column in columns)
        self._runs = EpisodeIndex(starts, lengths, final)
        last = batch.last_rows
        lost = last[~batch.final_observation & ~batch.steps[TERMINATED][last, 0]]
        self._valid, self._every = ValidRows(len(self), lost), ValidRows(len(self))

    @property
    def left(self) -> int:
        return len(self.items[0]) - self._taken

    def take(self, count: int) -> tuple[Window, NDArray[np.int64], NDArray[np.int64]]:
        chosen = slice(self._taken, self._taken + count)
        self._taken += count
        return self, self.items[0][chosen], self.items[1][chosen]

    @property
    def position(self) -> Position:
        return replace(self._begin, taken=self._taken, batches=0) if self.left else self._end

    def __len__(self) -> int:
        return self._batch.transitions

    def rows(self, *, valid_only: bool) -> ValidRows:
        return self._valid if valid_only else self._every

    def runs(self) -> EpisodeIndex:
        return self._runs

    def only(self, keys: Iterable[KeyLike]) -> Window:
        other = copy(self)
        other.keys = self._select(keys)
        return other

    def _select(self, keys: Iterable[KeyLike]) -> list[Key]:
        return [INDEX, *select_keys(self._known, keys)]

    def gather(self, rows: Tensor) -> Any:
        """Return the batch of `rows`, int64 `[B]`; text and undecoded images as objects."""
        batch, found, spots, wanted = self._batch, dict[Key, Any](), rows.numpy(), set(self.keys)
        places = {(): batch.root_rows[spots], ("next",): batch.next_rows[spots]}
        for key, column in batch.observations.items():
            at = {
                (*above, *key): spot for above, spot in places.items() if (*above, *key) in wanted
            }
            found.update(_take_rows(column, at, decode=self._decode))
        for key, column in {**batch.steps, **self._numbers}.items():
            if key in wanted:
                found.update(_take_rows(column, {key: spots}, decode=self._decode))
        for key in wanted.intersection(FLAGS):
            found[key] = np.zeros((len(spots), 1), bool)
        if DONE in wanted:
            flags = (batch.steps[key][spots] for key in (TERMINATED, TRUNCATED))
            found[DONE] = np.logical_or(*flags)
        return _to_tensordict({key: found[key] for key in self.keys})


def read_windows(
    reader: ShardReader,
    order: Sequence[int],
    begin: Position,
    form: BatchForm,
    *,
    shuffle: bool,
    seed: Sequence[int],
    limit: int,
) -> Generator[Window]:
    """Read the shards of `order` from `begin` on, and yield their windows.

    They do not depend on `begin`. `seed` is that of all, `limit` the bytes that complete a window.
    """
    places = {shard: place for place, shard in enumerate(order)}
    pieces: list[StreamPiece] = []
    skipped: list[Skipped] = []
    schema: Schema | None = None
    end, size = begin, 0

    def window() -> Window:
        numbers = (*seed, begin.epoch, begin.window, _ROWS)
        generator = np.random.default_rng(np.random.SeedSequence(numbers))
        result = Window(pieces, form, begin, end, skipped)
        with naming(reader.plan.shards[pieces[0].shard]):
            result.items = form.draw(result, generator, shuffle=shuffle)
        pieces.clear()  # free memory before waiting for the next one
        skipped.clear()
        return result

    for piece in reader.pieces(order[begin.shard :], begin.episode):
        skipped += piece.batch.skipped
        if not len(piece.batch.lengths):
            continue
        with naming(reader.plan.shards[piece.shard]):
            schema = schema or schema_of(piece.batch)
            schema.conform(piece.batch, piece.episode)
            piece = replace(piece, batch=_cast_as_stored(piece.batch, schema))
        pieces.append(piece)
        stop = piece.episode + len(piece.batch.lengths)
        end = Position(begin.epoch, begin.window + 1, places[piece.shard], stop)
        size += piece.batch.nbytes
        if size >= limit:
            yield window()
            begin, size = end, 0
    if pieces:
        yield window()


def batches_of_reader(
    items: Sequence[int],
    size: int,
    *,
    drop_last: bool,
    ranks: tuple[int, int],
    workers: tuple[int, int],
) -> int:
    """Return how many batches a reader makes of an epoch, so that all ranks have as many as the longest.

    A rank has those of all its workers; what it lacks is divided among those that have any.

    ```
    rows of 4 shards, 2 ranks, batches of 2    rank 0: 9 + 1 -> 5    rank 1: 2 + 2 -> 2, and 3 again
    ```

    `items` are those of each shard, in the order of the epoch, and `size` those of a batch; `ranks` and
    `workers` an index and a number, of the workers that read.
    """
    (rank, world), (worker, used) = ranks, workers
    rows = [sum(items[reader :: world * used]) for reader in range(world * used)]
    counts = np.array([n // size if drop_last else -(-n // size) for n in rows])
    counts = counts.reshape(world, used)
    lacking, own = int(counts.sum(1).max() - counts[rank].sum()), counts[rank]
    able = np.flatnonzero(own).tolist() or [*range(used)]
    more = share_of(lacking, able.index(worker), len(able)) if worker in able else 0
    return int(own[worker]) + more


def share_of(count: int, worker: int, workers: int) -> int:
    """Return the share of a worker in a number of batches."""
    return count // workers + (worker < count % workers)


def shard_order(count: int, seed: int, epoch: int, *, shuffle: bool) -> list[int]:
    """Return the numbers of all shards in the order of an epoch."""
    if not shuffle:
        return list(range(count))
    numbers = np.random.SeedSequence((seed, epoch, _ORDER))
    return list(map(int, np.random.default_rng(numbers).permutation(count)))


def _cast_as_stored(batch: EpisodeBatch, schema: Schema) -> EpisodeBatch:
    """Return a batch with the dtypes of a dataset on disk; text is unchanged."""
    words = Vocabularies()

    def cast(table: str, columns: Mapping[Key, Any], values: Mapping[Key, Any]) -> dict[Key, Any]:
        return {
            key: leaf if leaf.dtype == object else encode_column(table, columns[key], leaf, words)
            for key, leaf in values.items()
        }

    return replace(
        batch,
        steps=cast(STEPS, schema.steps, batch.steps),
        observations=cast(OBSERVATIONS, schema.observations, batch.observations),
        episodes={},
        skipped=(),
    )


def _numbers(runs: Any) -> NDArray[np.int64]:
    parts = [(shard << SHARD_BITS) + np.arange(first, first + n) for shard, first, n in runs]
    return np.concatenate(parts)


def _take_rows(column: Any, at: Mapping[Key, NDArray[np.int64]], *, decode: bool) -> dict[Key, Any]:
    """Return rows of a column for each key; images of all keys are decoded together."""
    if not isinstance(column, EncodedColumn):
        return {key: np.take(column, rows, axis=0) for key, rows in at.items()}
    if not decode:
        images = {key: column[rows].images() for key, rows in at.items()}
        return {key: np.array([*some, None], object)[:-1] for key, some in images.items()}
    if not at:
        return {}
    result = {
        key: np.empty((len(rows), *column.shape[1:]), column.dtype) for key, rows in at.items()
    }
    wanted = column[np.concatenate(list(at.values()))]
    wanted.decode([row for leaf in result.values() for row in leaf], torch.get_num_threads())
    return result


def _to_tensordict(leaves: Mapping[Key, Any]) -> Any:
    numeric = {key: torch.from_numpy(leaf) for key, leaf in leaves.items() if leaf.dtype != object}
    slots = {key: slot for slot, key in enumerate(numeric)}
    size = torch.Size([len(leaves[INDEX])])
    batch = assemble(tree_of(slots), list(numeric.values()), size, torch.device("cpu"))
    for key, leaf in leaves.items():
        if leaf.dtype == object:
            batch.set(key, _stack(leaf))
    return batch


def _stack(column: Any) -> Any:
    """Return objects as a `NonTensorStack`; setting the device here avoids a slow `set` later."""
    if column.ndim > 1:
        return NonTensorStack.from_list(column.tolist())
    device = torch.device("cpu")
    return NonTensorStack(*(NonTensorData(x, batch_size=[], device=device) for x in column))


def _fill(batch: Any, value: float) -> None:
    padding = ~batch.get(MASK)
    for key in leaf_keys(batch, text=True):
        leaf = batch.get(key)
        if not isinstance(leaf, torch.Tensor):
            values: Any = np.array(leaf.tolist(), object)
            values[padding.numpy()] = None
            batch.set(key, _stack(values))
            continue
        signed = leaf.dtype != torch.bool and (leaf.is_floating_point() or leaf.dtype.is_signed)
        batch.set(key, leaf.masked_fill(widen(padding, leaf), value if signed else 0))
