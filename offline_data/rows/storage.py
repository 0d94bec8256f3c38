"""The interface of storages; rows of a dataset directory in TED, gathered from memory-mapped files."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from offline_data.base.errors import ManifestError, NotFoundError, UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.episode import Key
from offline_data.episode.fields import next_of
from offline_data.rows.devices import as_device, pinnable
from offline_data.rows.gather.assemble import Node, assemble, tree_of
from offline_data.rows.gather.encoded import EncodedGather
from offline_data.rows.gather.mmap import map_file
from offline_data.rows.gather.native import NativeGather, fits
from offline_data.rows.gather.plan import GatherPlan, all_keys, plan_batch
from offline_data.rows.gather.readahead import Readahead, around
from offline_data.rows.gather.torch import TorchGather
from offline_data.rows.keys import KeyLike, select_keys
from offline_data.rows.samplers.base import EpisodeIndex, Sampleable, ValidRows
from offline_data.store.layout import EPISODE
from offline_data.store.reader import open_reader

if TYPE_CHECKING:
    from tensordict import TensorDict


_opening = threading.Lock()
"""Held while files are opened: threads that prefetch begin together, and share one copy of them."""


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


class Storage(Sampleable, Protocol):
    """Interface of a buffer's storage: its length, the rows a sampler may draw, and batches."""

    def only(self, keys: Iterable[KeyLike]) -> Storage:
        """Return the same rows with only some features, and `index`; raises `UsageError`."""

    def gather(self, rows: Tensor) -> TensorDict:
        """Return the batch of `rows`, int64 `[B]` in `[0, len)`, as a copy.

        `rows` may become the feature `index`, so the caller must not reuse it.
        """


