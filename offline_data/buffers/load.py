"""`load_dataset` and its like: from an id, a directory or a saved view to a buffer."""

from __future__ import annotations

import functools
import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

from offline_data.buffers.dataset import BaseDatasetExperienceReplay, DatasetView
from offline_data.buffers.views.saved import dataset_beside, read_view
from offline_data.config import Settings, resolve_settings, user_path
from offline_data.errors import MissingDependencyError, NotFoundError, UsageError
from offline_data.ids import looks_like_path, parse_id
from offline_data.store.layout import MANIFEST
from offline_data.store.library import find, how_to_get, parse_known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from offline_data.buffers.buffer import Transform
    from offline_data.buffers.derived.base import Derived
    from offline_data.buffers.keys import KeyLike
    from offline_data.buffers.samplers import Sampler
    from offline_data.buffers.writers import Writer
    from offline_data.store.layout import LayoutName

Download: TypeAlias = Literal["force"] | bool
"""Whether to download and convert what is not on this disk; `"force"`: do so again."""

Factory: TypeAlias = "Callable[..., Any]"
"""Called as `factory(name, **options)` for the id `prefix:name`; returns a buffer."""

Loader = TypeVar("Loader", bound="Callable[..., Any]")

_FACTORIES: dict[str, Factory | str] = {}

_DATA_OPTIONS = (
    *("root", "download", "revision", "layout", "view"),
    *("keys", "device", "derived", "decode_text", "decode", "split_trajs"),
)
"""Options of `load_dataset` that say what the data are; the others are TorchRL's buffer's."""


def open_dataset(
    path: str | os.PathLike[str], batch_size: int | None = None, **options: Any
) -> BaseDatasetExperienceReplay:
    """Open a dataset directory, reading its manifest only; options are those of `load_dataset`."""
    return BaseDatasetExperienceReplay(path, batch_size, **options)


def _registered_first(load: Loader) -> Loader:
    """Let `load(id, …)` ask what was registered for the prefix of `id`, before anything else."""

    @functools.wraps(load)
    def loads(id: Any = None, *args: Any, dataset_id: Any = None, **options: Any) -> Any:
        if (id is None) == (dataset_id is None):
            raise UsageError("load_dataset takes one id, also as dataset_id=…")
        id = dataset_id if id is None else id
        prefix, colon, name = id.partition(":") if isinstance(id, str) else ("", "", "")
        factory = _FACTORIES.get(prefix.strip().lower()) if colon else None
        if factory is None or looks_like_path(id):
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


@_registered_first
def load_dataset(
    id: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    *,
    dataset_id: str | None = None,  # noqa: ARG001 - `_registered_first` makes it `id`
    root: str | os.PathLike[str] | None = None,
    download: Download = True,
    revision: str | None = None,
    layout: LayoutName | None = None,
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
    decode_text: bool = False,
    decode: bool = True,
    view: str | os.PathLike[str] | None = None,
) -> BaseDatasetExperienceReplay:
    """Load a dataset, downloaded and converted first if need be.

    Args:
        id: `source:name[@revision]`, or the path of a dataset directory; or `prefix:name` where
            the prefix was given to `register_dataset`, whose function then gets everything else.
        dataset_id: TorchRL's name for `id`.
        batch_size: Rows of a batch where `sample` is not told.
        root: Folder of all datasets; None: `OFFLINE_DATA_HOME`, else the config file's, else the
            user's cache folder.
        download: True: download and convert what is not here; False: only what is here;
            `"force"`: download and convert again.
        revision: Revision of the source; None: the newest here, else the source's newest.
        layout: `compact` or `ted`; None: as it is, `compact` where it is converted now.
        view: Name, or file, of a view that was saved of it: the buffer is that view.
        sampler: `RandomSampler` (the default), `SamplerWithoutReplacement`, or one of your own.
        writer: Any; a dataset is written by none.
        collate_fn: Called with every batch, before `transform`.
        pin_memory: Whether batches lie in (or go through) page-locked memory.
        prefetch: Batches made ahead by threads; rows and their order stay the same.
        transform: Called with every batch.
        split_trajs: Rows are whole episodes, padded to the longest: batches are `[B, T]`, with
            `mask`, `traj_ids` and `dataset_index`, the transitions.
        device: Device of batches.
        in_memory: Whether the whole set is copied to `device` once, and batches are made there.
        keys: Leaves that batches have, a parent standing for all below it; None: all.
        derived: Leaves computed for a batch from other rows: `n_step(3, 0.99)`, or a list of such
            functions, in this order.
        decode_text: Whether text leaves are strings (`NonTensorStack`); slow.
        decode: Whether encoded images are tensors of pixels, decoded in `torch.get_num_threads`
            threads; False: the `bytes` of each JPEG or PNG file (`NonTensorStack`; None where
            padded).

    Returns:
        A buffer of transitions in TED, see `BaseDatasetExperienceReplay`.

    Raises:
        NotFoundError, OfflineError, NetworkError, AuthError: It cannot be had.
        IntegrityError: Its files, or the directory, are not what they should be.
        NoSpaceError, AccessError: The disk.
        UsageError: Invalid argument.
    """
    settings = resolve_settings(root=root)
    dataset = BaseDatasetExperienceReplay(
        ensure_dataset(id or "", settings, download=download, revision=revision, layout=layout),
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
        decode_text=decode_text,
        decode=decode,
    )
    return dataset if view is None else dataset.saved_view(view, sampler=dataset.sampler)


