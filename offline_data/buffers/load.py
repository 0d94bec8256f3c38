"""`load_dataset` and related functions, which open a buffer by id, directory or saved view."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from offline_data.base.config import resolve_settings
from offline_data.base.errors import MissingDependencyError, NotFoundError, UsageError
from offline_data.base.ids import DatasetId, did_you_mean, looks_like_path, parse_id
from offline_data.base.progress import Progress, progress_of
from offline_data.buffers.dataset import Dataset, DatasetView
from offline_data.buffers.writers import Writer
from offline_data.formats.names import resolve_name
from offline_data.rows.derived.base import Derived
from offline_data.rows.keys import KeyLike
from offline_data.rows.samplers import Sampler
from offline_data.rows.saved import dataset_next_to, read_view
from offline_data.rows.transforms import Transform
from offline_data.store.layout import MANIFEST, LayoutName
from offline_data.store.library import at_hand, find, how_to_get, text_of

if TYPE_CHECKING:
    import torch

    from offline_data.pipeline.ingest import TextOptions

Download: TypeAlias = Literal["force"] | bool
"""Whether to download and convert missing datasets; `"force"`: also replace existing ones."""

_SAMPLER = "write sampler=offline_data.{}".format
_INSTEAD = {  # advice for arguments that other functions, of this package or others, have
    "seed": _SAMPLER("RandomSampler(seed=0)"),
    "shuffle": _SAMPLER("SamplerWithoutReplacement(shuffle=…)"),
    "drop_last": _SAMPLER("SamplerWithoutReplacement(drop_last=…)"),
    "num_slices": _SAMPLER("SliceSampler(num_slices=…)"),
    "slice_len": _SAMPLER("SliceSampler(slice_len=…)"),
    "split": "load the dataset, then ds.split(train=0.9, val=0.1)",
    "num_workers": "load the dataset, then ds.dataloader(batch_size, num_workers=…)",
    "streaming": "offline_data.StreamingDataset(id) reads without a copy on disk",
    "episodes": "load the dataset, then ds.episodes_at([0, 1])",
    "settings": "write root=",
    "offline": "set OFFLINE_DATA_OFFLINE=1, or write download=False",
}

Factory: TypeAlias = "Callable[..., Any]"
"""Called as `factory(name, **options)` for the id `prefix:name`; returns a buffer."""

Loader = TypeVar("Loader", bound="Callable[..., Any]")

_FACTORIES: dict[str, Factory | str] = {}

_DATA_OPTIONS = (
    *("root", "download", "revision", "layout", "text", "view", "progress"),
    *("keys", "device", "derived", "delta_timestamps", "decode_text", "decode", "split_trajs"),
)
"""Options of `load_dataset` that select the data; the others are those of TorchRL's buffer."""


def open_dataset(
    path: str | os.PathLike[str], batch_size: int | None = None, **options: Any
) -> Dataset:
    """Open a dataset directory, reading only its manifest; for `options` see `load_dataset`."""
    return Dataset(path, batch_size, **options)


def _with_registered_prefixes(load: Loader) -> Loader:
    """Decorate `load(id, …)` to first look up the prefix of `id` in the registered functions."""
    known = inspect.signature(load).parameters

    @functools.wraps(load)
    def loads(id: Any = None, *args: Any, dataset_id: Any = None, **options: Any) -> Any:
        if (id is None) == (dataset_id is None):
            raise UsageError("load_dataset takes one id (or dataset_id=…)")
        id = dataset_id if id is None else id
        prefix, colon, name = id.partition(":") if isinstance(id, str) else ("", "", "")
        factory = _FACTORIES.get(prefix.strip().lower()) if colon else None
        if factory is None or looks_like_path(id):
            _check_options(options, known)
            return load(id, *args, **options)
        if isinstance(factory, str):
            module, _, attribute = factory.partition(":")
            try:
                factory = cast("Factory", getattr(import_module(module), attribute))
            except (ImportError, AttributeError) as error:
                raise NotFoundError(
                    f"{factory!r}, registered for {prefix!r}, cannot be imported: {error}"
                ) from error
        return factory(name, *args, **options)

    return cast("Loader", loads)


