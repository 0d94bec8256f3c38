"""`load_dataset` and `open_dataset`: from an id, or a directory, to a buffer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.registered import registered_first
from offline_data.config import Settings, resolve_settings, user_path
from offline_data.errors import UsageError
from offline_data.ids import looks_like_path, parse_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import torch

    from offline_data.buffers.buffer import Transform
    from offline_data.buffers.derived.base import Derived
    from offline_data.buffers.keys import KeyLike
    from offline_data.buffers.samplers import Sampler
    from offline_data.buffers.writers import ImmutableDatasetWriter
    from offline_data.store.layout import LayoutName

Download: TypeAlias = Literal["force"] | bool
"""Whether to bring what is not here; `"force"`: bring it again."""


def open_dataset(
    path: str | os.PathLike[str], batch_size: int | None = None, **options: Any
) -> BaseDatasetExperienceReplay:
    """Open a dataset directory; nothing is read but its manifest.

    Args:
        path: The directory.
        batch_size: Rows of a batch where `sample` is not told.
        **options: See `BaseDatasetExperienceReplay`, which also says what is raised.
    """
    return BaseDatasetExperienceReplay(path, batch_size, **options)


@registered_first
def load_dataset(
    id: str | os.PathLike[str],
    batch_size: int | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    download: Download = True,
    revision: str | None = None,
    layout: LayoutName | None = None,
    sampler: Sampler | Callable[[], Sampler] | None = None,
    writer: ImmutableDatasetWriter | None = None,
    collate_fn: Transform | None = None,
    pin_memory: bool = False,
    prefetch: int | None = None,
    transform: Transform | None = None,
    split_trajs: bool = False,
    device: torch.device | str | int | None = None,
    in_memory: bool = False,
    keys: Iterable[KeyLike] | None = None,
    derived: Iterable[Derived] = (),
    decode_text: bool = False,
    view: str | os.PathLike[str] | None = None,
) -> BaseDatasetExperienceReplay:
    """Load a dataset, brought to this disk first if need be.

    Args:
        id: `source:name[@revision]`, or the path of a dataset directory; or `prefix:name` where
            the prefix was given to `register_dataset`, whose function then gets everything else.
        batch_size: Rows of a batch where `sample` is not told.
        root: Folder of all datasets; None: `OFFLINE_DATA_HOME`, else the config file's, else the
            user's cache folder.
        download: True: fetch and convert what is not here; False: only what is here; `"force"`:
            fetch and convert again.
        revision: Revision of the source; None: the newest here, else the source's newest.
        layout: `compact` or `ted`; None: as it is, `compact` where it is converted now.
        sampler: `RandomSampler` (the default), `SamplerWithoutReplacement`, or one of your own.
        writer: None, or an `ImmutableDatasetWriter`.
        collate_fn: Called with every batch, before `transform`.
        pin_memory: Whether batches lie in (or go through) page-locked memory.
        prefetch: Batches made ahead by threads; rows and their order stay the same.
        transform: Called with every batch.
        split_trajs: Rows are whole episodes, padded to the longest.
        device: Device of batches.
        in_memory: Whether the whole set is copied to `device` once, and batches are made there.
        keys: Leaves that batches have, a parent standing for all below it; None: all.
        derived: Leaves computed for a batch from other rows (`n_step(3, 0.99)`, …), in this order.
        decode_text: Whether text leaves are strings; slow.
        view: Name, or file, of a view that was saved of it: the buffer is that view.

    Returns:
        A buffer of transitions in TED, see `BaseDatasetExperienceReplay`.

    Raises:
        NotFoundError, OfflineError, NetworkError, AuthError: It cannot be had.
        IntegrityError: Its files, or the directory, are not what they should be.
        NoSpaceError, AccessError: The disk.
        UsageError: Invalid argument.
    """
    settings = resolve_settings(root=root)
    path = bring(id, settings, download=download, revision=revision, layout=layout)
    dataset = BaseDatasetExperienceReplay(
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
        decode_text=decode_text,
    )
    return dataset if view is None else dataset.saved_view(view, sampler=dataset.sampler)


def bring(
    id: str | os.PathLike[str],
    settings: Settings,
    *,
    download: Download,
    revision: str | None = None,
    layout: LayoutName | None = None,
) -> Path:
    """Return the directory of a dataset, brought here first if need be; see `load_dataset`."""
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
        text = str(parse_id(text).at(revision))
    return ensure(text, settings=settings, download=download, layout=layout)
