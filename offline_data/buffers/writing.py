"""The face of a buffer that grows: rows are added, written over, ranked by priority, dropped."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDictBase

from offline_data.buffers.arguments import as_storage
from offline_data.buffers.indexing import Index, rows_of
from offline_data.buffers.reading import Reading
from offline_data.buffers.storages import GrowingStorage
from offline_data.buffers.writers import ImmutableDatasetWriter, Writer, immutable
from offline_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from offline_data.buffers.prefetch import Draw
    from offline_data.buffers.storage import Storage


class Writing(Reading):
    """Methods that change a buffer; `ReplayBuffer` describes the parts.

    Every change waits for batches under way, and then makes again those that it concerns: a batch
    that is handed out has its rows as they are then, whenever they were drawn. Slices that have
    rows that were written are drawn anew, as these rows may be of other trajectories.
    """

    _writer: Writer

    @property
    def writer(self) -> Writer:
        """The writer, which decides where new rows go."""
        return self._writer

    @property
    def write_count(self) -> int:
        """How many rows were written, those that were written over included."""
        return self._writer.write_count

    def add(self, data: Any) -> Any:
        """Write one row.

        Args:
            data: A row as the storage takes it: a TensorDict `[]`, a tensor, …; copied. The
                transforms' `inv` see it first, from the last to the first.

        Returns:
            Its row; None where the writer does not keep it; an empty tensor where a transform
            returned None.

        Raises:
            UsageError: Data that do not fit the rows that are there.
            ImmutableError: The buffer is a dataset.
        """
        data = self._inward(data, "add")
        if data is None:
            return torch.zeros(0, dtype=torch.int64)
        with self._changing() as changed:
            row = self._writer.add(data)
            if row is not None:
                changed.append(torch.tensor([row]))
                self._sampler.add(row)
        return row

    def extend(self, data: Any) -> Tensor:
        """Write rows, in their order.

        Args:
            data: `[B]` rows: a TensorDict, a tensor, or a list of rows; copied. The transforms'
                `inv` see it first, from the last to the first.

        Returns:
            Row numbers, int64 `[B]`; -1 for rows that the writer does not keep. Empty if a
            transform returned None.

        Raises:
            UsageError: Data that do not fit the rows that are there.
            ImmutableError: The buffer is a dataset.
        """
        data = self._inward(data, "extend")
        if data is None:
            return torch.zeros(0, dtype=torch.int64)
        with self._changing() as changed:
            rows = self._writer.extend(data)
            kept = rows[rows >= 0]
            if len(kept):
                kept = kept[-self._growing.max_size :]  # more come round to rows of the same call
                changed.append(kept)
                self._sampler.extend(kept)
        return rows

    def __setitem__(self, index: Index, value: Any) -> None:
        """Change rows that are there; transforms' `inv` see the values first.

        Raises:
            IndexError: A row that is not there.
            UsageError: Values that do not fit.
            ImmutableError: The buffer is a dataset.
        """
        value = self._inward(value, "assigning rows")
        if value is not None:
            with self._changing() as changed:
                self._growing[index] = value
                changed.append(rows_of(index, len(self)).reshape(-1))

    def empty(self, empty_write_count: bool = True) -> None:
        """Drop all rows, and batches that were drawn ahead; begin again at row 0.

        Args:
            empty_write_count: Whether `write_count` begins again too.

        Raises:
            ImmutableError: The buffer is a dataset.
        """
        with self._lock:
            self._writer.empty(empty_write_count)
            self._drop_drawn()
            self._growing.empty()
            self._sampler.empty()

    def update_priority(self, index: Tensor | int, priority: Tensor | float) -> None:
        """Tell the sampler new priorities; batches drawn later follow them.

        Args:
            index: Rows, of any shape; -1, for rows that were not kept, is passed over.
            priority: One for all, or one for each; or several for each, in dimensions after those
                of `index`, of which the sampler makes one.

        Raises:
            UsageError: Priorities that cannot be, or not as many as rows.
        """
        rows, values = torch.as_tensor(index, device="cpu"), torch.as_tensor(priority).detach()
        kept = rows >= 0
        if not bool(kept.all()):
            rows, values = rows[kept], values[kept.to(values.device)] if values.ndim else values
        with self._lock:
            self._sampler.update_priority(rows, values)

    def set_storage(self, storage: Storage, collate_fn: Any = None) -> Storage:
        """Take rows from another storage from now on; returns the one before.

        Args:
            storage: One that grows, or never does, as the one before.
            collate_fn: Must be None: it stays as it is.

        Raises:
            UsageError: A storage of the other kind, or a `collate_fn`.
        """
        after = as_storage(storage)
        if collate_fn is not None or isinstance(after, GrowingStorage) != self._grows:
            raise UsageError(
                "A buffer keeps its collate_fn, and grows or does not for good",
                hint="make another buffer: ReplayBuffer(storage=…, collate_fn=…)",
            )
        before, self._storage = self._storage, after
        self._drop_drawn()
        if isinstance(after, GrowingStorage):
            self._writer.register_storage(after)
        return before

    def set_writer(self, writer: Writer) -> Writer:
        """Write with another writer from now on; returns the one before.

        Raises:
            ImmutableError: The buffer is a dataset.
        """
        if not isinstance(writer, ImmutableDatasetWriter):
            writer.register_storage(self._growing)
        before, self._writer = self._writer, writer
        return before

    @property
    def _growing(self) -> GrowingStorage:
        if not isinstance(self._storage, GrowingStorage):
            raise immutable("writing")
        return self._storage

    def _inward(self, data: Any, what: str) -> Any:
        if isinstance(self._writer, ImmutableDatasetWriter):
            raise immutable(what)
        steps = self._chain.inward
        if steps and isinstance(data, TensorDictBase):
            data = data.copy()  # transforms set leaves in it
        for step in steps:
            data = None if data is None else step(data)
        return data

    @contextmanager
    def _changing(self) -> Iterator[list[Tensor]]:
        """Keep batches under way apart from a change of the rows that the block puts in the list."""
        changed: list[Tensor] = []
        with self._lock:
            self._ahead.settle()
            try:
                yield changed
            finally:
                if changed and len(self._ahead):
                    rows = torch.cat(changed)
                    self._ahead.remake(
                        lambda draw: bool(self._derived) or _has(draw, rows),
                        self._make,
                        lambda draw: self._again(draw, rows),
                    )

    def _again(self, draw: Draw, rows: Tensor) -> Draw | None:
        """Return a draw as it is after `rows` were written: another one where these cut it apart."""
        if not (self._sampler.keeps_together and _has(draw, rows)):
            return draw
        try:
            instead = self._next_draw()
        except UsageError:  # it is raised again when a batch is asked for
            return None
        return instead._replace(last=draw.last or instead.last)


def _has(draw: Draw, rows: Tensor) -> bool:
    return bool(torch.isin(draw.rows, rows).any())
