"""`DatasetView`: some episodes or rows of a dataset as a buffer of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from offline_data.buffers.buffer import TensorDictReplayBuffer
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.views.choosing import whole_of
from offline_data.buffers.views.episodes import ViewEpisodes
from offline_data.buffers.views.saving import save_view
from offline_data.buffers.views.storage import SubsetStorage
from offline_data.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from offline_data.buffers.samplers import Sampler
    from offline_data.buffers.views.pieces import RowMap
    from offline_data.store.manifest import Manifest


class DatasetView(BaseDatasetExperienceReplay):
    """Some rows of a dataset, in an order of their own; made by `filter`, `split`, `subset`, ….

    A buffer like the dataset's: `view[0]` is the view's first row, samplers draw rows of the view,
    and slices, n-step returns and whatever else looks at neighbours see its episodes only. What a
    view has of an episode may be pieces of it: they count as runs of their own, and nothing reaches
    from one piece to the next.

    All numbers are the view's own: `view[batch["index"]]` are the rows of a batch, and
    `view.episodes["return"][batch["episode"]]` the returns of their episodes; `episodes` has the
    view's episodes only, see `ViewEpisodes`. The dataset's numbers are in the leaves
    `dataset_index` and `dataset_episode`, so that rows of two views can be compared, whether the
    views were made of the dataset or of other views.

    Nothing is copied: a view of whole episodes takes about 40 bytes for each, another at most 8 for
    each row. A pickled one carries that and the dataset's path.

    Keys, device, transforms and everything else are as in the buffer it was made of, at the time;
    not so the sampler, for a sampler belongs to one buffer.

    Args:
        buffer: The dataset, or a view of it.
        rows: Rows of the whole dataset.
        sampler: None: a `RandomSampler`.
        batch_size: None: that of `buffer`.
    """

    episodes: ViewEpisodes

    def __init__(
        self,
        buffer: BaseDatasetExperienceReplay,
        rows: RowMap,
        *,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        batch_size: int | None = None,
    ) -> None:
        whole, _ = whole_of(buffer.storage)
        self._steps_storage = buffer._steps_storage
        self._words = buffer._words
        self._first = buffer._first
        storage = SubsetStorage(whole, rows)
        self.episodes = ViewEpisodes(storage)
        TensorDictReplayBuffer.__init__(
            self,
            storage,
            sampler=sampler,
            batch_size=buffer.batch_size if batch_size is None else batch_size,
            prefetch=buffer._prefetch,
            derived=buffer._derived,
            priority_key=buffer.priority_key,
        )
        self._chain = buffer._chain

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset, with `counts` of the view's rows.

        Tables, files and digests are the dataset's.
        """
        return replace(super().manifest, counts=self.storage.counts)

    @property
    def storage(self) -> SubsetStorage:
        """Storage that batches come from."""
        assert isinstance(self._storage, SubsetStorage)  # noqa: S101 - it was made here
        return self._storage

    @property
    def rows(self) -> Tensor:
        """The dataset's row of each row of the view, int64 `[len]`; made when asked for."""
        return self._map.at(torch.arange(len(self)))

    @property
    def _map(self) -> RowMap:
        return self.storage.row_map

    def save(self, name: str | os.PathLike[str]) -> Path:
        """Write which rows the view has, and nothing else, to a small file.

        Args:
            name: A name, for `ds.saved_view(name)`; or the path of a file `*.npz`. A file that is
                there is replaced.

        Returns:
            The file; see `offline_data.buffers.views.saving` for where it is and what it holds.

        Raises:
            UsageError: Neither a name nor a path of such a file.
            AccessError, NoSpaceError: It cannot be written.
        """
        return save_view(self, name)

    def delete(self) -> NoReturn:
        """Raise `UsageError`: a view has no files of its own."""
        raise UsageError(
            "A view is rows of a dataset, and deleting it would delete all of them",
            hint=f"open_dataset({str(self.data_path)!r}).delete() deletes the dataset",
        )

    def _origin(self) -> dict[str, Any]:
        return {**super()._origin(), "view": self._map.digest()}

    def __repr__(self) -> str:
        return (
            f"DatasetView({len(self)} rows of {len(self.episodes)} episodes of {self.manifest.id}, "
            f"sampler={self.sampler!r}, batch_size={self.batch_size})"
        )
