"""A dataset directory, or a view of one, as an immutable replay buffer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack

from offline_data.buffers.bridges.loader import DatasetLoader, EpochBatches
from offline_data.buffers.described import Described
from offline_data.buffers.gather.encoded import ImageBytes, encoded_leaves
from offline_data.buffers.keys import KeyLike, as_key
from offline_data.buffers.samplers import Sampler
from offline_data.buffers.storage import DatasetStorage
from offline_data.buffers.tensordict_buffer import TensorDictReplayBuffer
from offline_data.buffers.trajectories import TrajectoryStorage
from offline_data.buffers.views.episode import Episode, read_episode, read_episodes
from offline_data.buffers.views.episodes import EpisodeTable, ViewEpisodes
from offline_data.buffers.views.html import fields_html, leaves_html
from offline_data.buffers.views.rows import (
    SubsetStorage,
    rows_at,
    rows_of_episodes,
    split_episodes,
    whole_of,
)
from offline_data.buffers.views.saved import save_view, saved_rows
from offline_data.episodes.fields import Key, join_key
from offline_data.errors import MissingDependencyError, UsageError
from offline_data.files import human_bytes
from offline_data.preprocess.api import Preprocesses
from offline_data.store.library import entry_at, remove
from offline_data.store.reader import decode

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from torch import Tensor

    from offline_data.buffers.buffer import Transform
    from offline_data.buffers.derived.base import Derived
    from offline_data.buffers.indexing import Index
    from offline_data.buffers.views.rows import RowMap
    from offline_data.buffers.writers import Writer
    from offline_data.store.arrays import Style
    from offline_data.store.manifest import Manifest

    SamplerLike = Sampler | Callable[[], Sampler]


class BaseDatasetExperienceReplay(Described, Preprocesses, TensorDictReplayBuffer):
    """A dataset directory as an immutable replay buffer of transitions in TED.

    `batch["observation"]` and `batch["next", "observation"]` are before and after
    `batch["action"]`, which gave `batch["next", "reward"]`, `["next", "terminated"]`,
    `["next", "truncated"]` and `["next", "done"]` (their or); root `done`, `terminated` and
    `truncated` are False. `batch["index"]` has the rows and `batch["episode"]` the episodes,
    int64 `[B]`. Text leaves have int32 codes. Flags and rewards are `[B, 1]`. Batches are in memory
    of their own, each leaf contiguous and apart from the others.

    `filter`, `episodes_at`, `split`, `subset` and `saved_view` return a `DatasetView`: a buffer of
    its own over the same files, without a copy.

    A pickled buffer carries its path, not its data. `dataloader` makes torch's `DataLoader` of it;
    `DataLoader(ds, batch_size=256, shuffle=True)` works too, goes through all rows, and warns where
    one comes up that `valid_rows` leaves out. `ReplayDataset` draws with the buffer's sampler.

    Args:
        path: The dataset directory.
        batch_size: Rows of a batch where `sample` is not told; for all others see `load_dataset`.

    Raises:
        NotFoundError, ManifestError, NewerFormatError, AccessError: It cannot be opened.
        UsageError: Invalid argument.
    """

    episodes: EpisodeTable
    batch_sampler = None
    """None: Lightning asks whatever has a `sampler` for it, too."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch_size: int | None = None,
        *,
        sampler: SamplerLike | None = None,
        writer: Writer | None = None,
        collate_fn: Transform | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
        split_trajs: bool = False,
        device: torch.device | str | int | None = None,
        in_memory: bool = False,
        keys: Iterable[KeyLike] | None = None,
        derived: Derived | Iterable[Derived] = (),
        decode_text: bool = False,
        decode: bool = True,
    ) -> None:
        steps = DatasetStorage(
            Path(path).expanduser().absolute(),
            keys=keys,
            device=device,
            pin_memory=pin_memory,
            in_memory=in_memory,
            decode=decode,
        )
        self._steps_storage = steps
        words = {key: steps.reader.words(key) for key in steps.keys}
        self._words = {key: known for key, known in words.items() if known is not None}
        self.episodes = EpisodeTable(steps.reader)
        if decode_text and self._words:
            self._first = (TextDecoder(self._words), *self._first)
        images = [key for key in encoded_leaves(steps.reader) if key in steps.keys]
        if images and not decode:
            self._first = (ImageBytes(steps.reader, images), *self._first)
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

    def _leaf(self, key: tuple[str, ...]) -> Any:
        """Read no other leaves, unless something is computed from them."""
        storage = self.storage
        plain = not (self._first or self._chain.outward or self._derived)
        if plain and isinstance(storage, DatasetStorage):
            found = [known for known in storage.keys if known[: len(key)] == key]
            if found:
                return storage.only(found).gather(torch.arange(len(storage)))[key]
        return super()._leaf(key)

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
        """Schema, counts, spaces, provenance, licence and so on."""
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
        """Turn codes of a text leaf, an int or ints of any shape, into strings in lists nested so.

        A string is None where the source has nothing. Raises `UsageError` where the leaf is not
        text, or a number is no code of it.
        """
        return _decoded(as_key(key), self._words, codes)

    def episode(self, number: int) -> Episode:
        """Return one episode: its transitions, `T + 1` observations, return, id, ….

        ```python
        last = ds.episode(-1)
        print(last, last.observations.shape, last.to_numpy()["rewards"].sum())
        ```

        In a view it has the view's rows of that episode, in the order of the view: all of it in a
        view of whole episodes, a part in one that cuts it.

        Args:
            number: Row of `episodes`; negative numbers count from the end.

        Raises:
            IndexError, UsageError: There is no such episode; it is no whole number; rows are whole
                episodes already (`split_trajs=True`).
        """
        return read_episode(self, number)

    def iter_episodes(self) -> Iterator[Episode]:
        """Yield every episode of `episodes`, in order, one at a time in memory; see `episode`.

        Where data come from a disk, the next one is read while this one is used.
        """
        return read_episodes(self)

    def filter(
        self,
        where: Callable[[EpisodeTable], Index],
        *,
        sampler: SamplerLike | None = None,
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
        chosen: Any = where(self.episodes)
        if isinstance(chosen, bool):
            raise UsageError(
                f"The function of filter returned {chosen}; expected a mask with an item for each of "
                f"the {len(self.episodes)} episodes, or their numbers",
                hint='it is called once, with columns: lambda episodes: episodes["return"] > 100',
            )
        return self.episodes_at(chosen, sampler=sampler, batch_size=batch_size)

    def episodes_at(
        self,
        numbers: Index,
        *,
        sampler: SamplerLike | None = None,
        batch_size: int | None = None,
    ) -> DatasetView:
        """Return a view of the episodes at these rows of `episodes`, in that order; see `filter`."""
        rows = rows_of_episodes(self.storage, numbers)
        return DatasetView(self, rows, sampler=sampler, batch_size=batch_size)

    def split(
        self,
        *,
        seed: int = 0,
        sampler: Callable[[], Sampler] | None = None,
        batch_size: int | None = None,
        **shares: float,
    ) -> dict[str, DatasetView]:
        """Split the episodes at random into views: `parts = ds.split(train=0.9, val=0.1, seed=0)`.

        Which episodes a view has follows from the seed, their number and the shares, and is the
        same on every machine; they stand in the order of this buffer.

        Args:
            seed: Not negative.
            sampler: Function that makes the sampler of each view; None: a `RandomSampler` each.
            batch_size: Of the views; None: this buffer's.
            **shares: Part of the episodes by the name of the view; they sum to 1 or less.

        Raises:
            UsageError: Invalid shares, or a share without an episode; one sampler for all views.
        """
        if isinstance(sampler, Sampler):
            raise UsageError(
                f"{sampler!r} was given for all views of a split, and a sampler belongs to one buffer",
                hint="give what makes one: sampler=lambda: RandomSampler(seed=0)",
            )
        return {
            name: self.episodes_at(numbers, sampler=sampler, batch_size=batch_size)
            for name, numbers in split_episodes(len(self.episodes), shares, seed).items()
        }

    def subset(
        self,
        index: Index,
        *,
        sampler: SamplerLike | None = None,
        batch_size: int | None = None,
    ) -> DatasetView:
        """Return a view of the rows of `buffer[index]`, in that order, with repeats; see `filter`."""
        rows = rows_at(self.storage, index)
        return DatasetView(self, rows, sampler=sampler, batch_size=batch_size)

    def saved_view(
        self,
        name: str | os.PathLike[str],
        *,
        sampler: SamplerLike | None = None,
        batch_size: int | None = None,
    ) -> DatasetView:
        """Return a view that was saved by `view.save(name)`, by name or path; see `filter`.

        Raises:
            NotFoundError: There is none; the hint names those that are there.
            IntegrityError: It is damaged, or was made of another dataset.
        """
        rows = saved_rows(self.storage, self._steps_storage.reader, name)
        return DatasetView(self, rows, sampler=sampler, batch_size=batch_size)

    def dataloader(
        self,
        batch_size: int | None = None,
        *,
        num_workers: int = 0,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int | None = None,
        world: int | None = None,
        **options: Any,
    ) -> DatasetLoader:
        """Return a `torch.utils.data.DataLoader` over the rows of `valid_rows`, each once an epoch.

        Batches are those of `sample`, `[B]` (the buffer's sampler apart); the last one of an epoch
        has what is left. Every iteration is the next epoch, in another order, which follows from
        `(seed, epoch)` alone: not from workers, nor from the machine. `len(loader)` is the number of
        batches; `loader.set_epoch(n)` (or `loader.sampler.set_epoch(n)`, as trainers do) says which
        epoch comes; `state_dict` and `load_state_dict` go on after the last batch that was handed
        out. It is picklable, and workers may be forked or spawned.

        ```python
        loader = ds.dataloader(256, num_workers=2)
        for epoch in range(10):
            for batch in loader:
                ...
        ```

        Among `world` ranks each has its share of every epoch, with as many batches of the same sizes
        in all ranks, as DDP needs it. Where the rows do not divide by `world`, up to `world - 1` of
        them come twice in an epoch; with `drop_last=True` none does, and what does not fill a batch
        in every rank is left out.

        Args:
            batch_size: Rows of a batch, of each rank; None: the buffer's.
            num_workers: Processes that make batches; 0: this one.
            shuffle: False: ascending rows.
            seed: Of all orders; the same in all ranks. Not negative.
            drop_last: Whether an epoch has full batches only.
            rank: Which rank this is; None: what `torch.distributed` says when an epoch begins, or 0.
            world: Of how many ranks; None: likewise, or 1.
            **options: Other arguments of `DataLoader`: `pin_memory`, `persistent_workers`, ….

        Raises:
            UsageError: Invalid argument; no row; a sampler of slices, which rows one by one are not.
        """
        if self._sampler.keeps_together:
            raise UsageError(
                f"dataloader gives rows one by one, and {self._sampler!r} draws slices",
                hint="DataLoader(ReplayDataset(ds, batch_size), batch_size=None, "
                "collate_fn=torch.nn.Identity()) draws with it",
            )
        batches = EpochBatches(
            self,
            self._size(None) if batch_size is None else batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world=world,
        )
        return DatasetLoader(self, batches, num_workers=num_workers, **options)

    def to_numpy(
        self,
        style: Style = "transitions",
        *,
        observation_key: KeyLike | None = None,
        copy: bool = True,
    ) -> dict[str, Any]:
        """Return the dataset, or the view, as the arrays that CORL, d3rlpy and D4RL scripts expect.

        | `style` | rows | to be cut by flags |
        |---|---|---|
        | `"transitions"` | those that may be bootstrapped from: all whose next observation is known, or that are terminated | no: last rows of episodes may be missing |
        | `"episodes"` | all | yes: episodes end exactly where `terminals` or `timeouts` is set |
        | `"qlearning"` | all but those that time out, and but the last | no |

        | key | shape | dtype | |
        |---|---|---|---|
        | `observations` | `[n, …]` | as stored | |
        | `actions` | `[n, …]` | as stored | |
        | `rewards` | `[n]` | as stored | |
        | `next_observations` | `[n, …]` | as stored | `"episodes"`: the one before again where it is not known |
        | `terminals` | `[n]` | bool | |
        | `timeouts` | `[n]` | bool | `"episodes"` only: the last row of an episode that does not end terminated |

        With `"qlearning"` numbers are float32. What d4rl's own functions do otherwise:

        - `qlearning_dataset` is `style="qlearning"`, number for number where episodes end as the file's
          `terminals` and `timeouts` say (`manifest.notes` tells where they do not). It drops the
          transition of every time-out, so that episodes of 1000 steps have 999 and code that counts
          steps (`return_reward_range`) is one row off with each; the last row of the set is dropped
          even where it is terminated; and the next observation is the one of the next row, also where
          that begins another episode. `"transitions"` has none of the three; counting and cutting want
          `"episodes"`. Where the file has no `timeouts` (v0 sets), d4rl counts steps, one too many after
          a terminated episode: it drops the row before a time-out, and keeps the one that leads into
          the next episode.
        - `sequence_dataset` cuts `env.get_dataset()` at `terminals | timeouts`, as can be done with
          `"episodes"`; without `timeouts` in the file it counts to `max_episode_steps`, and rows after
          the last end are lost. Here every episode has an end.

        d3rlpy's `MDPDataset` takes the arrays of `"episodes"` but `next_observations`; `docs/recipes`
        has both. Transforms, `derived` and `device` do not count; text is codes.

        Args:
            style: See above.
            observation_key: Leaf that is the observation; needed where there are several.
            copy: Whether arrays are copies. False: where rows follow each other in the dataset, arrays
                are views of the files that take no memory, where they can be.

        Raises:
            UsageError: The observation has several leaves, rows are whole episodes
                (`split_trajs=True`), or `"episodes"` with end flags inside of episodes.
            NotFoundError: The dataset was deleted.
        """
        from offline_data.buffers.bridges.numpy import to_numpy

        storage: Any = self.storage
        return to_numpy(storage, style, observation_key=observation_key, copy=copy)

    def to_torchrl(self, *, valid_only: bool = True, **options: Any) -> Any:
        """Return TorchRL's own `TensorDictReplayBuffer` over the same files.

        See `offline_data.buffers.bridges.torchrl.to_torchrl`; raises `MissingDependencyError` where
        torchrl cannot be imported.
        """
        try:
            from offline_data.buffers.bridges.torchrl import to_torchrl
        except ImportError as error:
            raise MissingDependencyError(
                f"to_torchrl needs torchrl, which cannot be imported: {error}",
                hint="pip install 'offline-data[torchrl]'",
            ) from error
        return to_torchrl(self, valid_only=valid_only, **options)

    def delete(self) -> None:
        """Delete the dataset directory, and nothing else; batches already drawn stay.

        Anything later that needs its files raises `NotFoundError`, as does another `delete`. Raises
        `AccessError` if a file may not be deleted.
        """
        remove(entry_at(self.data_path))
        self._steps_storage.close()

    def _repr_html_(self) -> str:
        """Show what it is, and its leaves, in a notebook."""
        from offline_data.reports.info import schema_of

        manifest, kind = self.manifest, type(self).__name__
        fields = {
            "rows": f"{len(self):,}",
            "episodes": f"{len(self.episodes):,}",
            "layout": manifest.layout,
            "size": human_bytes(manifest.bytes),
            "directory": self.data_path,
            "licence": manifest.licence,
            "sampler": repr(self.sampler),
            "batch size": self.batch_size,
        }
        schema = schema_of(self._steps_storage.reader)
        leaves = ((key, leaf["dtype"], leaf["shape"]) for key, leaf in schema.items())
        return fields_html(f"{kind} {manifest.id}", fields) + leaves_html(leaves)

    def _origin(self) -> dict[str, Any]:
        return {**super()._origin(), "dataset": self.manifest.id}


class DatasetView(BaseDatasetExperienceReplay):
    """Some rows of a dataset, in an order of their own; made by `filter`, `split`, `subset`, ….

    A buffer like the dataset's, whose numbers are its own: `view[batch["index"]]` are the rows of a
    batch, and `view.episodes["return"][batch["episode"]]` the returns of their episodes. The
    dataset's numbers are in the leaves `dataset_index` and `dataset_episode`. Slices, n-step returns
    and whatever else looks at neighbours see the view's rows only; separate pieces of an episode
    count as runs of their own.

    Nothing is copied: a view of whole episodes takes about 40 bytes for each, another at most 8 for
    each row. A pickled one carries that and the dataset's path. Everything but the sampler is as in
    the buffer it was made of, at the time.
    """

    episodes: ViewEpisodes

    def __init__(
        self,
        buffer: BaseDatasetExperienceReplay,
        rows: RowMap,
        *,
        sampler: SamplerLike | None = None,
        batch_size: int | None = None,
    ) -> None:
        storage = SubsetStorage(whole_of(buffer.storage)[0], rows)
        self._steps_storage = buffer._steps_storage
        self._words = buffer._words
        self._first = buffer._first
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
        """The manifest of the dataset, with `counts` of the view's rows."""
        return replace(super().manifest, counts=self.storage.counts)

    @property
    def storage(self) -> SubsetStorage:
        """Storage that batches come from."""
        assert isinstance(self._storage, SubsetStorage)  # noqa: S101 - it was made here
        return self._storage

    @property
    def rows(self) -> Tensor:
        """The dataset's row of each row of the view, int64 `[len]`; made when asked for."""
        return self.storage.row_map.at(torch.arange(len(self)))

    def save(self, name: str | os.PathLike[str]) -> Path:
        """Write which rows the view has to a small file, and return it; see `saved_views`.

        Args:
            name: A name, for `ds.saved_view(name)`; or the path of a file `*.npz`. A file that is
                there is replaced.

        Raises:
            UsageError: Neither a name nor a path of such a file.
            AccessError, NoSpaceError: It cannot be written.
        """
        return save_view(self.storage, self._steps_storage.reader, name)

    def delete(self) -> NoReturn:
        """Raise `UsageError`: a view has no files of its own."""
        raise UsageError(
            "A view is rows of a dataset, and deleting it would delete all of them",
            hint=f"open_dataset({str(self.data_path)!r}).delete() deletes the dataset",
        )

    def _origin(self) -> dict[str, Any]:
        return {**super()._origin(), "view": self.storage.row_map.digest()}

    def __repr__(self) -> str:
        return (
            f"DatasetView({len(self)} rows of {len(self.episodes)} episodes of {self.manifest.id}, "
            f"sampler={self.sampler!r}, batch_size={self.batch_size})"
        )


class TextDecoder:
    """Replaces the codes of every text leaf of a batch by strings (`NonTensorStack`)."""

    def __init__(self, words: Mapping[Key, list[str]]) -> None:
        self._words = words

    def __call__(self, batch: Any) -> Any:
        """Decode a batch in place, and return it."""
        for key in self._words:
            texts = _decoded(key, self._words, batch.get(key))
            if isinstance(texts, list) and batch.batch_dims:
                batch.set(key, NonTensorStack.from_list(texts))
            else:
                batch.set(key, NonTensorData(texts, batch_size=batch.batch_size))
        return batch


def _decoded(key: Key, words: Mapping[Key, list[str]], codes: Any) -> Any:
    """Return the strings of codes of one leaf; see `BaseDatasetExperienceReplay.decode`."""
    if key not in words:
        texts = ", ".join(map(join_key, words)) or "none"
        raise UsageError(f"{join_key(key)!r} is not a text leaf; text leaves: {texts}")
    values = codes.cpu().numpy() if isinstance(codes, torch.Tensor) else np.asarray(codes)
    count = len(words[key])
    if values.size and not -1 <= values.min() <= values.max() < count:
        raise UsageError(f"{join_key(key)!r} has codes from -1 to {count - 1}; found {values}")
    return decode(values, words[key]).tolist()
