"""One dataset directory as rows of TED: a batch is a gather or two over memory maps."""

from __future__ import annotations

import shlex
import warnings
from copy import copy
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from offline_data.buffers.gather.assemble import assemble, tree_of
from offline_data.buffers.gather.encoded import EncodedGather
from offline_data.buffers.gather.mmap import map_file
from offline_data.buffers.gather.native import NativeGather, fits
from offline_data.buffers.gather.plan import all_keys, plan_batch
from offline_data.buffers.gather.readahead import Readahead, around
from offline_data.buffers.gather.torch import TorchGather
from offline_data.buffers.keys import KeyLike, select_keys
from offline_data.buffers.samplers.base import EpisodeIndex, ValidRows
from offline_data.errors import ManifestError, NotFoundError, UsageError
from offline_data.store.reader import open_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from tensordict import TensorDict
    from torch import Tensor

    from offline_data.episodes import Key


class DatasetStorage:
    """The transitions of a dataset directory, of either layout.

    Files are mapped on first use; pages that are on a disk are asked for all at once, batch by
    batch (see `Readahead`), so that nothing has to fit in memory. A pickled storage carries its
    path and opens the files again; a forked one shares the maps. Nothing ever writes to the files.

    Args:
        path: The dataset directory.
        keys: Leaves that batches have (a parent stands for all below it); None: all of them.
        device: Device of batches, each table's rows moved as one block.
        pin_memory: Whether batches lie in page-locked memory (where they stay on the CPU), or
            go through it (where `device` is an accelerator).
        in_memory: Whether files that batches need are copied to `device` as a whole, on first use,
            and batches gathered there. Each process has a copy of its own. Encoded images stay
            encoded, in the memory of the CPU.
        decode: Whether encoded images are decoded, in `torch.get_num_threads()` threads; else
            batches have numbers for `ImageBytes`.

    Raises:
        NotFoundError, ManifestError, NewerFormatError, AccessError: It cannot be opened.
        UsageError: A key that is not there; page-locked memory for a set that is on an accelerator
            as a whole.
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
                "pin_memory=True is for batches on their way to an accelerator, and with "
                "in_memory=True they are made there",
                hint="leave one of them out",
            )
        self.reader = open_reader(path)
        known = all_keys(self.reader)
        self.keys = known if keys is None else select_keys(known, keys)
        self.device = torch.device("cpu" if device is None else device)
        self._pin = pinnable(pin_memory)
        self._in_memory = in_memory
        self._decode = decode
        self._plan = plan_batch(self.reader, self.keys)
        self._tree = tree_of(self._plan.slots)
        self._leaves_of: Callable[[Tensor], list[Tensor]] | None = None
        self._readahead: Readahead | None = None
        self._closed = False
        self._rows: dict[bool, ValidRows] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out maps: the other process opens its own."""
        return {**vars(self), "_leaves_of": None, "_readahead": None}

    def __len__(self) -> int:
        """Return `N`, all stored transitions, those without a known next observation included."""
        return self.reader.transitions

    def rows(self, *, valid_only: bool) -> ValidRows:
        """Return the rows that a sampler may draw; see `Sampleable`."""
        if self._closed:
            raise self._deleted()
        found = self._rows.get(valid_only)
        if found is None:
            left_out = self.reader.invalid_rows if valid_only else np.zeros(0, np.int64)
            found = self._rows[valid_only] = ValidRows(len(self), left_out)
        return found

    def only(self, keys: Iterable[KeyLike]) -> DatasetStorage:
        """Return the same transitions with some of the leaves; see `Storage`."""
        other = copy(self)
        other.keys = select_keys(all_keys(self.reader), keys)
        other._plan = plan_batch(self.reader, other.keys)
        other._tree = tree_of(other._plan.slots)
        other._leaves_of = other._readahead = None
        return other

    def runs(self) -> EpisodeIndex:
        """Return the episodes; see `Sampleable`."""
        return self._runs

    @cached_property
    def _runs(self) -> EpisodeIndex:
        reader = self.reader
        final = np.array(reader.episodes[("final_observation",)], dtype=bool)
        return EpisodeIndex(*map(torch.from_numpy, (reader.starts, reader.lengths, final)))

    def gather(self, rows: Tensor) -> TensorDict:
        """Return the batch of `rows`; see `Storage`."""
        return assemble(self._tree, self.leaves(rows), rows.shape, self.device)

    def leaves(self, rows: Tensor) -> list[Tensor]:
        """Return the leaves of the batch of `rows`, each in its slot; see `slots`."""
        gather, readahead = self._leaves_of or self._open(), self._readahead
        try:
            if readahead is not None and (readahead.asking or next(readahead.probes)):
                return around([readahead], [rows], partial(gather, rows))
            return gather(rows)
        except IndexError as error:
            if bool(((rows < 0) | (rows >= len(self))).any()):
                raise
            raise ManifestError(
                f"The dataset in {self.reader.path} is damaged: its steps name episodes that it "
                "does not have",
                hint=f"`offline-data verify {shlex.quote(str(self.reader.path))}` names every damaged file",
            ) from error

    @property
    def needs_io(self) -> bool:
        """Whether batches come from a disk now, so that reading ahead pays."""
        return self._readahead is not None and self._readahead.asking

    def prefetch_rows(self, rows: Tensor) -> None:
        """Read rows, int64 `[B]`, which are gathered soon, ahead, if they come from a disk."""
        if self._readahead is not None and self._readahead.asking:
            self._readahead.prefetch_rows(rows)

    @property
    def slots(self) -> Mapping[Key, int]:
        """Number in `leaves` of each leaf of a batch."""
        return self._plan.slots

    @property
    def leaf_count(self) -> int:
        """Number of `leaves`, those that a batch does not have included."""
        return self._plan.count + len(self._plan.encoded)

    def close(self) -> None:
        """Close the maps for good: the files are about to be deleted."""
        self._leaves_of = self._readahead = None
        self._closed = True

    def _open(self) -> Callable[[Tensor], list[Tensor]]:
        if self._closed:
            raise self._deleted()
        plan, path = self._plan, self.reader.path
        files = {one.file: map_file(path / one.file, one.rows, one.stride) for one in plan.gathers}
        maps = [files[one.file] for one in plan.gathers]
        if self._in_memory:
            copied = {name: map.words.to(self.device, copy=True) for name, map in files.items()}
            words = [copied[one.file] for one in plan.gathers]
        else:
            words = [map.words for map in maps]
            self._readahead = Readahead(plan, maps, self.reader)
        if self.device.type == "cpu" and not self._pin and fits(plan):
            self._leaves_of = NativeGather(plan, words)
        else:
            self._leaves_of = TorchGather(plan, words, self.device, pin_memory=self._pin)
        if plan.encoded:
            self._leaves_of = EncodedGather(
                self._leaves_of,
                plan.encoded,
                self.reader,
                self.device,
                pin_memory=self._pin,
                in_memory=self._in_memory,
                decode=self._decode,
            )
        return self._leaves_of

    def _deleted(self) -> NotFoundError:
        return NotFoundError(
            f"The dataset in {self.reader.path} was deleted",
            hint="load_dataset(ID) downloads it again",
        )


def pinnable(pin_memory: bool) -> bool:
    """Return `pin_memory`; warns, as torch does, and returns False if there is no accelerator."""
    if pin_memory and not getattr(torch, "accelerator", torch.cuda).is_available():
        warnings.warn(
            "pin_memory=True speeds up copies to an accelerator, and this machine has none: memory "
            "is not pinned",
            stacklevel=4,
        )
        return False
    return pin_memory
