"""Write a dataset directory: staged beside, audited, digested; publishing is `publish.py`'s."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.disk import require_bytes
from offline_data.episodes.fields import TERMINATED, TRUNCATED, Key
from offline_data.errors import FormatError
from offline_data.store.audit import DEFAULT_AUDIT, Audit, AuditMode
from offline_data.store.census import Census
from offline_data.store.columns import Schema, schema_of
from offline_data.store.completing import Contents, complete
from offline_data.store.reader import DatasetReader
from offline_data.store.sink import Sink
from offline_data.store.tables import LayoutWriter, layout_writer
from offline_data.store.text import Vocabularies

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray
    from typing_extensions import Self

    from offline_data.episodes import EpisodeBatch
    from offline_data.store.layout import TableSpec
    from offline_data.store.manifest import Manifest

_MARGIN = 64 << 20


def with_margin(size: int) -> int:
    """Return the bytes to be free before a dataset of `size` bytes of rows is written.

    Beside the rows there are the episode table, vocabularies and the manifest.

    Example:
        >>> with_margin(100_000), with_margin(1 << 40) - (1 << 40)
        (1248576, 67108864)
    """
    return size + min(_MARGIN, (1 << 20) + size)


@dataclass(frozen=True)
class Announced:
    """How much is to come, where the source says so; lets a full disk be met before writing."""

    transitions: int | None = None
    episodes: int | None = None


class DatasetWriter:
    """Writes batches into a staging folder; `finish` makes it a whole dataset directory.

    Args:
        folder: An empty or absent folder; left as it is when something fails.
        header: What the manifest says of the source, and the layout; tables and counts are
            filled in here.
        audit: How many rows are read back and compared.
        announced: Rows to come, for the check of free space.

    Raises:
        FormatError: A batch that does not fit the first one.
        AuditError: A value read back differs.
        NoSpaceError, AccessError: The disk.
    """

    def __init__(
        self,
        folder: Path,
        header: Manifest,
        *,
        audit: AuditMode = DEFAULT_AUDIT,
        announced: Announced | None = None,
    ) -> None:
        self.folder = folder
        self._header = header
        self._announced = announced or Announced()
        self._audit = Audit(audit)
        self._census = Census()
        self._words = Vocabularies()
        self._sink = Sink(folder)
        self._schema: Schema | None = None
        self._layout: LayoutWriter | None = None
        self._episodes: list[dict[Key, NDArray[Any]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sink.__exit__(kind, error, trace)

    def append(self, batch: EpisodeBatch) -> None:
        """Append whole episodes; writing and auditing go on in the background."""
        if not len(batch.lengths):
            return
        layout = self._layout or self._begin(batch)
        first_row, first = self._census.counts["transitions"], self._census.counts["episodes"]
        self._schema_of_all.conform(batch, first)
        layout.append(batch, first)
        self._episodes.append(episode_table(batch, first_row))
        self._census.add(batch)
        self._sink.run(self._check(batch, layout.tables, first_row, first))

    def finish(self) -> Manifest:
        """Write the rest, look at the whole once more as a reader, and write the manifest last."""
        if self._layout is None:
            raise FormatError(f"{self._header.id} has no episodes")
        self._sink.drain()  # the audit runs there
        columns = {
            key: np.concatenate([part[key] for part in self._episodes]) for key in self._episodes[0]
        }
        contents = Contents(
            self._layout.tables,
            columns,
            self._schema_of_all.episodes,
            self._census,
            self._audit.to_json(self._census.counts["transitions"]),
            self._schema_of_all.two_copies,
        )
        return complete(self._sink, self._header, contents, self._words)

    @property
    def _schema_of_all(self) -> Schema:
        if self._schema is None:
            raise RuntimeError("append begins with a schema")
        return self._schema

    def _begin(self, batch: EpisodeBatch) -> LayoutWriter:
        self._schema = schema_of(batch)
        self._layout = layout_writer(self._header.layout, self._schema, self._sink, self._words)
        transitions = self._announced.transitions or batch.transitions
        rows = transitions + (self._announced.episodes or len(batch.lengths))
        needed = sum(
            size for t in self._layout.tables.values() for size in t.with_rows(rows).files.values()
        )
        require_bytes(self.folder, with_margin(needed), self._header.id)
        return self._layout

    def _check(
        self, batch: EpisodeBatch, tables: dict[str, TableSpec], first_row: int, first: int
    ) -> Callable[[], None]:
        """Make the audit of one batch, to be run once its rows are on disk."""
        reader = DatasetReader(self.folder, replace(self._header, tables=tables))
        # Taken here and not in the background: later batches add words meanwhile.
        reader.vocabularies = self._words.by_table()
        return lambda: self._audit.check(batch, reader, first_row, first)


def episode_table(batch: EpisodeBatch, first_row: int) -> dict[Key, NDArray[Any]]:
    """Return `[E, …]` columns of the episode table: what follows from the steps, and the source's.

    Args:
        batch: The episodes.
        first_row: Row of their first transition in the dataset.
    """
    last = batch.last_rows
    return {
        ("start",): batch.starts + first_row,
        ("length",): batch.lengths,
        ("return",): batch.returns,
        ("terminated",): batch.steps[TERMINATED][last, 0].astype(bool),
        ("truncated",): batch.steps[TRUNCATED][last, 0].astype(bool),
        ("final_observation",): batch.final_observation,
        **batch.episodes,
    }
