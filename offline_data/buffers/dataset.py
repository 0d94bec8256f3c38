"""A dataset directory as an immutable replay buffer, with all that is known of the dataset."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.buffer import TensorDictReplayBuffer, Transform
from offline_data.buffers.episodes import EpisodeTable
from offline_data.buffers.keys import KeyLike, as_key
from offline_data.buffers.storage import DatasetStorage
from offline_data.buffers.text import TextDecoder, decode_codes, vocabularies_of
from offline_data.buffers.trajectories import TrajectoryStorage
from offline_data.buffers.views.methods import MakesViews
from offline_data.errors import MissingDependencyError
from offline_data.preprocess.method import Preprocesses
from offline_data.store.library import entry_at, remove

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable

    from torch import Tensor

    from offline_data.buffers.derived.base import Derived
    from offline_data.buffers.numpy_arrays import Style
    from offline_data.buffers.samplers import Sampler
    from offline_data.buffers.writers import ImmutableDatasetWriter
    from offline_data.store.manifest import Manifest


class BaseDatasetExperienceReplay(MakesViews, Preprocesses, TensorDictReplayBuffer):
    """A dataset directory as an immutable replay buffer of transitions in TED.

    `batch["observation"]` and `batch["next", "observation"]` are before and after
    `batch["action"]`, which gave `batch["next", "reward"]`, `["next", "terminated"]`,
    `["next", "truncated"]` and `["next", "done"]` (their or); root `done`, `terminated` and
    `truncated` are False. `batch["index"]` has the rows and `batch["episode"]` the episodes,
    int64 `[B]`. Text leaves have int32 codes. Flags and rewards are `[B, 1]`.

    Batches are in memory of their own, each leaf contiguous and apart from the others.

    A pickled buffer carries its path, not its data. A `DataLoader` is best given a `ReplayDataset`;
    with torch's own samplers it takes the buffer and lists of rows, of `valid_rows`, for of other
    rows the next observation is not known:

    ```python
    rows = BatchSampler(SubsetRandomSampler(ds.valid_rows), 256, drop_last=False)
    DataLoader(ds, sampler=rows, batch_size=None, collate_fn=torch.nn.Identity(), num_workers=2)
    ```

    Args:
        path: The dataset directory.
        batch_size: Rows of a batch where `sample` is not told.
        sampler: `RandomSampler` (the default), `SamplerWithoutReplacement`, or one of your own.
        writer: None, or an `ImmutableDatasetWriter`.
        collate_fn: Called with every batch, before `transform`.
        pin_memory: Whether batches lie in (or go through) page-locked memory.
        prefetch: Batches made ahead by threads; rows and their order stay the same.
        transform: Called with every batch.
        split_trajs: Rows are whole episodes, padded to the longest: batches are `[B, T]`, with
            `mask`, `traj_ids` and `dataset_index`, the transitions.
        device: Device of batches.
        in_memory: Whether the whole set is copied to `device` once, and batches are made there.
        keys: Leaves that batches have, a parent standing for all below it; None: all.
        derived: Leaves computed for a batch from other rows (`n_step(3, 0.99)`, …), in this order.
        decode_text: Whether text leaves are strings (`NonTensorStack`); slow.

    Raises:
        NotFoundError, ManifestError, NewerFormatError, AccessError: It cannot be opened.
        UsageError: Invalid argument.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch_size: int | None = None,
        *,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
        split_trajs: bool = False,
        device: torch.device | str | int | None = None,
        in_memory: bool = False,
        keys: Iterable[KeyLike] | None = None,
        derived: Iterable[Derived] = (),
        decode_text: bool = False,
    ) -> None:
        steps = DatasetStorage(
            Path(path).expanduser().absolute(),
            keys=keys,
            device=device,
            pin_memory=pin_memory,
            in_memory=in_memory,
        )
        self._steps_storage = steps
        self._words = vocabularies_of(steps.reader, steps.keys)
        self.episodes = EpisodeTable(steps.reader)
        if decode_text and self._words:
            self._first = (TextDecoder(self._words), *self._first)
        super().__init__(
            TrajectoryStorage(steps, self._words) if split_trajs else steps,
            sampler=sampler,
            writer=writer,
            collate_fn=collate_fn,
            batch_size=batch_size,
            prefetch=prefetch,
            transform=transform,
            derived=derived,
        )

    @property
    def valid_rows(self) -> Tensor:
        """The rows that samplers draw by default, ascending, int64 `[n]`, a copy.

        All but transitions whose next observation is unknown and that are not terminated. With
        `split_trajs=True` rows are whole episodes, and all are there.
        """
        if not len(self):
            return torch.zeros(0, dtype=torch.int64)
        rows = self.storage.rows(valid_only=True)
        return rows.at(torch.arange(rows.count))

    @property
    def manifest(self) -> Manifest:
        """The manifest: schema, counts, spaces, provenance, licence and so on."""
        return self._steps_storage.reader.manifest

    @property
    def data_path(self) -> Path:
        """The dataset directory."""
        return self._steps_storage.reader.path

    @property
    def data_path_root(self) -> Path:
        """The dataset directory (TorchRL's name for it)."""
        return self.data_path

    @property
    def metadata(self) -> dict[str, Any]:
        """Spaces, environment and everything else the source says, as JSON values."""
        manifest = self.manifest
        spaces = {f"{name}_space": space for name, space in manifest.spaces.items()}
        return {**manifest.about, **spaces, "environment": manifest.environment}

    def decode(self, key: KeyLike, codes: Any) -> Any:
        """Turn codes of a text leaf into strings.

        Args:
            key: The leaf, under `next` or not.
            codes: An int, or a tensor, array or sequence of ints of any shape.

        Returns:
            One `str` (None where the source has nothing), or lists nested as `codes` is.

        Raises:
            UsageError: The leaf is not text, or a number is no code of it.
        """
        return decode_codes(as_key(key), self._words, codes)

    def to_numpy(
        self,
        style: Style = "transitions",
        *,
        observation_key: KeyLike | None = None,
        copy: bool = True,
    ) -> dict[str, Any]:
        """Return the dataset as the arrays that CORL and D4RL scripts expect.

        Args:
            style: `"transitions"`: rows that may be bootstrapped from, without `timeouts`;
                `"episodes"`: all rows, to be cut where `terminals | timeouts`; `"qlearning"`: what
                D4RL's `qlearning_dataset` gives. The table in
                `offline_data.buffers.numpy_arrays.to_numpy` says more, of the next two too.
            observation_key: Leaf that is the observation; needed where there are several.
            copy: Whether arrays are copies.
        """
        from offline_data.buffers.numpy_arrays import to_numpy

        return to_numpy(self, style, observation_key=observation_key, copy=copy)

    def to_torchrl(self, *, valid_only: bool = True, **options: Any) -> Any:
        """Return TorchRL's own `TensorDictReplayBuffer` over the same files.

        Args:
            valid_only: Whether to leave out transitions whose next observation is unknown and that
                are not terminated: TorchRL's samplers draw any row there is.
            **options: See `offline_data.buffers.torchrl.to_torchrl`.

        Raises:
            MissingDependencyError: torchrl is not installed, or cannot be imported.
            UsageError: Invalid argument.
        """
        try:
            from offline_data.buffers.torchrl import to_torchrl
        except ImportError as error:
            raise MissingDependencyError(
                f"to_torchrl needs torchrl, which cannot be imported: {error}",
                hint="pip install 'offline-data[torchrl]'",
            ) from error
        return to_torchrl(self, valid_only=valid_only, **options)

    def _origin(self) -> dict[str, Any]:
        return {**super()._origin(), "dataset": self.manifest.id}

    def delete(self) -> None:
        """Delete the dataset directory, and nothing else; batches already drawn stay.

        Anything later that needs its files raises `NotFoundError`.

        Raises:
            NotFoundError: It is gone already.
            AccessError: A file may not be deleted.
        """
        remove(entry_at(self.data_path))
        self._steps_storage.close()
