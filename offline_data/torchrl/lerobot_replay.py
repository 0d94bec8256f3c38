"""`LeRobotExperienceReplay`: TorchRL's class of LeRobot datasets, and its names of leaves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.buffers.buffer import Transform
from offline_data.buffers.load import Download
from offline_data.buffers.writers import ImmutableDatasetWriter
from offline_data.episode import Key
from offline_data.episode.fields import next_of, split_key
from offline_data.rows.derived.delta import pad_key
from offline_data.rows.derived.timestep import timestep
from offline_data.rows.keys import KeyLike, as_key
from offline_data.rows.samplers import Sampler, SliceSampler
from offline_data.torchrl.experience_replay import Common, SourceExperienceReplay

_IMAGES: Key = ("observation", "images")
"""All images, of which those that `key_map` names are taken out first."""
_NAMES: Mapping[str, Key] = {"task": ("language_instruction",)}
_NUMBERING: Mapping[str, Key] = {"episode_index": ("episode",), "frame_index": ("frame",)}


class LeRobotExperienceReplay(SourceExperienceReplay):
    """A LeRobot dataset, with TorchRL's signature, without lerobot, datasets and torchcodec.

    As in TorchRL, `observation.images.top` is `("observation", "image", "top")`, the text of the task
    `language_instruction`, and the number of the row in its episode `frame`. (`load_dataset` has the
    names of the source.)

    Unlike TorchRL's, rows are found by the values of `episode_index` and `frame_index`, not by their
    position in the files; images are uint8 `[H, W, C]`; batches always have the next observation, and
    samplers leave the last transition of an episode out unless it is terminated, as there is none.

    Args:
        repo_id: Repository of the hub, with or without `lerobot:`; `@COMMIT` pins it.
        num_slices, slice_len: Number or length of slices in a batch; see `SliceSampler`.
        key_map: Names of leaves by names of columns, in place of those above.
        decode_video: False (references to frames) is not supported.
        rehydrate: Ignored: nothing is left out that would have to be added.
        strict_length: Whether to leave out episodes shorter than a slice.
        delta_timestamps: See `load_dataset`; keys are names of columns.
        root, download, sampler, …: See `load_dataset`, also for exceptions.
    """

    source = "lerobot"

    def __init__(
        self,
        repo_id: str,
        *,
        root: str | os.PathLike[str] | None = None,
        download: Download = True,
        batch_size: int | None = None,
        num_slices: int | None = None,
        slice_len: int | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None,
        transform: Transform | None = None,
        key_map: Mapping[str, KeyLike] | None = None,
        decode_video: bool = True,
        rehydrate: bool = False,  # noqa: ARG002
        strict_length: bool = True,
        pin_memory: bool = False,
        prefetch: int | None = None,
        delta_timestamps: Mapping[Any, Iterable[float]] | None = None,
    ) -> None:
        if not decode_video:
            raise UsageError(
                "decode_video=False is not supported: batches have images",
                hint="load_dataset(…, keys=[…]) leaves leaves out",
            )
        if num_slices is not None and slice_len is not None:
            raise UsageError("num_slices and slice_len cannot be combined")
        if sampler is None and (num_slices is not None or slice_len is not None):
            sampler = SliceSampler(
                num_slices=num_slices, slice_len=slice_len, strict_length=strict_length
            )
        asked = {name: as_key(key) for name, key in (key_map or {}).items()}
        numbering = {name: asked.pop(name, key) for name, key in _NUMBERING.items()}
        names = {split_key(name): key for name, key in {**_NAMES, **asked}.items()}
        names |= {pad_key(old): pad_key(new) for old, new in names.items()}
        names["episode",] = numbering["episode_index"]
        self._first = (_Renamed(names),)
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform)
        derived = [timestep(numbering["frame_index"])]
        options = {"decode_text": True, "derived": derived, "delta_timestamps": delta_timestamps}
        self._load(repo_id, batch_size, root, download, common, options)
        self.repo_id = repo_id


@pickled_by_name
@dataclass(frozen=True)
class _Renamed:
    """Renames leaves of a batch, and those of the next row alike."""

    names: Mapping[Key, Key]

    def __call__(self, batch: Any) -> Any:
        for old, new in {**self.names, _IMAGES: ("observation", "image")}.items():
            for one, other in ((old, new), (next_of(old), next_of(new))):
                if one != other and one in batch.keys(include_nested=True):
                    values = batch.pop(one)
                    if one[-2:] != _IMAGES or not values.is_empty():
                        batch.set(other, values)
        return batch
