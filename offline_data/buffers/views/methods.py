"""The methods of a dataset that make views of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from offline_data.buffers.samplers import Sampler
from offline_data.buffers.views import choosing
from offline_data.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from offline_data.buffers.dataset import BaseDatasetExperienceReplay
    from offline_data.buffers.indexing import Index
    from offline_data.buffers.views.choosing import Where
    from offline_data.buffers.views.pieces import RowMap
    from offline_data.buffers.views.view import DatasetView


class MakesViews:
    """Methods of datasets and views that make views: part of `BaseDatasetExperienceReplay`.

    Each method returns a buffer of its own over the same files; see `DatasetView`. A view of a view
    is a view of the dataset.
    """

    def filter(
        self,
        where: Where,
        *,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        batch_size: int | None = None,
    ) -> DatasetView:
        """Return a view of the episodes that a function chooses; nothing is copied.

        ```python
        good = ds.filter(lambda episodes: episodes["return"] > 100)
        ```

        Args:
            where: Called once with `episodes`; returns a bool mask `[E]`, or numbers of rows of
                that table (the view has the episodes in that order).
            sampler: Of the view, or what makes it; None: a `RandomSampler`.
            batch_size: Of the view; None: this buffer's.

        Raises:
            UsageError, IndexError: `where` returned neither.
        """
        return _view(self, choosing.rows_where(_dataset(self), where), sampler, batch_size)

    def episodes_at(
        self,
        numbers: Index,
        *,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        batch_size: int | None = None,
    ) -> DatasetView:
        """Return a view of the episodes at these rows of `episodes`, in that order; see `filter`."""
        return _view(self, choosing.rows_of_episodes(_dataset(self), numbers), sampler, batch_size)

    def split(
        self,
        *,
        seed: int = 0,
        sampler: Callable[[], Sampler] | None = None,
        batch_size: int | None = None,
        **shares: float,
    ) -> dict[str, DatasetView]:
        """Deal the episodes out at random to views that have none in common.

        ```python
        parts = ds.split(train=0.9, val=0.1, seed=0)
        ```

        Which episodes a view has follows from the seed, their number and the shares, and is the
        same on every machine; they stand in the order of this buffer.

        Args:
            seed: Not negative.
            sampler: Function that makes the sampler of each view; None: a `RandomSampler` each.
            batch_size: Of the views; None: this buffer's.
            **shares: Part of the episodes by the name of the view; they sum to 1 or less.

        Raises:
            UsageError: Shares that cannot be, or that get no episode; one sampler for all views.
        """
        if isinstance(sampler, Sampler):
            raise UsageError(
                f"{sampler!r} was given for all views of a split, and a sampler belongs to one buffer",
                hint="give what makes one: sampler=lambda: RandomSampler(seed=0)",
            )
        parts = choosing.split_episodes(len(_dataset(self).episodes), shares, seed)
        return {
            name: _view(
                self, choosing.rows_of_episodes(_dataset(self), numbers), sampler, batch_size
            )
            for name, numbers in parts.items()
        }

    def subset(
        self,
        index: Index,
        *,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        batch_size: int | None = None,
    ) -> DatasetView:
        """Return a view of some rows, in that order, repeated ones as often as they are named.

        Args:
            index: Rows of this buffer, see `buffer[index]`.
            sampler: Of the view, or what makes it; None: a `RandomSampler`.
            batch_size: Of the view; None: this buffer's.

        Raises:
            IndexError: A row that is not there.
            UsageError: Something that is no index.
        """
        return _view(self, choosing.rows_at(_dataset(self), index), sampler, batch_size)

    def saved_view(
        self,
        name: str | os.PathLike[str],
        *,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        batch_size: int | None = None,
    ) -> DatasetView:
        """Return a view that was saved by `view.save(name)`.

        Args:
            name: Its name, or the path of its file.
            sampler: Of the view, or what makes it; None: a `RandomSampler`.
            batch_size: Of the view; None: this buffer's.

        Raises:
            NotFoundError: There is none; the hint names those that are there.
            IntegrityError: It is damaged, or was made of another dataset.
        """
        from offline_data.buffers.views.saving import saved_rows

        return _view(self, saved_rows(_dataset(self), name), sampler, batch_size)


def _dataset(maker: MakesViews) -> BaseDatasetExperienceReplay:
    from offline_data.buffers.dataset import BaseDatasetExperienceReplay

    if not isinstance(maker, BaseDatasetExperienceReplay):
        raise TypeError(f"{type(maker).__name__} is not a dataset")
    return maker


def _view(
    maker: MakesViews,
    rows: RowMap,
    sampler: Sampler | Callable[[], Sampler] | None,
    batch_size: int | None,
) -> DatasetView:
    from offline_data.buffers.views.view import DatasetView  # it is made of a dataset's buffer

    return DatasetView(_dataset(maker), rows, sampler=sampler, batch_size=batch_size)
