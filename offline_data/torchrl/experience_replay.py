"""TorchRL's dataset classes, so that a program only needs to change its import."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch

from offline_data.base.config import resolve_settings
from offline_data.base.errors import UsageError
from offline_data.base.ids import parse_id
from offline_data.base.pickles import pickled_by_name
from offline_data.base.progress import progress_of
from offline_data.buffers.arguments import as_derived
from offline_data.buffers.buffer import Transform
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.load import Download
from offline_data.buffers.writers import ImmutableDatasetWriter
from offline_data.episode.fields import REWARD
from offline_data.rows.derived.neighbour import (
    NEXT_INFO,
    ROOT_REWARD,
    Neighbour,
    leaves_of_torchrl,
)
from offline_data.rows.gather.plan import all_keys
from offline_data.rows.keys import as_key
from offline_data.rows.samplers import (
    RandomSampler,
    Sampler,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
)
from offline_data.store.reader import open_reader

_OPTIONS = ("keys", "device", "in_memory", "derived", "decode_text", "decode")
"""Options of `load_dataset` that TorchRL's classes do not have."""

_REWARD = Neighbour(ROOT_REWARD, REWARD, -1, optional=True)
_INFO = Neighbour(NEXT_INFO, ("info",), 1, optional=True)


class Common(NamedTuple):
    """Arguments that all of these classes have; see `load_dataset`."""

    sampler: Sampler | Callable[[], Sampler] | None = None
    writer: ImmutableDatasetWriter | None = None
    collate_fn: Transform | None = None
    pin_memory: bool = False
    prefetch: int | None = None
    transform: Transform | None = None
    split_trajs: bool = False


_DEFAULTS = Common()


@pickled_by_name
class _NamesOfSource:
    """The class attribute `available_datasets`: dataset names of a source, without the network."""

    def __get__(self, instance: object, owner: type[SourceExperienceReplay]) -> list[str]:
        from offline_data.pipeline.ingest import known_names

        return known_names(owner.source)


class SourceExperienceReplay(BaseDatasetExperienceReplay):
    """A dataset of one source, loaded by the source's own name.

    Attributes:
        available_datasets: Names of the datasets known without the network.
        dataset_id: The name it was loaded by.
        root: Folder of all datasets.
    """

    source: ClassVar[str]
    _torchrl_leaves: ClassVar[tuple[Neighbour, ...]] = ()
    """Leaves that TorchRL's class has in addition, unless `keys` says which; see `Neighbour`."""
    available_datasets: ClassVar[_NamesOfSource] = _NamesOfSource()
    dataset_id: str
    root: Path

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        download: Download = True,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
        split_trajs: bool = False,
        **env_kwargs: Any,
    ) -> None:
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform, split_trajs)
        _refuse(env_kwargs)
        self._load(dataset_id, batch_size, root, download, common)

    def _load(
        self,
        dataset_id: str,
        batch_size: int | None,
        root: str | os.PathLike[str] | None,
        download: Download,
        common: Common = _DEFAULTS,
        options: Mapping[str, Any] = MappingProxyType({}),
        *,
        offline: bool | None = None,
        workers: int | None = None,
    ) -> None:
        """Open the dataset, converted if need be; `options` are others of the buffer."""
        dataset = parse_id(dataset_id, default_source=self.source)
        if dataset.source != self.source:
            raise UsageError(
                f"{type(self).__name__} loads datasets of {self.source}, not {dataset}",
                hint=f"offline_data.load_dataset({str(dataset)!r}) loads any source's",
            )
        settings = resolve_settings(root=root, offline=offline, workers=workers)
        self.dataset_id, self.root = dataset_id, settings.root
        from offline_data.pipeline.ingest import ensure

        path = ensure(dataset, settings=settings, download=download, progress=progress_of())
        if self._torchrl_leaves:
            options = _with_leaves_of_torchrl(options, path, self._torchrl_leaves)
        super().__init__(path, batch_size, **{**common._asdict(), **options})


