"""Batches into the rows of tables: packed one-copy `compact`, or plain two-copy `ted`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from offline_data.episodes.fields import DONE, TERMINATED, TRUNCATED, Key, next_of
from offline_data.store.columns import Schema, stored
from offline_data.store.layout import (
    EPISODE,
    OBSERVATIONS,
    STEPS,
    TED,
    LayoutName,
    LeafSpec,
    TableSpec,
)
from offline_data.store.packing import Column, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from offline_data.episodes import EpisodeBatch
    from offline_data.store.sink import Appends
    from offline_data.store.text import Vocabularies

CHUNK = 4 << 20
"""Bytes of packed rows that are built at once."""

_FLAGS: tuple[Key, ...] = (("done",), ("terminated",), ("truncated",))
_BOOL = np.dtype(bool)

if TYPE_CHECKING:
    Rows = Callable[[slice], NDArray[Any]]
    """Values of one column for a slice of the table's rows of a batch."""


class TableWriter:
    """Appends rows to the files of one table."""

    def __init__(self, spec: TableSpec, sink: Appends) -> None:
        self.spec = spec
        self._sink = sink
        self._by_file: dict[str, list[LeafSpec]] = {}
        for leaf in spec.leaves:
            self._by_file.setdefault(leaf.file, []).append(leaf)
            sink.append(leaf.file, b"")

    def append(self, columns: Mapping[Key, Rows], rows: int) -> None:
        """Append `rows` rows of every column."""
        for file, leaves in self._by_file.items():
            stride = leaves[0].stride
            if stride == 0:
                continue
            step = max(1, CHUNK // stride)
            for begin in range(0, rows, step):
                part = slice(begin, min(begin + step, rows))
                self._sink.append(file, _records(leaves, stride, columns, part))
        self.spec = self.spec.with_rows(self.spec.rows + rows)


def _records(
    leaves: list[LeafSpec], stride: int, columns: Mapping[Key, Rows], part: slice
) -> NDArray[np.uint8]:
    count = part.stop - part.start
    dtype = np.dtype(
        {
            "names": [str(i) for i in range(len(leaves))],
            "formats": [(leaf.dtype, leaf.shape) for leaf in leaves],
            "offsets": [leaf.offset for leaf in leaves],
            "itemsize": stride,
        }
    )
    records = np.zeros(count, dtype)
    for i, leaf in enumerate(leaves):
        records[str(i)] = columns[leaf.key](part)
    return records.view(np.uint8)


class LayoutWriter(Protocol):
    """Brings batches into one layout."""

    @property
    def tables(self) -> dict[str, TableSpec]:
        """Tables with the rows appended so far."""

    def append(self, batch: EpisodeBatch, first_episode: int) -> None:
        """Append one batch whose first episode has this number."""


class CompactWriter:
    """One copy: packed steps (`N` rows) and packed observations (`N + E` rows)."""

    def __init__(self, schema: Schema, sink: Appends, words: Vocabularies) -> None:
        self._schema, self._words = schema, words
        episode = Column(EPISODE, np.dtype("int64"), ())
        self._steps = TableWriter(pack(STEPS, [episode, *schema.steps.values()]), sink)
        self._observations = TableWriter(pack(OBSERVATIONS, schema.observations.values()), sink)

    @property
    def tables(self) -> dict[str, TableSpec]:
        """`steps` and `observations`."""
        return {STEPS: self._steps.spec, OBSERVATIONS: self._observations.spec}

    def append(self, batch: EpisodeBatch, first_episode: int) -> None:
        """Append one batch."""
        steps = _rows_of(STEPS, batch.steps, self._schema.steps, self._words)
        steps[EPISODE] = (batch.episode_of + first_episode).__getitem__
        self._steps.append(steps, batch.transitions)
        seen = _rows_of(OBSERVATIONS, batch.observations, self._schema.observations, self._words)
        self._observations.append(seen, batch.transitions + len(batch.lengths))


class TedWriter:
    """Two copies: every TED leaf in a file of its own, `next` and root flags stored."""

    def __init__(self, schema: Schema, sink: Appends, words: Vocabularies) -> None:
        self._schema, self._words = schema, words
        columns = [Column(EPISODE, np.dtype("int64"), ()), *schema.steps.values()]
        for column in schema.observations.values():
            columns.append(column)
            columns.append(Column(next_of(column.key), column.dtype, column.shape, column.text))
        columns += [Column(key, _BOOL, (1,)) for key in (*_FLAGS, DONE)]
        self._ted = TableWriter(pack(TED, columns, packed=False), sink)

    @property
    def tables(self) -> dict[str, TableSpec]:
        """`ted`."""
        return {TED: self._ted.spec}

    def append(self, batch: EpisodeBatch, first_episode: int) -> None:
        """Append one batch."""
        rows = _rows_of(TED, batch.steps, self._schema.steps, self._words)
        rows[EPISODE] = (batch.episode_of + first_episode).__getitem__
        seen = _rows_of(TED, batch.observations, self._schema.observations, self._words)
        for key, column in seen.items():
            rows[key] = _gathered(column, batch.root_rows)
            rows[next_of(key)] = _gathered(column, batch.next_rows)
        ended = batch.steps[TERMINATED].astype(bool) | batch.steps[TRUNCATED].astype(bool)
        rows[DONE] = ended.__getitem__
        for flag in _FLAGS:
            rows[flag] = _constant
        self._ted.append(rows, batch.transitions)


def layout_writer(
    layout: LayoutName, schema: Schema, sink: Appends, words: Vocabularies
) -> LayoutWriter:
    """Return the writer of a layout."""
    return (TedWriter if layout == TED else CompactWriter)(schema, sink, words)


def _constant(_: slice) -> NDArray[np.bool_]:
    return np.zeros(1, bool)


def _gathered(column: Rows, index: NDArray[np.int64]) -> Rows:
    def rows(part: slice) -> NDArray[Any]:
        wanted = index[part]
        first = int(wanted[0])
        run = column(slice(first, int(wanted[-1]) + 1))
        return np.asarray(run[wanted - first])

    return rows


def _rows_of(
    table: str,
    values: Mapping[Key, NDArray[np.generic]],
    columns: Mapping[Key, Column],
    words: Vocabularies,
) -> dict[Key, Rows]:
    return {
        key: encoded(table, columns[key], column, words).__getitem__
        for key, column in values.items()
    }


def encoded(
    table: str, column: Column, values: NDArray[np.generic], words: Vocabularies
) -> NDArray[Any]:
    """Return what is stored for `values`: codes for text, exactly cast numbers for the rest.

    Text that is numbers already, is codes already.
    """
    if column.text and values.dtype == object:
        return words.encode(table, column.key, values.astype(object, copy=False))
    return stored(values, column)
