"""Samplers, names of features and changes of batches that TorchRL's dataset classes have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from offline_data.base.errors import UsageError
from offline_data.base.ids import DatasetId, parse_id
from offline_data.base.pickles import pickled_by_name
from offline_data.buffers.arguments import as_derived
from offline_data.episode import Key, fields
from offline_data.rows.derived.base import Derived
from offline_data.rows.derived.delta import pad_key
from offline_data.rows.derived.neighbour import (
    NEXT_INFO,
    ROOT_REWARD,
    Neighbour,
    leaves_of_torchrl,
)
from offline_data.rows.derived.timestep import timestep
from offline_data.rows.gather.plan import all_keys
from offline_data.rows.keys import KeyLike, as_key
from offline_data.rows.samplers import Sampler, SliceSampler, SliceSamplerWithoutReplacement
from offline_data.rows.transforms import Transform
from offline_data.store.reader import open_reader

REWARD = Neighbour(ROOT_REWARD, fields.REWARD, -1, optional=True)
INFO = Neighbour(NEXT_INFO, ("info",), 1, optional=True)

_IMAGES: Key = ("observation", "images")
"""All images, of which those that `key_map` names are taken out first."""
_NAMES: Mapping[str, Key] = {"task": ("language_instruction",)}
_NUMBERING: Mapping[str, Key] = {"episode_index": ("episode",), "frame_index": ("frame",)}


def slices(
    number: int | None,
    length: int | None,
    strict: bool,
    *,
    replacement: bool = True,
    shuffle: bool = True,
) -> Sampler:
    """Return a sampler of slices; `shuffle` is for those without replacement."""
    if replacement:
        return SliceSampler(num_slices=number, slice_len=length, strict_length=strict)
    return SliceSamplerWithoutReplacement(
        num_slices=number, slice_len=length, strict_length=strict, shuffle=shuffle
    )


def with_leaves_of_torchrl(
    options: Mapping[str, Any], path: Path, default: tuple[Neighbour, ...]
) -> dict[str, Any]:
    """Return the options with derived features of TorchRL that `keys` includes; None: `default`."""
    keys, others = options.get("keys"), as_derived(options.get("derived", ()))
    if keys is None:
        known = all_keys(open_reader(path))
        there = [new for new in default if any(k[: len(new.source)] == new.source for k in known)]
        return {**options, "derived": (*others, *there)}
    paths = [as_key(key) for key in ([keys] if isinstance(keys, str) else keys)]
    stored, computed = leaves_of_torchrl(paths)
    return {**options, "keys": stored, "derived": (*others, *computed)}


def set_done_to_terminated(batch: Any) -> Any:
    """Set `done` to `terminated`."""
    return batch.set(("next", "done"), batch.get(("next", "terminated")).clone())


def with_split(dataset_id: str, split: str | None) -> DatasetId:
    """Return the id of an Open X-Embodiment dataset, or of a split of it."""
    dataset = parse_id(dataset_id, default_source="openx")
    if split is None:
        return dataset
    if "/" in dataset.name:
        raise UsageError(f"{dataset} names a split already, and split is {split!r}")
    return parse_id(str(replace(dataset, name=f"{dataset.name}/{split.replace(' ', '')}")))


def pixels_to_tensor(size: int | list[int] | None) -> Transform:
    """Return the transform of V-D4RL; `size` is the height and width, or one number for both."""
    pair = [size] * 2 if isinstance(size, int) else size
    return _PixelsToTensor(None if pair is None else (pair[0], pair[1]))


@pickled_by_name
@dataclass(frozen=True)
class _PixelsToTensor:
    """Converts uint8 images to float32 in [0, 1], channels first, and resizes them."""

    size: tuple[int, int] | None  # height and width; None: no resizing

    def __call__(self, batch: Any) -> Any:
        for key in ("pixels", ("next", "pixels")):
            if (pixels := batch.get(key, None)) is not None:
                batch.set(key, self._convert_pixels(pixels))
        return batch

    def _convert_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        if not pixels.is_floating_point():
            if pixels.shape[-1] == 3:
                pixels = pixels.movedim(-1, -3)
            pixels = pixels.float().div_(255)
        if self.size is None or tuple(pixels.shape[-2:]) == self.size:
            return pixels
        images = pixels.reshape(-1, *pixels.shape[-3:])
        resized = torch.nn.functional.interpolate(
            images, self.size, mode="bilinear", antialias=True
        )
        return resized.reshape(*pixels.shape[:-2], *self.size)


def names_of_torchrl(key_map: Mapping[str, KeyLike]) -> tuple[Transform, Derived]:
    """Return what gives LeRobot batches TorchRL's names, and the feature of frame numbers."""
    asked = {name: as_key(key) for name, key in key_map.items()}
    numbering = {name: asked.pop(name, key) for name, key in _NUMBERING.items()}
    names = {fields.split_key(name): key for name, key in {**_NAMES, **asked}.items()}
    names |= {pad_key(old): pad_key(new) for old, new in names.items()}
    names["episode",] = numbering["episode_index"]
    return _Renamed(names), timestep(numbering["frame_index"])


@pickled_by_name
@dataclass(frozen=True)
class _Renamed:
    names: Mapping[Key, Key]

    def __call__(self, batch: Any) -> Any:
        for old, new in {**self.names, _IMAGES: ("observation", "image")}.items():
            for one, other in ((old, new), (fields.next_of(old), fields.next_of(new))):
                if one != other and one in batch.keys(include_nested=True):
                    values = batch.pop(one)
                    if one[-2:] != _IMAGES or not values.is_empty():
                        batch.set(other, values)
        return batch