@pickled_by_name
class DatasetStorage:
    """The transitions of a dataset directory, of either layout.

    Files are mapped on first use. Pages on disk are requested all at once per batch (see
    `Readahead`), so the dataset may be larger than memory. A pickled storage contains its path and
    reopens the files; a forked one shares the maps. The files are never written.

    Args:
        path: The dataset directory.
        keys: Features of batches, or parents of features; None: all.
        device: Device of batches; the rows of each table are moved as one block.
        pin_memory: Whether batches are in page-locked memory (on the CPU), or are transferred
            through it (if `device` is an accelerator).
        in_memory: Whether to copy the files to `device` on first use and gather batches there, once
            per process. Encoded images stay encoded, in CPU memory; videos stay files.
        decode: Whether to decode encoded images, in `torch.get_num_threads()` threads; else batches
            have numbers for `ImageBytes`.

    Raises:
        NotFoundError, ManifestError, NewerFormatError, AccessError: The dataset cannot be opened.
        UsageError: An unknown key, an unavailable device, or both `pin_memory` and `in_memory`.
    """

    def __init__(
        self,
        path: Path,
        *,
        keys: Iterable[KeyLike] | None = None,
        device: torch.device | str | int | None = None,
        pin_memory: bool = False,
        in_memory: bool = False,
        decode: bool = True,
    ) -> None:
        if pin_memory and in_memory:
            raise UsageError(
                "pin_memory=True is for transfers to an accelerator, and with in_memory=True "
                "batches are already there",
                hint="leave one of them out",
            )
        self.reader = open_reader(path)
        known = all_keys(self.reader)
        self.keys = known if keys is None else select_keys(known, keys)
        if not self.keys:
            raise UsageError(
                "keys is empty; expected features", hint="leave it out for all features"
            )
        self.device = as_device(device)
        self._pin = pinnable(pin_memory)
        self._in_memory = in_memory
        self._decode = decode
        self._leaves_of: Callable[[Tensor], list[Tensor]] | None = None
        self._readahead: Readahead | None = None
        self._closed = False
        self._bootstraps = True
        self._rows: dict[bool, ValidRows] = {}

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_leaves_of": None, "_readahead": None}
        return {name: value for name, value in state.items() if name not in {"_plan", "_tree"}}

    @cached_property
    def _plan(self) -> GatherPlan:
        return plan_batch(self.reader, self.keys)

    @cached_property
    def _tree(self) -> Node:
        return tree_of(self._plan.slots)

    def __len__(self) -> int:
        return self.reader.transitions

    def rows(self, *, valid_only: bool) -> ValidRows:
        if self._closed:
            raise self._deleted_error()
        found = self._rows.get(valid_only)
        if found is None:
            lost = valid_only and self._bootstraps
            left_out = self.reader.invalid_rows if lost else np.zeros(0, np.int64)
            found = self._rows[valid_only] = ValidRows(len(self), left_out)
        return found

    def only(self, keys: Iterable[KeyLike]) -> DatasetStorage:
        other = copy(self)
        other.keys = select_keys(all_keys(self.reader), keys)
        other._leaves_of = other._readahead = None
        return other

    def without_next(self) -> DatasetStorage:
        """Return the same rows without next observations, so that all of them are valid."""
        following = set(map(next_of, self.reader.observation_leaves))
        other = self.only([key for key in self.keys if key not in following] or [EPISODE])
        other._bootstraps, other._rows = False, {}
        return other

    def to(self, device: torch.device | str | int) -> DatasetStorage:
        """Return the same transitions with batches on a device; raises `UsageError`."""
        other = copy(self)
        other.device = as_device(device)
        other._leaves_of = other._readahead = None
        return other

    def runs(self) -> EpisodeIndex:
        return self._runs

    @cached_property
    def _runs(self) -> EpisodeIndex:
        reader = self.reader
        final = np.array(reader.episodes[("final_observation",)], dtype=bool)
        starts, lengths = torch.from_numpy(reader.starts), torch.from_numpy(reader.lengths)
        return EpisodeIndex(starts, lengths, torch.from_numpy(final))

    def gather(self, rows: Tensor) -> TensorDict:
        return assemble(self._tree, self.leaves(rows), rows.shape, self.device)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """Return the features of the batch of `rows` by slot; see `slots`."""
        gather, readahead = self.opened(), self._readahead
        try:
            if readahead is not None and (readahead.asking or next(readahead.probes)):
                return around([readahead], [rows], partial(gather, rows))
            return gather(rows)
        except IndexError as error:
            if bool(((rows < 0) | (rows >= len(self))).any()):
                raise
            raise ManifestError(
                f"The dataset in {self.reader.path} is damaged: its steps refer to episodes that do "
                "not exist",
                hint=f"`offline-data check --files {shlex.quote(str(self.reader.path))}` lists every "
                "damaged file",
            ) from error

    def opened(self) -> Callable[[Tensor], list[Tensor]]:
        """Return what gathers `leaves`; opens the files once, whichever threads ask first."""
        if self._leaves_of is None:
            with _opening:
                self._leaves_of = self._leaves_of or self._open()
        return self._leaves_of

    @property
    def needs_io(self) -> bool:
        """Whether batches are currently read from disk, so that prefetching pays off."""
        return self._readahead is not None and self._readahead.asking

    def prefetch_rows(self, rows: Tensor) -> None:
        """Prefetch rows, int64 `[B]`, that will be gathered soon, if they are read from disk."""
        if self._readahead is not None and self._readahead.asking:
            self._readahead.prefetch_rows(rows)

    @property
    def slots(self) -> Mapping[Key, int]:
        """Position in `leaves` of each feature of a batch."""
        return self._plan.slots

    @property
    def leaf_count(self) -> int:
        """Number of `leaves`, including those that are not in batches."""
        return self._plan.count + len(self._plan.encoded)

    def close(self) -> None:
        """Close the maps permanently, before the files are deleted."""
        self._leaves_of = self._readahead = None
        self._closed = True

    def _open(self) -> Callable[[Tensor], list[Tensor]]:
        if self._closed:
            raise self._deleted_error()
        plan, path = self._plan, self.reader.path
        files = {g.file: map_file(path / g.file, g.rows, g.stride) for g in plan.gathers}
        maps = [files[g.file] for g in plan.gathers]
        if self._in_memory:
            copied = {name: map.words.to(self.device, copy=True) for name, map in files.items()}
            words = [copied[g.file] for g in plan.gathers]
        else:
            words = [map.words for map in maps]
            self._readahead = Readahead(plan, maps, self.reader)
        if self.device.type == "cpu" and not self._pin and fits(plan):
            gather: Callable[[Tensor], list[Tensor]] = NativeGather(plan, words)
        else:
            gather = TorchGather(plan, words, self.device, pin_memory=self._pin)
        if plan.encoded:
            gather = EncodedGather(
                gather,
                plan.encoded,
                self.reader,
                self.device,
                pin_memory=self._pin,
                in_memory=self._in_memory,
                decode=self._decode,
            )
        return gather

    def _deleted_error(self) -> NotFoundError:
        return NotFoundError(
            f"The dataset in {self.reader.path} was deleted",
            hint="load_dataset(ID) downloads it again",
        )
