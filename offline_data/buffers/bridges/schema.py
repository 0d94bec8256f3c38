"""Zero-initialised TensorDicts from a schema, in files, in one HDF5 file, or in shared memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from tensordict import PersistentTensorDict, TensorDict

from offline_data.base.errors import UsageError
from offline_data.base.files import disk_errors
from offline_data.episode.fields import join_key
from offline_data.rows.indexing import positive
from offline_data.rows.keys import KeyLike, as_key

if TYPE_CHECKING:
    Leaf: TypeAlias = tuple[tuple[int, ...], torch.dtype]

_DTYPES = {name: dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)}

Backend = Literal["memmap", "h5", "shared"]  # one file per feature; one HDF5 file; shared memory


def from_schema(
    schema: Mapping[KeyLike, tuple[Sequence[int], Any]],
    backend: Backend = "memmap",
    *,
    path: str | os.PathLike[str] | None = None,
    rows: int,
) -> TensorDict | PersistentTensorDict:
    """Return a TensorDict of `rows` rows of zeros, in memory or in sparse files.

    Args:
        schema: Shape of one row and dtype (of torch or numpy, or its name) of each feature.
        backend: `"memmap"`: a folder that `TensorDict.load_memmap` opens, locked: features are
            written in place; `"h5"`: a file for `PersistentTensorDict.from_h5`; `"shared"`: memory.
        path: An absent or empty folder, or an absent file; not for `"shared"`.
        rows: Batch size, at least 1.

    Raises:
        UsageError: Invalid schema, path or backend.
        AccessError, NoSpaceError: Disk errors.

    Example:
        >>> data = from_schema({"next.reward": ([1], "float32")}, "shared", rows=3)
        >>> data["next", "reward"].shape, data.is_shared()
        (torch.Size([3, 1]), True)
    """
    leaves = {as_key(key): _leaf(key, spec) for key, spec in schema.items()}
    count = positive(rows, "rows")
    if backend not in get_args(Backend):
        raise UsageError(f"backend is {backend!r}; expected one of {', '.join(get_args(Backend))}")
    if (path is None) != (backend == "shared"):
        given = "no path" if path is None else f"path={str(path)!r}"
        raise UsageError(
            f"backend={backend!r} was given {given}", hint="path=… is for memmap and h5"
        )
    if path is None:
        made = TensorDict({}, batch_size=[count])
        for key, (shape, dtype) in leaves.items():
            made.set(key, torch.zeros((count, *shape), dtype=dtype))
        return made.share_memory_()
    place = Path(path).expanduser().absolute()
    if place.exists() and (place.is_file() or backend == "h5" or any(place.iterdir())):
        raise UsageError(f"{place} already exists and would be overwritten")
    with disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        if backend == "h5":
            import h5py

            with h5py.File(place, "x") as file:
                for key, (shape, dtype) in leaves.items():
                    numpy_dtype = torch.zeros(0, dtype=dtype).numpy().dtype
                    file.create_dataset(join_key(key), (count, *shape), numpy_dtype)
            return PersistentTensorDict(batch_size=[count], filename=place, mode="r+")
        made = TensorDict({}, batch_size=[count]).memmap_(place)
        for key, (shape, dtype) in leaves.items():
            made.make_memmap(key, shape=torch.Size((count, *shape)), dtype=dtype)
        return made


def _leaf(key: KeyLike, spec: Any) -> Leaf:
    try:
        shape, dtype = spec
        if not isinstance(dtype, torch.dtype):
            dtype = _DTYPES[np.dtype(dtype).name]
        return tuple(int(size) for size in shape), dtype
    except (TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"The schema of {join_key(as_key(key))} is {spec!r}; expected (shape of a row, dtype)",
            hint='for example {"observation": ([17], "float32")}',
        ) from error