class MinariExperienceReplay(SourceExperienceReplay):
    """A Minari dataset, with TorchRL's signature.

    Unlike TorchRL's, values equal those of the source (there every leaf on disk is zero), text is
    kept as strings (`load_dataset` gives codes, which are faster), images and Arrow storage are
    supported, and `available_datasets` does not use the network.

    Args:
        dataset_id: Minari's name, `hf://…` or `gcp://…`, with or without `minari:`.
        load_from_local_minari: Whether to use only `MINARI_DATASETS_PATH` and datasets converted
            before, never the network; also works with `download=False`.
        batch_size, root, download, sampler, …: See `load_dataset`, also for exceptions.
        options: `keys`, `device`, `in_memory`, `derived`, … of `load_dataset`. As in TorchRL, batches
            have `("next", "info")`, the info of the next row (0 in the last of an episode); with
            `keys`, if it includes that. It is computed.
    """

    source = "minari"
    _torchrl_leaves = (_INFO,)

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        download: Download = True,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
        split_trajs: bool = False,
        load_from_local_minari: bool = False,
        **options: Any,
    ) -> None:
        offline = True if load_from_local_minari else None
        if load_from_local_minari and download is False:
            download = True  # only converts local files
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform, split_trajs)
        options = {"decode_text": True, **options}
        self._load(dataset_id, batch_size, root, download, common, options, offline=offline)

    @property
    def metadata(self) -> dict[str, Any]:
        """The source's metadata; spaces are TorchRL specs if TorchRL is installed."""
        found = super().metadata
        if find_spec("torchrl") is None:
            return found
        to_spec = import_module("offline_data.buffers.bridges.torchrl").to_spec
        names = ("observation_space", "action_space")
        return {**found, **{name: to_spec(found[name]) for name in names if found.get(name)}}


class D4RLExperienceReplay(SourceExperienceReplay):
    """A D4RL dataset, with TorchRL's signature, without the d4rl package.

    Unlike TorchRL's, the next observation of a truncated transition is not zeroed: if it is
    unknown, samplers leave the transition out. No row is dropped; episodes are stored.

    Args:
        dataset_id: D4RL's name, with or without `d4rl:`.
        from_env: Ignored: the whole published file is read, including infos.
        use_truncated_as_done: False: `batch["next", "done"]` is `terminated` alone; `split_trajs`
            still cuts at every episode end.
        direct_download: False (through the d4rl package) is not supported.
        env_kwargs: `keys`, `device`, `in_memory`, `derived`, … of `load_dataset`; others are not
            supported. As in TorchRL, batches have the root `reward`, that of the previous row in the
            episode (0 in the first), and `("next", "info")`, the info of the next row (0 in the
            last); with `keys`, if it includes them. Both are computed.
        terminate_on_end: None or False: transitions without a next observation are left out.
            True: they are sampled too; like the last one of every episode, they are `done`.
        batch_size, root, download, sampler, …: See `load_dataset`, also for exceptions.
    """

    source = "d4rl"
    _torchrl_leaves = (_REWARD, _INFO)

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
        split_trajs: bool = False,
        from_env: bool = False,  # noqa: ARG002
        use_truncated_as_done: bool = True,
        direct_download: bool | None = None,
        terminate_on_end: bool | None = None,
        download: Download = True,
        root: str | os.PathLike[str] | None = None,
        **env_kwargs: Any,
    ) -> None:
        options = {name: env_kwargs.pop(name) for name in _OPTIONS if name in env_kwargs}
        if direct_download is False or env_kwargs:
            asked = ", ".join(env_kwargs) or "direct_download=False"
            raise UsageError(
                f"{asked} is for the d4rl package, which is not used here",
                hint="leave it out: the published files are read directly",
            )
        if not use_truncated_as_done:
            self._first = (_set_done_to_terminated,)
        if terminate_on_end and sampler is None:
            sampler = RandomSampler(valid_only=False)
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform, split_trajs)
        self._load(dataset_id, batch_size, root, download, common, options)