def _check_options(options: Iterable[str], known: Iterable[str]) -> None:
    for name in options:
        if name not in known:
            instead = _INSTEAD.get(name) or did_you_mean(name, known, shown="{}=".format)
            hint = f"; {instead}" if instead else ""
            raise TypeError(f"load_dataset() got an unexpected keyword argument {name!r}{hint}")


@_with_registered_prefixes
def load_dataset(
    id: str | os.PathLike[str] | DatasetId | None = None,
    batch_size: int | None = None,
    *,
    dataset_id: str | None = None,  # noqa: ARG001 - passed on as `id` by `_with_registered_prefixes`
    root: str | os.PathLike[str] | None = None,
    download: Download = True,
    revision: str | None = None,
    layout: LayoutName | None = None,
    text: TextOptions | None = None,
    sampler: Sampler | Callable[[], Sampler] | None = None,
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
    view: str | os.PathLike[str] | None = None,
    progress: bool | Progress = True,
) -> Dataset:
    """Load a dataset; download and convert it first if it is not on this disk.

    ```python
    ds = offline_data.load_dataset("d4rl:hopper-medium-v2", batch_size=256)
    batch = ds.sample()  # batch["observation"], batch["action"], batch["next", "reward"], …
    ```

    Args:
        id: `source:name[@revision]`, a name that only one dataset has (`hopper-medium-v2`,
            `lerobot/pusht`; datasets on this disk come first), the path of a dataset directory, or
            `prefix:name` of `register_dataset`, whose function receives all other arguments.
        batch_size: Default number of rows in a batch.
        root: Folder of all datasets; None: `OFFLINE_DATA_HOME`, else the config file's, else the
            user's cache folder.
        keys: Features of batches, or parents of features; None: all.
        sampler: `RandomSampler` (the default), `SamplerWithoutReplacement`, `SliceSampler`, …, or
            your own.
        transform: Called with every batch.
        device: Device of batches.

        download: **What is loaded.** True: download and convert a dataset that is not on this disk;
            False: never download; `"force"`: download and convert again.
        revision: Revision of the source; None: the newest on this disk, else the source's newest.
        layout: `compact` or `ted`; None: as on disk, `compact` for a new conversion.
        text: How the text of `hf:` datasets is tokenized; None: it is on this disk, in any way.
        view: Name or file of a saved view of the dataset to return, or a filter key of robomimic
            files (`train`).
        progress: Whether to show a bar on stderr, in a terminal or notebook, if a download or
            conversion takes over two seconds; or its receiver. Notes: the logger `offline_data`.

        derived: **What batches have.** Functions that add features computed from other rows, such
            as `n_step(3, 0.99)`, or a list of them in order of application.
        delta_timestamps: Seconds by feature, as LeRobot's: features become `[B, k, …]`, with
            `KEY_is_pad` next to them; see `offline_data.delta_timestamps`. Batches then have no
            next observations, and the default sampler draws all rows.
        split_trajs: Whether rows are whole episodes, padded to the longest: batches are `[B, T]`,
            with `mask`, `traj_ids` and `dataset_index` (rows of the transitions).
        decode_text: Whether to return text as strings (`NonTensorStack`); slow.
        decode: Whether to decode encoded images to pixels, in `torch.get_num_threads()` threads;
            False: the `bytes` of each JPEG or PNG file (`NonTensorStack`; None for padding).

        in_memory: **Speed.** Whether to copy the whole dataset to `device` once and gather batches
            there.
        prefetch: Number of batches that threads prepare ahead; does not change rows or order.
        pin_memory: Whether batches are in (or are transferred through) page-locked memory.

        collate_fn: **For TorchRL's scripts.** Called with every batch, before `transform`.
        writer: Ignored; a dataset is immutable.
        dataset_id: TorchRL's name for `id`.

    Returns:
        A buffer of transitions in TED; see `Dataset`.

    Raises:
        NotFoundError, OfflineError, NetworkError, AuthError: The dataset is not available.
        IntegrityError: Damaged files.
        NoSpaceError, AccessError: Disk errors.
        UsageError: Invalid argument.
    """
    settings, path = resolve_settings(root=root), None
    name = resolve_name(text_of(id or ""), settings)
    if isinstance(download, bool) and (revision, layout, text) == (None,) * 3:
        path = at_hand(name, settings.root)
    if path is None:  # conversion takes as long to import as all else
        from offline_data.pipeline.ingest import ensure

        path = ensure(
            name,
            settings=settings,
            download=download,
            revision=revision,
            layout=layout,
            text=text,
            progress=progress_of(progress),
        )
    dataset = Dataset(
        path,
        batch_size,
        sampler=sampler,
        writer=writer,
        collate_fn=collate_fn,
        pin_memory=pin_memory,
        prefetch=prefetch,
        transform=transform,
        split_trajs=split_trajs,
        device=device,
        in_memory=in_memory,
        keys=keys,
        derived=derived,
        delta_timestamps=delta_timestamps,
        decode_text=decode_text,
        decode=decode,
    )
    return dataset if view is None else dataset.saved_view(view, sampler=dataset.sampler)