def ensure_dataset(
    id: str | os.PathLike[str],
    settings: Settings,
    *,
    download: Download,
    revision: str | None = None,
    layout: LayoutName | None = None,
) -> Path:
    """Return the directory of a dataset, downloaded and converted if need be; see `load_dataset`."""
    from offline_data.ingest import ensure

    if download not in {True, False, "force"}:
        raise UsageError(f"download is {download!r}; expected True, False or 'force'")
    # A path object is a path, also where its text could be an id.
    text = id if isinstance(id, str) else os.fspath(user_path(id, "the dataset"))
    if revision is not None:
        if looks_like_path(text):
            raise UsageError(
                f"{text} is one revision of a dataset; revision={revision!r} is for ids"
            )
        text = str(parse_known(text, settings.root).at(revision))
    return ensure(text, settings=settings, download=download, layout=layout)


def open_view(
    path: str | os.PathLike[str],
    batch_size: int | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    **options: Any,
) -> DatasetView:
    """Open a file that `DatasetView.save` wrote, and its dataset with it.

    The dataset is looked for beside the view, then where it was when the view was saved, then
    under the root; nothing is downloaded. For `root` see `load_dataset`, for `options`
    `BaseDatasetExperienceReplay`.

    Raises:
        NotFoundError: There is no such file, or the dataset is not on this disk.
        IntegrityError: It is damaged, or its dataset is not what it was.
    """
    file = Path(path).expanduser().absolute()
    saved = read_view(file)
    places = [place for place in (dataset_beside(file), Path(saved.path)) if place is not None]
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
    dataset = BaseDatasetExperienceReplay(folder, batch_size, **options)
    return dataset.saved_view(file, sampler=dataset.sampler)


def torchrl_dataset(id: str, **options: Any) -> Any:
    """Load a dataset as TorchRL's buffer: `load_dataset(id, …).to_torchrl(…)`.

    After `register_dataset(…)`, `torchrl.data.datasets.load_dataset("offline_data:" + id)` calls
    it. Options are those of `load_dataset` that say what the data are, and those of `to_torchrl`.
    """
    own = {name: options.pop(name) for name in _DATA_OPTIONS if name in options}
    return load_dataset(id, **own).to_torchrl(**options)


def register_dataset(prefix: str, dataset: Factory | str, *, replace: bool = False) -> None:
    """Make `load_dataset("prefix:name", **options)` call `dataset("name", **options)`.

    TorchRL's own `torchrl.data.datasets.load_dataset("offline_data:" + id)` loads whatever
    `load_dataset(id)` here does, from 0.14 on: importing this package registers the prefix. For
    adapters of data see `offline_data.sources`.

    Args:
        prefix: Not empty, without `:`; lower and upper case are the same.
        dataset: Callable, or `"module:attribute"`, imported on first use.
        replace: Whether it may take the place of what was registered before, or of a source.

    Raises:
        UsageError: A prefix that is taken or invalid; neither something to call nor a name.

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
        raise UsageError(f"The prefix {name!r} is taken", hint="choose another, or replace=True")
    _FACTORIES[name] = dataset


def _is_source(name: str) -> bool:
    from offline_data.ingest import known_names

    try:
        known_names(name)
    except NotFoundError:
        return False
    except MissingDependencyError:
        pass
    return True