class AtariDQNExperienceReplay(SourceExperienceReplay):
    """A run of the Atari DQN Replay dataset, with TorchRL's signature.

    Unlike TorchRL's, zero rows before an episode and rows of a checkpoint that belong to the
    previous one are not transitions; an episode that continues in the next checkpoint is one
    episode; next frames never cross episodes. Each frame is stored once:
    `derived=[frame_stack(4, pad="zero")]` gives the stacks that the agent saw.

    Args:
        dataset_id: `Pong/5`, or d4rl-atari's name `pong-mixed-v0`, with or without `atari_dqn:`;
            `Pong/5@unversioned+checkpoints-0-5` is the result of `offline-data download
            atari_dqn:Pong/5 --checkpoints 0:5`.
        num_procs: Number of processes that convert checkpoints; 0: from the settings.
        num_slices, slice_len: Number or length of slices in a batch; see `SliceSampler`.
        strict_len: Whether to leave out episodes shorter than a slice.
        replacement: Whether to draw rows or slices with replacement.
        mp_start_method: Ignored.
        batch_size, root, download, sampler, …: See `load_dataset`, also for exceptions.
    """

    source = "atari_dqn"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        download: Download = True,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: ImmutableDatasetWriter | None = None,
        transform: Transform | None = None,
        num_procs: int = 0,
        num_slices: int | None = None,
        slice_len: int | None = None,
        strict_len: bool = True,
        replacement: bool = True,
        mp_start_method: str = "fork",  # noqa: ARG002
        **kwargs: Any,
    ) -> None:
        if sampler is None and (num_slices is not None or slice_len is not None):
            make = SliceSampler if replacement else SliceSamplerWithoutReplacement
            sampler = make(num_slices=num_slices, slice_len=slice_len, strict_length=strict_len)
        elif sampler is None and not replacement:
            sampler = SamplerWithoutReplacement()
        common = Common(sampler, writer, transform=transform)
        workers = num_procs or None
        self._load(dataset_id, batch_size, root, download, common, kwargs, workers=workers)


class GenDGRLExperienceReplay(SourceExperienceReplay):
    """A Gen-DGRL (Procgen) dataset, with TorchRL's signature.

    Unlike TorchRL's, unpickling cannot run code, an archive shorter than its category adds no zero
    rows, the last episode is not cut, and the first frame of the next episode, which the source
    stores as the last of each, is never a next observation.

    Args:
        dataset_id: `bigfish-1M_E`, with or without `gen_dgrl:`.
        batch_size, root, download, …: See `load_dataset`, also for exceptions.
    """

    source = "gen_dgrl"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        download: Download = True,
        root: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        self._load(dataset_id, batch_size, root, download, options=kwargs)


def _set_done_to_terminated(batch: Any) -> Any:
    return batch.set(("next", "done"), batch.get(("next", "terminated")).clone())


def _with_leaves_of_torchrl(
    options: Mapping[str, Any], path: Path, default: tuple[Neighbour, ...]
) -> dict[str, Any]:
    """Return the options with derived leaves of TorchRL that `keys` includes; None: `default`."""
    keys, others = options.get("keys"), as_derived(options.get("derived", ()))
    if keys is None:
        known = all_keys(open_reader(path))
        there = [new for new in default if any(k[: len(new.source)] == new.source for k in known)]
        return {**options, "derived": (*others, *there)}
    paths = [as_key(key) for key in ([keys] if isinstance(keys, str) else keys)]
    stored, computed = leaves_of_torchrl(paths)
    return {**options, "keys": stored, "derived": (*others, *computed)}