def open_view(
    path: str | os.PathLike[str],
    batch_size: int | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    **options: Any,
) -> DatasetView:
    """Open a file written by `DatasetView.save` together with its dataset.

    The dataset is looked for next to the view, then at its path when the view was saved, then under
    the root; nothing is downloaded. For `root` and `options` see `load_dataset`.

    Raises:
        NotFoundError: No such file, or its dataset is not on this disk.
        IntegrityError: The file is damaged, or the dataset has changed since.
    """
    file = Path(path).expanduser().absolute()
    saved = read_view(file)
    places = [place for place in (dataset_next_to(file), Path(saved.path)) if place is not None]
    folder = next((place for place in places if (place / MANIFEST).exists()), None)
    if folder is None:
        dataset_id, settings = parse_id(saved.dataset), resolve_settings(root=root)
        entry = find(settings.root, dataset_id)
        if entry is None:
            raise NotFoundError(
                f"The view {file} is of {dataset_id}, which is neither in {saved.path} nor under "
                f"{settings.root}",
                hint=how_to_get(dataset_id),
            )
        folder = entry.path
    dataset = Dataset(folder, batch_size, **options)
    return dataset.saved_view(file, sampler=dataset.sampler)


def torchrl_dataset(id: str, **options: Any) -> Any:
    """Load a dataset as TorchRL's buffer: `load_dataset(id, …).to_torchrl(…)`.

    `torchrl.data.datasets.load_dataset("offline_data:" + id)` calls this function. Options are
    those of `load_dataset` that select the data, and those of `to_torchrl`.
    """
    own = {name: options.pop(name) for name in _DATA_OPTIONS if name in options}
    return load_dataset(id, **own).to_torchrl(**options)


def register_dataset(prefix: str, dataset: Factory | str, *, replace: bool = False) -> None:
    """Make `load_dataset("prefix:name", **options)` call `dataset("name", **options)`.

    Since TorchRL 0.14, `torchrl.data.datasets.load_dataset("offline_data:" + id)` loads whatever
    `load_dataset(id)` does, once this package is imported. `offline_data.sources` adds sources.

    Args:
        prefix: Non-empty, case-insensitive, without `:`.
        dataset: Callable, or `"module:attribute"`, imported on first use.
        replace: Whether to override an existing prefix or a source.

    Raises:
        UsageError: A prefix that exists or is invalid, or an invalid `dataset`.

    Example:
        >>> register_dataset("squares", lambda name, **options: int(name) ** 2, replace=True)
        >>> load_dataset("squares:7")
        49
    """
    name = prefix.strip().lower()
    if not name or ":" in name:
        raise UsageError(f"The prefix is {prefix!r}; expected a word without ':'")
    if not callable(dataset) and not (isinstance(dataset, str) and all(dataset.partition(":"))):
        raise UsageError(
            f"{dataset!r} cannot load datasets; expected a callable, or 'module:attribute'"
        )
    if not replace and (name in _FACTORIES or _is_source(name)):
        raise UsageError(
            f"The prefix {name!r} already exists", hint="choose another, or pass replace=True"
        )
    _FACTORIES[name] = dataset


def _is_source(name: str) -> bool:
    from offline_data.pipeline.ingest import known_names

    try:
        known_names(name)
    except NotFoundError:
        return False
    except MissingDependencyError:
        pass
    return True
