"""TorchRL's dataset classes, so that a program only needs to change its import.

What differs from TorchRL's is a table in docs/guides/torchrl.md, which the pages of sources repeat.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from offline_data.buffers.dataset import Dataset
from offline_data.buffers.load import Download
from offline_data.buffers.writers import ImmutableDatasetWriter
from offline_data.rows.derived.neighbour import Neighbour
from offline_data.rows.keys import KeyLike
from offline_data.rows.samplers import RandomSampler, Sampler, SamplerWithoutReplacement
from offline_data.rows.selection import end_to_end
from offline_data.rows.storage import Storage
from offline_data.rows.transforms import Transform
from offline_data.torchrl import adapt
from offline_data.torchrl.parts import as_storage

Folder = str | os.PathLike[str]
SamplerLike = Sampler | Callable[[], Sampler]

_OPTIONS = ("keys", "device", "in_memory", "derived", "decode_text", "decode")
"""Options of `load_dataset` that TorchRL's classes do not have."""


class Common(NamedTuple):
    """Arguments that all of these classes have; see `load_dataset`."""

    sampler: SamplerLike | None = None
    writer: ImmutableDatasetWriter | None = None
    collate_fn: Transform | None = None
    pin_memory: bool = False
    prefetch: int | None = None
    transform: Transform | None = None
    split_trajs: bool = False


_DEFAULTS = Common()

BaseDatasetExperienceReplay = Dataset
"""TorchRL's name of the class of all datasets."""


@pickled_by_name
class _NamesOfSource:
    """The class attribute `available_datasets`: dataset names of a source, without the network."""

    def __get__(self, instance: object, owner: type[SourceExperienceReplay]) -> list[str]:
        from offline_data.pipeline.ingest import known_names

        return known_names(owner.source)


class SourceExperienceReplay(Dataset):
    """A dataset of one source, loaded by the source's own name.

    What differs from TorchRL's classes: <https://offline-data.github.io/offline-data/guides/torchrl/>.

    Attributes:
        available_datasets: Names of the datasets known without the network.
        dataset_id: The name it was loaded by.
        root: Folder of all datasets.
    """

    source: ClassVar[str]
    _torchrl_leaves: ClassVar[tuple[Neighbour, ...]] = ()
    """Features that TorchRL's class has in addition, unless `keys` says which; see `Neighbour`."""
    available_datasets: ClassVar[_NamesOfSource] = _NamesOfSource()
    dataset_id: str
    root: Path

    @property
    def _storage(self) -> Storage:
        found: Storage = vars(self)["_storage"]
        return found

    @_storage.setter
    def _storage(self, storage: Any) -> None:
        replaced, vars(self)["_storage"] = "_storage" in vars(self), as_storage(storage)
        if replaced:  # a program written for TorchRL sets one of TorchRL's
            self._drop_drawn()

    def __init__(
        self, dataset_id: str, batch_size: int | None = None, *, root: Folder | None = None,
        download: Download = True, sampler: SamplerLike | None = None,
        writer: ImmutableDatasetWriter | None = None, collate_fn: Transform | None = None,
        pin_memory: bool = False, prefetch: int | None = None, transform: Transform | None = None,
        split_trajs: bool = False, **env_kwargs: Any,
    ) -> None:  # fmt: skip
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform, split_trajs)
        _refuse(env_kwargs)
        self._load(dataset_id, batch_size, root, download, common)

    def _load(
        self, dataset_id: str, batch_size: int | None, root: Folder | None, download: Download,
        common: Common = _DEFAULTS, options: Mapping[str, Any] = MappingProxyType({}), *,
        offline: bool | None = None, workers: int | None = None,
    ) -> None:  # fmt: skip
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
            options = adapt.with_leaves_of_torchrl(options, path, self._torchrl_leaves)
        super().__init__(path, batch_size, **{**common._asdict(), **options})


