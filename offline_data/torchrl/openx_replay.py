"""`OpenXExperienceReplay`: TorchRL's class of Open X-Embodiment, a dataset or a stream."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import torch

from offline_data.base.errors import UsageError
from offline_data.base.ids import DatasetId, parse_id
from offline_data.buffers.buffer import Transform
from offline_data.buffers.load import Download
from offline_data.buffers.writers import ImmutableDatasetWriter
from offline_data.rows.samplers import (
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.rows.selection import end_to_end
from offline_data.torchrl.experience_replay import Common, SourceExperienceReplay


class OpenXExperienceReplay(SourceExperienceReplay):
    """An Open X-Embodiment dataset or stream, with TorchRL's signature, without TensorFlow.

    As in TorchRL, it is a stream unless `download` or `streaming` says otherwise; the object is then
    a `StreamingDataset`, not an instance of this class.

    Unlike TorchRL's, it reads the records of the public bucket, not pickles of a copy; text is per
    step; images are `[H, W, C]`, as in the source; if the source lacks the observation after the
    last action, samplers leave that transition out instead of filling in zeros; and without `split`
    it has all splits, not only `train`.

    Args:
        dataset_id: Name, with or without `openx:`, a split (`viola/train[:100]`) or `@VERSION`.
        batch_size: None: iteration yields whole episodes, `num_slices` at a time; or, with
            `slice_len`, a slice of each episode.
        shuffle: Whether to shuffle; False: the dataset's order.
        num_slices, slice_len: Number of slices in a batch, or rows in a slice.
        pad: Streams only: value that pads short episodes.
        replacement: Whether to draw with replacement; None: True if downloaded.
        streaming: Whether to read batches from the host without converting anything.
        strict_length: Whether to leave out episodes shorter than a slice.
        split: Split or slice of one, in TFDS notation: `train`, `train[10%:20%]+test`.
        root, download, sampler, …: See `load_dataset`, also for exceptions.
    """

    source = "openx"

    def __new__(cls, *args: Any, **options: Any) -> Any:
        """Return a stream if the arguments say so."""
        if not args and not options:  # pickle and copy call it so
            return super().__new__(cls)
        bound = inspect.signature(cls.__init__).bind(None, *args, **options)
        bound.apply_defaults()
        given = bound.arguments
        streams = given["streaming"]
        if not (not given["download"] if streams is None else streams):  # TorchRL's default
            return super().__new__(cls)
        if given["download"]:
            raise UsageError("download and streaming are both set: nothing would be downloaded")
        refused = ("sampler", "writer", "collate_fn", "split_trajs")
        for name in (name for name in refused if given[name]):
            raise UsageError(f"{name} is not for streams", hint="streaming=False supports it")
        same = ("batch_size", "num_slices", "slice_len", "pad", "strict_length", "replacement")
        stream = import_module("offline_data.buffers.streaming").StreamingDataset
        return stream(
            str(_openx_id(given["dataset_id"], given["split"])),
            shuffle=given["shuffle"],
            transform=given["transform"],
            root=given["root"],
            **{name: given[name] for name in same},
        )

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        shuffle: bool = True,
        num_slices: int | None = None,
        slice_len: int | None = None,
        pad: float | bool | None = None,
        replacement: bool | None = None,
        streaming: bool | None = None,  # noqa: ARG002 - used by `__new__`
        root: str | os.PathLike[str] | None = None,
        download: Download | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
        split_trajs: bool = False,
        strict_length: bool = True,
        split: str | None = None,
    ) -> None:
        if pad is not None:
            raise UsageError("pad is for streams", hint="SliceSampler(pad_output=True) pads here")
        sliced = num_slices is not None or slice_len is not None
        drawn = replacement is not False and (sliced or replacement or shuffle)
        if sampler is not None and sliced:
            raise UsageError("num_slices and slice_len cannot be combined with sampler")
        if drawn and not shuffle:
            raise UsageError("shuffle=False needs replacement=False")
        if sliced and batch_size is None and num_slices is None:
            batch_size = slice_len
            drawn = False  # a slice of each episode
        if sliced and batch_size is not None:
            once = partial(SliceSamplerWithoutReplacement, shuffle=shuffle)
            make = SliceSampler if drawn else once
            sampler = make(num_slices=num_slices, slice_len=slice_len, strict_length=strict_length)
        elif sampler is None and not drawn:
            sampler = SamplerWithoutReplacement(shuffle=shuffle)
        self._shuffle, self._episodes_at_once = shuffle, num_slices or 1
        dataset = str(_openx_id(dataset_id, split))
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform, split_trajs)
        download = True if download is None else download
        self._load(dataset, batch_size, root, download, common, {"decode_text": True})
        self.dataset_id = dataset_id

    def __iter__(self) -> Iterator[Any]:
        """Yield batches; without a batch size, whole episodes, each once."""
        if self.batch_size is not None:
            yield from super().__iter__()
            return
        starts, lengths = self.episodes["start"], self.episodes["length"]
        count = len(lengths)
        order = torch.randperm(count) if self._shuffle else torch.arange(count)
        for some in torch.split(order, self._episodes_at_once):
            yield self.batch_of(end_to_end(starts[some], lengths[some]), {})


def _openx_id(dataset_id: str, split: str | None) -> DatasetId:
    dataset = parse_id(dataset_id, default_source="openx")
    if split is None:
        return dataset
    if "/" in dataset.name:
        raise UsageError(f"{dataset} names a split already, and split is {split!r}")
    return parse_id(str(replace(dataset, name=f"{dataset.name}/{split.replace(' ', '')}")))