class OpenMLExperienceReplay(SourceExperienceReplay):
    """An OpenML table as a contextual bandit, with TorchRL's signature, without scikit-learn.

    `batch["X"]` and `batch["y"]` equal TorchRL's. In addition, each row is a whole episode:
    `batch["action"]` is `y`, the reward 1, `batch["next", "done"]` True. Unlike TorchRL's, an
    interrupted download is not mistaken for the table, OpenML's md5 is checked, any OpenML table can
    be loaded (`"61"` as published, `"61/num"` and `"61/onehot"` encoded), and `manifest.about` has
    the columns and categories.

    Args:
        name: TorchRL's name or OpenML's number, with or without `openml:`.
        batch_size, root, sampler, …: See `load_dataset`, also for exceptions; the default `sampler`
            draws without replacement.

    Attributes:
        max_outcome_val: The largest value of `y`; 0 for a table without a target.
    """

    source = "openml"
    max_outcome_val: int | float

    def __init__(
        self,
        name: str,
        batch_size: int,
        root: str | os.PathLike[str] | None = None,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
    ) -> None:
        sampler = SamplerWithoutReplacement() if sampler is None else sampler
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform)
        self._load(name, batch_size, root, True, common)
        reader = self._steps_storage.reader
        labels = reader.step(("y",)) if ("y",) in reader.step_leaves else None
        self.max_outcome_val = 0 if labels is None else labels.max().item()


class RobosetExperienceReplay(SourceExperienceReplay):
    """A dataset of RoboSet's simulations, with TorchRL's signature.

    Unlike TorchRL's, a reward belongs to the action that caused it (there, to the state before it),
    the row without an action (NaN) and its zeroed next observation is not a transition, the last
    transition of a trial is truncated, and root `done` is False. Trials are ordered by file; `file`,
    `trial` and `seed` are columns of `ds.episodes`, not leaves of every row.

    Args:
        dataset_id: Its name (`FK1-v4(expert)/FK1_Knob1OnRandom_v2d-v4`), with or without `roboset:`.
        batch_size, root, download, sampler, …: See `load_dataset`, also for exceptions.
        env_kwargs: Refused: no environment is created (TorchRL ignores them).
    """

    source = "roboset"


class VD4RLExperienceReplay(SourceExperienceReplay):
    """A V-D4RL dataset, with TorchRL's signature.

    Unlike TorchRL's, an action and its reward are in the transition they belong to (there, in the
    row of the resulting image), the last image of an episode does not start a transition, a next
    image never crosses episodes, and states missing from a file are not filled with zeros.

    Args:
        dataset_id: Its name (`main/walker_walk/random/64px`), with or without `vd4rl:`.
        totensor: Whether to convert `pixels` to float32 in [0, 1], channels first, like
            `ToTensorImage`, after `transform`; floating-point values are left unchanged.
        image_size: Height and width, or one number for both, to resize `pixels` to (bilinear,
            antialiased); needs `totensor`. None: no resizing.
        num_workers: Ignored: files are downloaded by this package's own threads.
        batch_size, root, download, sampler, …: See `load_dataset`, also for exceptions.
        env_kwargs: Refused: no environment is created (TorchRL ignores them).
    """

    source = "vd4rl"

    def __init__(
        self,
        dataset_id: str,
        batch_size: int | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        download: Download = True,
        sampler: Sampler | Callable[[], Sampler] | None = None,
        writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None,
        pin_memory: bool = False,
        prefetch: int | None = None,
        transform: Transform | None = None,
        split_trajs: bool = False,
        totensor: bool = True,
        image_size: int | list[int] | None = None,
        num_workers: int = 0,  # noqa: ARG002
        **env_kwargs: Any,
    ) -> None:
        _refuse(env_kwargs)
        if image_size is not None and not totensor:
            raise UsageError(
                "image_size needs totensor=True: bytes are not resized",
                hint="resize in your own transform",
            )
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform, split_trajs)
        self._load(dataset_id, batch_size, root, download, common)
        if totensor:
            pair = [image_size] * 2 if isinstance(image_size, int) else image_size
            size = None if pair is None else (pair[0], pair[1])
            self.append_transform(_PixelsToTensor(size))


@pickled_by_name
@dataclass(frozen=True)
class _PixelsToTensor:
    """Converts uint8 images to float32 in [0, 1], channels first, and resizes them."""

    size: tuple[int, int] | None
    """Height and width; None: no resizing."""

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


def _refuse(env_kwargs: Any) -> None:
    if env_kwargs:
        raise UsageError(f"Unknown argument {', '.join(env_kwargs)}: no environment is created")