class MinariExperienceReplay(SourceExperienceReplay):
    """A Minari dataset, with TorchRL's signature.

    `MinariExperienceReplay("D4RL/door/human-v2", batch_size=256)` loads one, with text as strings.
    `load_dataset` explains other arguments and exceptions.

    Args:
        dataset_id: Minari's name, `hf://…` or `gcp://…`, with or without `minari:`.
        load_from_local_minari: Whether to use only `MINARI_DATASETS_PATH` and datasets converted
            before, never the network; also works with `download=False`.
        options: `keys`, `device`, `in_memory`, `derived`, … of `load_dataset`. As in TorchRL, batches
            have `("next", "info")`, the info of the next row (0 in the last of an episode); with
            `keys`, if it includes that. It is computed.
    """

    source = "minari"
    _torchrl_leaves = (adapt.INFO,)

    def __init__(
        self, dataset_id: str, batch_size: int | None = None, *, root: Folder | None = None,
        download: Download = True, sampler: SamplerLike | None = None,
        writer: ImmutableDatasetWriter | None = None, collate_fn: Transform | None = None,
        pin_memory: bool = False, prefetch: int | None = None, transform: Transform | None = None,
        split_trajs: bool = False, load_from_local_minari: bool = False, **options: Any,
    ) -> None:  # fmt: skip
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

    `D4RLExperienceReplay("hopper-medium-v2", batch_size=256)` loads one. `load_dataset` explains
    other arguments and exceptions.

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
        terminate_on_end: None or False: steps without a next observation are left out.
            True: they are sampled too; like the last one of every episode, they are `done`.
    """

    source = "d4rl"
    _torchrl_leaves = (adapt.REWARD, adapt.INFO)

    def __init__(
        self, dataset_id: str, batch_size: int | None = None, sampler: SamplerLike | None = None,
        writer: ImmutableDatasetWriter | None = None, collate_fn: Transform | None = None,
        pin_memory: bool = False, prefetch: int | None = None, transform: Transform | None = None,
        split_trajs: bool = False,
        from_env: bool = False,  # noqa: ARG002
        use_truncated_as_done: bool = True, direct_download: bool | None = None,
        terminate_on_end: bool | None = None, download: Download = True, root: Folder | None = None,
        **env_kwargs: Any,
    ) -> None:  # fmt: skip
        options = {name: env_kwargs.pop(name) for name in _OPTIONS if name in env_kwargs}
        if direct_download is False or env_kwargs:
            asked = ", ".join(env_kwargs) or "direct_download=False"
            raise UsageError(
                f"{asked} is for the d4rl package, which is not used here",
                hint="leave it out: the published files are read directly",
            )
        if not use_truncated_as_done:
            self._first = (adapt.set_done_to_terminated,)
        if terminate_on_end and sampler is None:
            sampler = RandomSampler(valid_only=False)
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform, split_trajs)
        self._load(dataset_id, batch_size, root, download, common, options)


class AtariDQNExperienceReplay(SourceExperienceReplay):
    """A run of the Atari DQN Replay dataset, with TorchRL's signature.

    `AtariDQNExperienceReplay("Pong/5", batch_size=256)` loads one;
    `derived=[frame_stack(4, pad="zero")]` gives the stacks that the agent saw. `load_dataset`
    explains other arguments and exceptions.

    Args:
        dataset_id: `Pong/5`, or d4rl-atari's name `pong-mixed-v0`, with or without `atari_dqn:`;
            `Pong/5@unversioned+checkpoints-0-5` is the result of `offline-data download
            atari_dqn:Pong/5 --checkpoints 0:5`.
        num_procs: Number of processes that convert checkpoints; 0: from the settings.
        num_slices, slice_len, strict_len: See `SliceSampler`.
        replacement: Whether to draw rows or slices with replacement.
        mp_start_method: Ignored.
    """

    source = "atari_dqn"

    def __init__(
        self, dataset_id: str, batch_size: int | None = None, *, root: Folder | None = None,
        download: Download = True, sampler: SamplerLike | None = None,
        writer: ImmutableDatasetWriter | None = None, transform: Transform | None = None,
        num_procs: int = 0, num_slices: int | None = None, slice_len: int | None = None,
        strict_len: bool = True, replacement: bool = True,
        mp_start_method: str = "fork",  # noqa: ARG002
        **kwargs: Any,
    ) -> None:  # fmt: skip
        if sampler is None and (num_slices is not None or slice_len is not None):
            sampler = adapt.slices(num_slices, slice_len, strict_len, replacement=replacement)
        elif sampler is None and not replacement:
            sampler = SamplerWithoutReplacement()
        common, workers = Common(sampler, writer, transform=transform), num_procs or None
        self._load(dataset_id, batch_size, root, download, common, kwargs, workers=workers)


class GenDGRLExperienceReplay(SourceExperienceReplay):
    """A Gen-DGRL (Procgen) dataset, with TorchRL's signature.

    `GenDGRLExperienceReplay("bigfish-1M_E", batch_size=256)` loads one, with or without
    `gen_dgrl:`. `load_dataset` explains other arguments and exceptions.
    """

    source = "gen_dgrl"

    def __init__(
        self, dataset_id: str, batch_size: int | None = None, *, download: Download = True,
        root: Folder | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        self._load(dataset_id, batch_size, root, download, options=kwargs)


class OpenMLExperienceReplay(SourceExperienceReplay):
    """An OpenML table as a contextual bandit, with TorchRL's signature, without scikit-learn.

    `OpenMLExperienceReplay("adult_num", 256)` loads one: rows are whole episodes with action `y`,
    by default drawn without replacement. `load_dataset` explains other arguments and exceptions.

    Args:
        name: TorchRL's name or OpenML's number, with or without `openml:`: `"61"` as published,
            `"61/num"` and `"61/onehot"` encoded.

    Attributes:
        max_outcome_val: The largest value of `y`; 0 for a table without a target.
    """

    source = "openml"
    max_outcome_val: int | float

    def __init__(
        self, name: str, batch_size: int, root: Folder | None = None,
        sampler: SamplerLike | None = None, writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None, pin_memory: bool = False, prefetch: int | None = None,
        transform: Transform | None = None,
    ) -> None:  # fmt: skip
        sampler = SamplerWithoutReplacement() if sampler is None else sampler
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform)
        self._load(name, batch_size, root, True, common)
        reader = self._steps_storage.reader
        labels = reader.step(("y",)) if ("y",) in reader.step_leaves else None
        self.max_outcome_val = 0 if labels is None else labels.max().item()


class RobosetExperienceReplay(SourceExperienceReplay):
    """A dataset of RoboSet's simulations, with TorchRL's signature.

    `RobosetExperienceReplay("FK1-v4(expert)/FK1_Knob1OnRandom_v2d-v4", 256)` loads one, with or
    without `roboset:`. No environment is created: `env_kwargs`, which TorchRL ignores, are refused.
    `load_dataset` explains other arguments and exceptions.
    """

    source = "roboset"


class VD4RLExperienceReplay(SourceExperienceReplay):
    """A V-D4RL dataset, with TorchRL's signature.

    `VD4RLExperienceReplay("main/walker_walk/random/64px", 256)` loads one, with or without
    `vd4rl:`. No environment is created: `env_kwargs`, which TorchRL ignores, are refused.
    `load_dataset` explains other arguments and exceptions.

    Args:
        totensor: Whether to convert `pixels` to float32 in [0, 1], channels first, like
            `ToTensorImage`, after `transform`; floating-point values are left unchanged.
        image_size: Height and width, or one number for both, to resize `pixels` to (bilinear,
            antialiased); needs `totensor`. None: no resizing.
        num_workers: Ignored: files are downloaded by this package's own threads.
    """

    source = "vd4rl"

    def __init__(
        self, dataset_id: str, batch_size: int | None = None, *, root: Folder | None = None,
        download: Download = True, sampler: SamplerLike | None = None,
        writer: ImmutableDatasetWriter | None = None, collate_fn: Transform | None = None,
        pin_memory: bool = False, prefetch: int | None = None, transform: Transform | None = None,
        split_trajs: bool = False, totensor: bool = True, image_size: int | list[int] | None = None,
        num_workers: int = 0,  # noqa: ARG002
        **env_kwargs: Any,
    ) -> None:  # fmt: skip
        _refuse(env_kwargs)
        if image_size is not None and not totensor:
            raise UsageError(
                "image_size needs totensor=True: bytes are not resized",
                hint="resize in your own transform",
            )
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform, split_trajs)
        self._load(dataset_id, batch_size, root, download, common)
        if totensor:
            self.append_transform(adapt.pixels_to_tensor(image_size))


class OpenXExperienceReplay(SourceExperienceReplay):
    """An Open X-Embodiment dataset or stream, with TorchRL's signature, without TensorFlow.

    `OpenXExperienceReplay("viola", batch_size=256, download=True)` loads one; without `download` it
    is a `StreamingDataset` instead. `load_dataset` explains other arguments and exceptions.

    Args:
        dataset_id: Name, with or without `openx:`, a split (`viola/train[:100]`) or `@VERSION`.
        batch_size: None: iteration yields whole episodes, `num_slices` at a time; or, with
            `slice_len`, a slice of each episode.
        shuffle: Whether to shuffle; False: the dataset's order.
        num_slices, slice_len, strict_length: See `SliceSampler`.
        pad: Streams only: value that pads short episodes.
        replacement: Whether to draw with replacement; None: True if downloaded.
        streaming: Whether to read batches from the host without converting anything.
        split: Split or slice of one, in TFDS notation: `train`, `train[10%:20%]+test`.
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
            str(adapt.with_split(given["dataset_id"], given["split"])),
            shuffle=given["shuffle"],
            transform=given["transform"],
            root=given["root"],
            **{name: given[name] for name in same},
        )

    def __init__(
        self, dataset_id: str, batch_size: int | None = None, *, shuffle: bool = True,
        num_slices: int | None = None, slice_len: int | None = None,
        pad: float | bool | None = None, replacement: bool | None = None,
        streaming: bool | None = None,  # noqa: ARG002 - used by `__new__`
        root: Folder | None = None, download: Download | None = None,
        sampler: SamplerLike | None = None, writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None, pin_memory: bool = False, prefetch: int | None = None,
        transform: Transform | None = None, split_trajs: bool = False, strict_length: bool = True,
        split: str | None = None,
    ) -> None:  # fmt: skip
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
            sampler = adapt.slices(
                num_slices, slice_len, strict_length, replacement=drawn, shuffle=shuffle
            )
        elif sampler is None and not drawn:
            sampler = SamplerWithoutReplacement(shuffle=shuffle)
        self._shuffle, self._episodes_at_once = shuffle, num_slices or 1
        dataset = str(adapt.with_split(dataset_id, split))
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


