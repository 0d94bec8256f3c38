"""A dataset directory, or a view of one, as an immutable replay buffer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from tensordict import NonTensorData, NonTensorStack
from torch import Tensor

from offline_data.base.errors import UsageError
from offline_data.base.ids import did_you_mean
from offline_data.base.pickles import pickled_by_name
from offline_data.base.plurals import plural
from offline_data.buffers.arguments import as_derived
from offline_data.buffers.bridges.epochs import EpochBatches
from offline_data.buffers.bridges.loader import DatasetLoader
from offline_data.buffers.bridges.parts import bridge
from offline_data.buffers.buffer import INDEX, Buffer
from offline_data.buffers.commands import DatasetCommands
from offline_data.buffers.views.episode import Episode, read_episode, read_episodes
from offline_data.buffers.views.episodes import EpisodeTable, ViewEpisodes
from offline_data.buffers.writers import Writer
from offline_data.document.blocks import Field, Fields, Kind
from offline_data.document.html import render
from offline_data.episode.fields import Key, join_key
from offline_data.episode.split import in_pairs, split_episodes
from offline_data.pipeline.preprocess.api import Preprocesses
from offline_data.rows.derived.base import Derived
from offline_data.rows.derived.delta import deltas_of
from offline_data.rows.derived.neighbour import Neighbour
from offline_data.rows.gather.encoded import ImageBytes, encoded_leaves
from offline_data.rows.indexing import Index
from offline_data.rows.keys import KeyLike, as_index, as_key, no_feature
from offline_data.rows.samplers import Sampler
from offline_data.rows.saved import save_view, saved_rows
from offline_data.rows.selection import (
    RowMap,
    SubsetStorage,
    rows_at,
    rows_of_episodes,
    whole_of,
)
from offline_data.rows.storage import DatasetStorage
from offline_data.rows.trajectories import TrajectoryStorage
from offline_data.rows.transforms import Transform
from offline_data.store.arrays import Style
from offline_data.store.layout import EPISODE
from offline_data.store.library import entry_at, remove
from offline_data.store.manifest import HistoryStep, Manifest
from offline_data.store.marks import MarkName, write_marks
from offline_data.store.reader import decode

if TYPE_CHECKING:
    from typing_extensions import Self

    from offline_data import TensorDictReplayBuffer as PrioritiesOfLeaves
    from offline_data.formats.writing.episodes import ExportedEpisodes

    SamplerLike = Sampler | Callable[[], Sampler]
else:  # type checkers accept a dataset as what `isinstance` says that it is
    from offline_data.buffers.priorities import PrioritiesOfLeaves


class Dataset(DatasetCommands, Preprocesses, PrioritiesOfLeaves):
    """A dataset directory as an immutable replay buffer of transitions in TED.

    `batch["observation"]` and `batch["next", "observation"]` are before and after
    `batch["action"]`, with the results `batch["next", "reward"]`, `["next", "terminated"]`,
    `["next", "truncated"]` and `["next", "done"]` (terminated or truncated); root `done`,
    `terminated` and `truncated` are False. `batch["index"]` are the rows and `batch["episode"]` the
    episodes, int64 `[B]`. Text features are int32 codes. Flags and rewards are `[B, 1]`. Every
    feature of a batch is a contiguous copy.

    `filter`, `episodes_at`, `split`, `subset` and `saved_view` return a `DatasetView`: another
    buffer over the same files, without a copy.

    A pickled buffer contains its path, not its data. `dataloader` returns a torch `DataLoader`;
    `DataLoader(ds, batch_size=256, shuffle=True)` also works, but covers all rows and warns when it
    reads one that is not in `valid_rows`. `ReplayDataset` uses the buffer's sampler.

    Args:
        path: The dataset directory.
        batch_size: Default number of rows in a batch; see `load_dataset` for the other arguments.

    Raises:
        NotFoundError, ManifestError, NewerFormatError, AccessError: The dataset cannot be opened.
        UsageError: Invalid argument.
    """

    episodes: EpisodeTable
    batch_sampler = None
    """None: Lightning looks for it on any object with a `sampler`."""

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
        delta_timestamps: Mapping[Any, Iterable[float]] | None = None,
        decode_text: bool = False,
        decode: bool = True,
    ) -> None:
        _check_flags(
            in_memory=in_memory,
            pin_memory=pin_memory,
            split_trajs=split_trajs,
            decode_text=decode_text,
            decode=decode,
        )
        steps = DatasetStorage(
            Path(path).expanduser().absolute(),
            keys=keys,
            device=device,
            pin_memory=pin_memory,
            in_memory=in_memory,
            decode=decode,
        )
        if delta_timestamps is not None:
            windows = deltas_of(steps.reader, delta_timestamps)
            if not decode and not encoded_leaves(steps.reader).keys().isdisjoint(windows.keys):
                raise UsageError("delta_timestamps of images need decode=True")
            # LeRobot's rows have no next observations; windows of images are decoded on their own.
            steps = steps.without_next()
            behind = encoded_leaves(steps.reader).keys() & set(windows.keys)
            steps = steps.only([key for key in steps.keys if key not in behind] or [EPISODE])
            derived = (windows, *as_derived(derived))
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

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or hasattr(type(self), name):  # a property that failed
                return object.__getattribute__(self, name)
            known = {public: f"ds.{public}" for public in dir(self) if public[0] != "_"}
            known |= {join_key(key): f"ds{as_index(key)}" for key in self._steps_storage.keys}
            near = did_you_mean(name, known, shown=known.__getitem__)
            problem = f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(f"{problem}; {near}" if near else problem)

    def to(self, device: torch.device | str | int) -> Self:
        """Move all following batches to a device, in place, as `torch.nn.Module.to`; returns self.

        The buffer's views and loaders stay where they are. With `in_memory=True` rows are copied to
        the device when the next batch is read. Raises `UsageError` without such a device.
        """
        storage: Any = self.storage
        moved = storage.to(device)
        self._storage, self._steps_storage = moved, getattr(moved, "steps", moved)
        self._ahead.restore(self._ahead.drawn(), self._make)  # prefetched batches move, too
        return self

    def _leaf(self, key: tuple[str, ...]) -> Any:
        # Reads that feature only, unless something is computed from the others.
        storage = self.storage
        size = len(key)
        derived = [
            fn
            for fn in self._derived
            if not isinstance(fn, Neighbour) or fn.target[:size] == key or key[:1] == fn.target
        ]
        plain = not (self._first or self._chain.outward or derived)
        if plain and isinstance(storage, DatasetStorage):
            found = [known for known in storage.keys if known[: len(key)] == key]
            if found:
                return storage.only(found).gather(torch.arange(len(storage)))[key]
            if key != (INDEX,):
                raise no_feature(key, storage.keys)
        return super()._leaf(key)

    @property
    def valid_rows(self) -> Tensor:
        """The rows that samplers draw by default, ascending, int64 `[n]`, a copy.

        Excludes steps that have no known next observation and are not terminated. With
        `split_trajs=True` rows are whole episodes, and none is excluded.
        """
        if not len(self):
            return torch.zeros(0, dtype=torch.int64)
        rows = self.storage.rows(valid_only=True)
        return rows.at(torch.arange(rows.count))

    @property
    def manifest(self) -> Manifest:
        """Schema, counts, spaces, provenance, licence, …."""
        return self._steps_storage.reader.manifest

    @property
    def data_path(self) -> Path:
        """The dataset directory."""
        return self._steps_storage.reader.path

    @property
    def data_path_root(self) -> Path:
        """The dataset directory; TorchRL's name for `data_path`."""
        return self.data_path

    @property
    def metadata(self) -> dict[str, Any]:
        """Spaces, environment and the source's other metadata, as JSON values."""
        manifest = self.manifest
        spaces = {f"{name}_space": space for name, space in manifest.spaces.items()}
        return {**manifest.about, **spaces, "environment": manifest.environment}

    def decode(self, key: KeyLike, codes: Any) -> Any:
        """Return the strings of text codes (an int, or ints of any shape), in lists of that shape.

        None for missing text. Raises `UsageError` for other features, and codes out of range.
        """
        return _decode_text(as_key(key), self._words, codes)

    def episode(self, number: int) -> Episode:
        """Return one episode: its transitions, `T + 1` observations, return, id, ….

        ```python
        last = ds.episode(-1)
        print(last, last.observations.shape, last.to_numpy()["rewards"].sum())
        ```

        In a view, the episode has only the view's rows, in the view's order.

        Args:
            number: Row of `episodes`; negative numbers count from the end.

        Raises:
            IndexError: No such episode.
            UsageError: Not an integer, or rows are already whole episodes (`split_trajs=True`).
        """
        return read_episode(self, number)

    def iter_episodes(self) -> Iterator[Episode]:
        """Yield the episodes in order, one in memory at a time; see `episode`.

        If the data are read from disk, the next episode is prefetched.
        """
        return read_episodes(self)

    def mark(self, number: int, mark: MarkName | None, *, note: str | None = None) -> None:
        """Mark an episode as `"good"`, `"bad"` or `"unsure"`; None: not any more.

        ```python
        ds.mark(3, "bad", note="gripper slips")
        kept = ds.filter('mark != "bad"')
        ```

        Marks and notes are columns of `episodes`, and are kept in a file next to the dataset, as by
        `offline-data browse`.

        Args:
            number: Row of `episodes`, also of a view; negative numbers count from the end.
            mark: The mark.
            note: At most 2,000 characters; None: the note stays as it is.

        Raises:
            IndexError: No such episode.
            UsageError: Another mark, a note that is too long.
            NotFoundError: The dataset was deleted.
            AccessError, NoSpaceError: Disk errors.
        """
        reader, place = self._steps_storage.reader, self.episodes._place(number)
        own = (
            int(self.episodes.numbers[place]) if isinstance(self.episodes, ViewEpisodes) else place
        )
        write_marks(reader.path, reader.manifest, lambda marks: marks.with_mark(own, mark, note))

    def filter(
        self,
        where: str | Callable[[EpisodeTable], Index],
        *,
        sampler: SamplerLike | None = None,
        batch_size: int | None = None,
    ) -> DatasetView:
        """Return a view of the episodes selected by an expression or a function; nothing is copied.

        ```python
        good = ds.filter("return > 100 and not truncated")
        good = ds.filter(lambda episodes: episodes["return"] > 100)
        ```

        Args:
            where: An expression over the columns of `episodes`, as for `offline-data filter`; see
                `EpisodeTable.where`. Or a function, called once with `episodes`: returns a bool mask
                `[E]`, or row numbers of that table (the view has the episodes in that order).
            sampler: Sampler of the view, or a function that returns one; None: a `RandomSampler`.
            batch_size: Batch size of the view; None: this buffer's.

        Raises:
            UsageError, IndexError: Invalid expression, or result of the function.
            StepError: An expression over unknown columns, or that selects no episode.
        """
        if not (isinstance(where, str) or callable(where)):
            raise UsageError(
                f"filter takes an expression or a function; found {where!r}",
                hint='ds.filter("length > 7"); ds.episodes_at([3, 5]) takes numbers',
            )
        chosen: Any = self.episodes.where(where) if isinstance(where, str) else where(self.episodes)
        if chosen is None or (np.shape(chosen) == () and np.asarray(chosen).dtype == bool):
            raise UsageError(
                f"The function of filter returned {chosen}; expected a mask with an item for each of "
                f"the {plural(len(self.episodes), 'episode')}, or their numbers",
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
        """Return a view of the episodes with these numbers, in that order; see `filter`."""
        rows = rows_of_episodes(self.storage, numbers)
        return DatasetView(self, rows, sampler=sampler, batch_size=batch_size)

    def split(
        self,
        *unnamed: float,
        seed: int = 0,
        sampler: Callable[[], Sampler] | None = None,
        batch_size: int | None = None,
        **shares: float,
    ) -> dict[str, DatasetView]:
        """Split the episodes at random into views: `parts = ds.split(train=0.9, val=0.1, seed=0)`.

        The split depends only on the seed, the number of episodes and the shares, not the machine.
        Each view keeps the order of this buffer; the documents of a preference pair stay together.

        Args:
            seed: Non-negative integer.
            sampler: Function that returns a sampler for each view; None: a `RandomSampler` each.
            batch_size: Batch size of the views; None: this buffer's.
            **shares: Fraction of the episodes by view name; they sum to at most 1.

        Raises:
            UsageError: Invalid shares or shares without a name, a share without any episode, or one
                sampler for all views.
        """
        if unnamed:
            given: Any = unnamed[0] if hasattr(unnamed[0], "__len__") else unnamed
            named = ", ".join(f"{k}={v!r}" for k, v in zip(("train", "val", "test"), given))  # noqa: B905
            raise UsageError(
                "The parts of a split have names", hint=f"ds.split({named}, …) returns them by name"
            )
        if isinstance(sampler, Sampler):
            raise UsageError(
                f"{sampler!r} was given for all views of a split, and a sampler belongs to one buffer",
                hint="give a function that returns one: sampler=lambda: RandomSampler(seed=0)",
            )
        table = self.episodes
        parts = split_episodes(len(table), shares, seed, pairs=in_pairs(table))
        return {
            name: self.episodes_at(numbers, sampler=sampler, batch_size=batch_size)
            for name, numbers in parts.items()
        }

    def subset(
        self,
        index: Index,
        *,
        sampler: SamplerLike | None = None,
        batch_size: int | None = None,
    ) -> DatasetView:
        """Return a view of the rows `buffer[index]`, in that order, with repeats; see `filter`."""
        rows = rows_at(self.storage, index)
        return DatasetView(self, rows, sampler=sampler, batch_size=batch_size)

    def saved_view(
        self,
        name: str | os.PathLike[str],
        *,
        sampler: SamplerLike | None = None,
        batch_size: int | None = None,
    ) -> DatasetView:
        """Return a view saved by `view.save(name)`, by name or path; see `filter`.

        The filter keys of robomimic files are views, too: `ds.saved_view("train")` is
        `ds.filter("mask.train")`, unless a view was saved by that name.

        Raises:
            NotFoundError: No such view; the hint names the existing ones.
            IntegrityError: Damaged, or saved from another dataset.
        """
        rows, step = saved_rows(self.storage, self._steps_storage.reader, name)
        view = DatasetView(self, rows, sampler=sampler, batch_size=batch_size)
        view.saved_step = step
        return view

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
        """Return a `torch.utils.data.DataLoader` over `valid_rows`, each once per epoch.

        Batches are those of `sample`, `[B]`, but the buffer's sampler is not used; the last batch of
        an epoch may be smaller. Every iteration is one epoch, whose order depends only on
        `(seed, epoch)`, not on the number of workers or the machine. `len(loader)` is the number of
        batches; `loader.set_epoch(n)` (or `loader.sampler.set_epoch(n)`, as trainers call it) sets
        the next epoch; `state_dict` and `load_state_dict` resume after the last batch returned, with
        the seed of the state, and with another batch size or number of ranks where one of its
        batches begins there. The loader is picklable, and workers may be forked or spawned.

        With `world` ranks, each gets its share of every epoch, with the same number and sizes of
        batches in all ranks, as DDP needs. If the rows are not divisible by `world`, up to
        `world - 1`, the first of an epoch, are repeated at its end; with `drop_last=True` none is,
        and rows that do not fill a batch in every rank are dropped.

        Args:
            batch_size: Rows in a batch of each rank; None: the buffer's `batch_size`.
            num_workers: Number of processes that make batches; 0: this process.
            shuffle: Whether to shuffle; False: ascending rows.
            seed: Non-negative seed of all orders; the same in all ranks.
            drop_last: Whether to drop the last batch of an epoch if it is not full.
            rank: Index of this rank; None: when an epoch begins, that of `torch.distributed` if it
                is initialized, else of the variable `RANK`, which torchrun sets, or 0.
            world: Number of ranks; None: likewise, of `WORLD_SIZE`, or 1.
            **options: Other arguments of `DataLoader`: `pin_memory`, `persistent_workers`, ….
                `collate_fn=` is called with each batch, for example `offline_data.as_dict`, and
                `device=` (not torch's) moves what it returns, in this process.

        Raises:
            UsageError: Invalid argument, no rows, or a sampler of slices, which this would ignore.
        """
        self._check_single_rows()
        batches = EpochBatches(
            self,
            self._storage.rows(valid_only=True),
            self._size(None) if batch_size is None else batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            rank=rank,
            world=world,
        )
        return DatasetLoader(batches, num_workers=num_workers, **options)

    def _check_single_rows(self, whose: str = "") -> None:
        if self._sampler.keeps_together:
            raise UsageError(
                f"{whose}dataloader returns single rows, and {self._sampler!r} draws slices",
                hint="DataLoader(ReplayDataset(ds, batch_size), batch_size=None, "
                "collate_fn=torch.nn.Identity()) uses the sampler",
            )

    def to_numpy(
        self,
        style: Style = "transitions",
        *,
        observation_key: KeyLike | None = None,
        copy: bool = True,
    ) -> dict[str, Any]:
        """Return the dataset or view as the arrays that CORL, d3rlpy, D4RL and OGBench scripts expect.

        | `style` | rows | can be cut at flags |
        |---|---|---|
        | `"transitions"` | those valid for bootstrapping: next observation known, or terminated | no: the last rows of episodes may be missing |
        | `"episodes"` | all | yes: episodes end exactly where `terminals` or `timeouts` is set |
        | `"qlearning"` | all except time-outs and the very last row | no |
        | `"dataset"` | all, flags as published | as the file can |
        | `"ogbench"` | those of `"transitions"` | yes: `terminals` marks the last row of every trajectory |

        | key | shape | dtype | |
        |---|---|---|---|
        | `observations` | `[n, …]` | as stored | |
        | `actions` | `[n, …]` | as stored | |
        | `rewards` | `[n]` | as stored | |
        | `next_observations` | `[n, …]` | as stored | not in `"episodes"`; `"dataset"`: where the file has it |
        | `terminals` | `[n]` | bool | `"dataset"`: dtype of the file; `"ogbench"`: float32 |
        | `timeouts` | `[n]` | bool | `"episodes"`: the last row of an episode that is not terminated; `"dataset"`: where the file has it, as it has it |
        | `infos/…`, others | `[n, …]` | as stored | `"dataset"` only |
        | `masks` | `[n]` | float32 | `"ogbench"`, with rewards: `next/mask`, or else 0 where terminated |
        | `oracle_reps` | `[n, …]` | float32 | `"ogbench"`, where the dataset has it |

        Each style has exactly the keys that its consumers take: `"transitions"` those of CORL's and
        OfflineRL-Kit's replay buffers, `"episodes"` the arguments of d3rlpy's
        `MDPDataset(**arrays)` and what `d4rl.sequence_dataset(env, arrays)` cuts, `"qlearning"`
        what D4RL's and OfflineRL-Kit's `qlearning_dataset` return. `"dataset"` is what
        `env.get_dataset()` of D4RL returns, for code that calls it: every column of the file, by
        its name and in the order of its rows, but none that has no value per row (`metadata/…`, in
        `ds.metadata.about`). A dataset without a record of such columns
        (`ds.metadata.about["columns"]`) has its features by D4RL's names, `timeouts` always, and
        `next_observations` if all of them are known.

        `"ogbench"` equals OGBench's `load_dataset(path)`, for `Dataset.create(**arrays)` and
        `GCDataset` of its agents: float32, but uint8 observations stay so, and whole numbers as actions
        are int32. With the rewards of a task (`…-singletask-…`), or goal representations
        (`…-oraclerep-…`), it is what `make_env_and_datasets` adds; datasets of other sources that have
        rewards have `rewards` and `masks`, too.

        `"qlearning"` arrays are float32. Differences from d4rl's functions:

        - `qlearning_dataset` equals `style="qlearning"`, value for value, if episodes end as the
          file's `terminals` and `timeouts` say (`manifest.notes` lists exceptions). It drops the
          transition of every time-out, so an episode of 1000 steps has 999, and code that counts
          steps (`return_reward_range`) drifts by one row per episode; it drops the last row even if
          terminated; and the next observation is that of the next row, even across episodes.
          `"transitions"` has none of these defects; code that counts or cuts needs `"episodes"`. If
          the file has no `timeouts` (v0 sets), d4rl counts steps, one too many after a terminated
          episode: it drops the row before a time-out and keeps the row that leads into the next
              episode.
        - `sequence_dataset` cuts `env.get_dataset()` at `terminals | timeouts`, which works with
          `"episodes"`; if the file has no `timeouts` it counts to `max_episode_steps` and loses the
          rows after the last end. Here every episode has an end.

        `docs/recipes/arrays.md` has examples. No transforms, `derived` or `device`; text is codes.

        Args:
            style: See above.
            observation_key: Feature to return as the observation; required if there are several.
            copy: Whether to copy. False: arrays are memory-mapped views of the files where the rows
                are contiguous on disk, and writing to them changes this process's memory only.

        Raises:
            UsageError: Several observation features and no `observation_key`, rows that are whole
                episodes (`split_trajs=True`), or `"episodes"` with end flags within an episode.
            NotFoundError: The dataset was deleted.
        """
        from offline_data.buffers.bridges.numpy import to_numpy

        storage: Any = self.storage
        return to_numpy(storage, style, observation_key=observation_key, copy=copy)

    def to_torchrl(self, *, valid_only: bool = True, **options: Any) -> Any:
        """Return TorchRL's own `TensorDictReplayBuffer` over the same files.

        See `buffers.bridges.torchrl.to_torchrl`. Raises `MissingDependencyError` without torchrl.
        """
        return bridge("to_torchrl").to_torchrl(self, valid_only=valid_only, **options)

    def to_minari(self) -> Any:
        """Return a `minari.MinariDataset` of the dataset or view, which reads episodes when asked for them.

        Nothing is copied; it is read-only. Transforms and derived features are ignored, and what
        `offline_data.export(…, to="minari", dry_run=True)` lists, as Minari has no place for it.

        Raises:
            MissingDependencyError: Minari cannot be imported.
            UsageError: The dataset has no rewards, or no actions.
        """
        from offline_data.formats.minari.writer import view_as_minari

        return view_as_minari(self._episodes_to_export())

    def to_d3rlpy(self, *, observation_key: KeyLike | None = None) -> Any:
        """Return a `d3rlpy.dataset.ReplayBuffer` of the episodes of the dataset or view, in memory.

        Transforms and derived features are ignored. `observation_key`: the feature of observations,
        if there are several. d3rlpy has one end for an episode: `terminated`, else a time-out.

        Raises:
            MissingDependencyError: d3rlpy cannot be imported.
            UsageError: Several observations and no `observation_key`; no rewards, or no actions.
        """
        from offline_data.formats.d3rlpy.writer import load_in_d3rlpy

        key = None if observation_key is None else as_key(observation_key)
        return load_in_d3rlpy(self._episodes_to_export(), key)

    def to_hf(self) -> Any:
        """Return a `datasets.Dataset` of the rows, in order, which are read when they are used.

        Columns are the features of a batch by name, `next.reward`, as numpy arrays, transformed and
        derived ones too; text is codes. Raises `MissingDependencyError` without `datasets`.
        """
        from offline_data.buffers.bridges.hugging_face import to_hf

        return to_hf(self)

    def _episodes_to_export(self) -> ExportedEpisodes:
        from offline_data.formats.writing.episodes import ExportedEpisodes, ExportMember
        from offline_data.pipeline.preprocess.api import selection_of

        member = ExportMember.of(self._steps_storage.reader, selection_of(self.storage))
        return ExportedEpisodes((member,))

    def delete(self) -> None:
        """Delete the dataset directory only; batches already drawn stay valid.

        Later reads and another `delete` raise `NotFoundError`. Raises `AccessError` of the disk.
        """
        remove(entry_at(self.data_path))
        self._steps_storage.close()

    def _repr_html_(self) -> str:
        from offline_data.analysis.info import entry_info, schema_table

        found = entry_info(entry_at(self.data_path))
        values = {
            "steps": len(self),
            "episodes": len(self.episodes),
            "layout": found.layout,
            "size": found.bytes,
            "directory": self.data_path,
            "licence": found.licence,
            "sampler": repr(self.sampler),
            "batch size": self.batch_size,
        }
        kinds: dict[str, Kind] = {"steps": "count", "episodes": "count", "size": "bytes"}
        fields = (Field(name, value, kinds.get(name, "text")) for name, value in values.items())
        title = f"{type(self).__name__} {self.manifest.id}"
        return render(Fields(*fields, title=title), schema_table(found))

    def _origin(self) -> dict[str, Any]:
        return {**super()._origin(), "dataset": self.manifest.id}


class DatasetView(Dataset):
    """A buffer of selected rows of a dataset, made by `filter`, `split`, `subset`, ….

    Rows and episodes are numbered within the view: `view[batch["index"]]` are the rows of a batch,
    and `view.episodes["return"][batch["episode"]]` the returns of their episodes. The features
    `dataset_index` and `dataset_episode` have the dataset's numbers. Slices, n-step returns and
    the like use the view's rows only; non-contiguous pieces of an episode are separate runs.

    Nothing is copied: a view of whole episodes takes about 40 bytes per episode, any other at most
    8 bytes per row, and pickles as that plus the dataset's path. Other options are those of the
    parent buffer when the view was made, except the sampler.
    """

    episodes: ViewEpisodes
    saved_step: HistoryStep | None = None
    """The step of the history that saved it, for `saved_view` and `load_dataset(…, view=…)`."""

    def __init__(
        self,
        buffer: Dataset,
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
        Buffer.__init__(
            self,
            storage,
            sampler=sampler,
            batch_size=buffer.batch_size if batch_size is None else batch_size,
            prefetch=buffer._prefetch,
            derived=buffer._derived,
        )
        self.priority_key = buffer.priority_key
        self._chain = buffer._chain

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset, with `counts` of the view's rows."""
        return replace(super().manifest, counts=self.storage.counts)

    @property
    def storage(self) -> SubsetStorage:
        """The storage of the view's rows."""
        assert isinstance(self._storage, SubsetStorage)  # noqa: S101 - it was made here
        return self._storage

    @property
    def rows(self) -> Tensor:
        """The dataset row of each row of the view, int64 `[len]`; computed on each access."""
        return self.storage.row_map.at(torch.arange(len(self)))

    def save(
        self, name: str | os.PathLike[str], *, recipe: Sequence[Mapping[str, Any]] = ()
    ) -> Path:
        """Save the view's rows to a small file and return its path; see `saved_views`.

        Args:
            name: A name, for `ds.saved_view(name)`, or the path of a `.npz` file. An existing file
                is replaced.
            recipe: Parameters of the steps that selected the rows, for `info --history --view NAME`.

        Raises:
            UsageError: Neither a valid name nor a path of a `.npz` file.
            AccessError, NoSpaceError: Disk errors.
        """
        return save_view(self.storage, self._steps_storage.reader, name, recipe)

    def delete(self) -> NoReturn:
        """Raise `UsageError`: a view has no files of its own."""
        raise UsageError(
            "A view is rows of a dataset, and deleting it would delete all of them",
            hint=f"open_dataset({str(self.data_path)!r}).delete() deletes the dataset",
        )

    def _origin(self) -> dict[str, Any]:
        return {**super()._origin(), "view": self.storage.row_map.digest()}

    def _size_in_steps(self) -> tuple[int, int]:
        return self.storage.transitions.count, len(self.episodes)

    def _episode_number(self, episode: int) -> int:
        return int(self.episodes.numbers[super()._episode_number(episode)])

    def _step_rows(self, rows: Tensor) -> Tensor:
        return self.storage.transitions.at(rows)


@pickled_by_name
class TextDecoder:
    """Replaces the codes of every text feature in a batch by strings (`NonTensorStack`)."""

    def __init__(self, words: Mapping[Key, list[str]]) -> None:
        self._words = words

    def __call__(self, batch: Any) -> Any:
        """Decode a batch in place and return it."""
        for key in self._words:
            texts = _decode_text(key, self._words, batch.get(key))
            if isinstance(texts, list) and batch.batch_dims:
                batch.set(key, NonTensorStack.from_list(texts))
            else:
                batch.set(key, NonTensorData(texts, batch_size=batch.batch_size))
        return batch


def _decode_text(key: Key, words: Mapping[Key, list[str]], codes: Any) -> Any:
    if key not in words:
        texts = ", ".join(map(join_key, words)) or "none"
        raise UsageError(f"{join_key(key)!r} is not a text feature; text features: {texts}")
    values = codes.cpu().numpy() if isinstance(codes, torch.Tensor) else np.asarray(codes)
    count = len(words[key])
    if values.size and not -1 <= values.min() <= values.max() < count:
        raise UsageError(f"{join_key(key)!r} has codes from -1 to {count - 1}; found {values}")
    return decode(values, words[key]).tolist()


def _check_flags(**flags: object) -> None:
    """Raise `UsageError` for the first argument that is not a flag."""
    for name, value in flags.items():
        if not isinstance(value, (bool, np.bool_)):
            hint = "device= is where the rows are copied to" if name == "in_memory" else None
            raise UsageError(f"{name} is {value!r}; expected True or False", hint=hint)