class LeRobotExperienceReplay(SourceExperienceReplay):
    """A LeRobot dataset, with TorchRL's signature, without lerobot, datasets and torchcodec.

    `LeRobotExperienceReplay("lerobot/pusht", batch_size=64)` loads one, with TorchRL's names, such
    as `language_instruction`. `load_dataset` explains other arguments and exceptions.

    Args:
        repo_id: Repository of the hub, with or without `lerobot:`; `@COMMIT` pins it.
        num_slices, slice_len, strict_length: See `SliceSampler`.
        key_map: Names of features by names of columns, in place of TorchRL's.
        decode_video: False (references to frames) is not supported.
        rehydrate: Ignored: nothing is left out that would have to be added.
        delta_timestamps: See `load_dataset`; keys are names of columns.
    """

    source = "lerobot"

    def __init__(
        self, repo_id: str, *, root: Folder | None = None, download: Download = True,
        batch_size: int | None = None, num_slices: int | None = None, slice_len: int | None = None,
        sampler: SamplerLike | None = None, writer: ImmutableDatasetWriter | None = None,
        collate_fn: Transform | None = None, transform: Transform | None = None,
        key_map: Mapping[str, KeyLike] | None = None, decode_video: bool = True,
        rehydrate: bool = False,  # noqa: ARG002
        strict_length: bool = True, pin_memory: bool = False, prefetch: int | None = None,
        delta_timestamps: Mapping[Any, Iterable[float]] | None = None,
    ) -> None:  # fmt: skip
        if not decode_video:
            raise UsageError(
                "decode_video=False is not supported: batches have images",
                hint="load_dataset(…, keys=[…]) leaves features out",
            )
        if num_slices is not None and slice_len is not None:
            raise UsageError("num_slices and slice_len cannot be combined")
        if sampler is None and (num_slices is not None or slice_len is not None):
            sampler = adapt.slices(num_slices, slice_len, strict_length)
        rename, frame = adapt.names_of_torchrl(key_map or {})
        self._first = (rename,)
        common = Common(sampler, writer, collate_fn, pin_memory, prefetch, transform)
        options = {"decode_text": True, "derived": [frame], "delta_timestamps": delta_timestamps}
        self._load(repo_id, batch_size, root, download, common, options)
        self.repo_id = repo_id


def _refuse(env_kwargs: Any) -> None:
    if env_kwargs:
        raise UsageError(f"Unknown argument {', '.join(env_kwargs)}: no environment is created")
