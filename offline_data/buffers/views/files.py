"""The file of a saved view: its place, and reading and writing it without executing anything.

```
<root>/<source>/<dataset>/<revision>/                    the dataset directory
<root>/<source>/<dataset>/.views/<revision>/NAME.npz     its saved views
```

A file is a numpy `.npz`: `about`, the bytes of a JSON text (`SavedView`'s fields but the arrays,
and `format_version`), and int64 arrays: `episodes` where the view is of whole episodes; or `first`
and `lengths` of pieces of rows that follow each other; or `rows`. Numbers are the dataset's.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch

from offline_data.disk import disk_errors, write_durably
from offline_data.errors import (
    AccessError,
    IntegrityError,
    NewerFormatError,
    NotFoundError,
    UsageError,
)
from offline_data.ids import looks_like_path
from offline_data.store.layout import EPISODES
from offline_data.strict_json import parse_json

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from torch import Tensor

    from offline_data.store.manifest import Manifest

VIEW_VERSION = 1
"""Version of the format of views that this package writes, and the newest it reads."""

VIEWS = ".views"
SUFFIX = ".npz"

_ABOUT = "about"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+\-]*\Z")
_DAMAGED = (
    *(
        struct.error,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        EOFError,
        zipfile.BadZipFile,
        zlib.error,
    ),
    *(ArithmeticError, MemoryError, RecursionError, NotImplementedError, RuntimeError, SyntaxError),
)
"""Errors of numpy, zipfile and json for a file that `write_view` did not write."""
_KINDS = ({"episodes"}, {"first", "lengths"}, {"rows"})


@dataclass(frozen=True)
class SavedView:
    """Contents of a view file."""

    dataset: str
    """The dataset's id with its revision."""
    path: str
    """The dataset directory at the time."""
    identity: str
    """See `identity_of`."""
    arrays: Mapping[str, Tensor]
    """`episodes`; or `first` and `lengths`; or `rows`: int64."""


def identity_of(manifest: Manifest) -> str:
    """Digest what makes a dataset the same, rows and episodes, in whichever layout it is.

    That is its id with the revision, its counts, and the digests of its table of episodes, which
    has their starts, lengths and returns.

    Returns:
        SHA-256 in hex.
    """
    files = {
        name: entry["sha256"]
        for name, entry in manifest.digests.items()
        if name.startswith(f"{EPISODES}/")
    }
    told = [manifest.id, dict(manifest.counts), files]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def place_of(dataset: Path, name: str | os.PathLike[str]) -> Path:
    """Return the file of a view of the dataset directory `dataset`.

    Args:
        dataset: The dataset directory.
        name: A name; or a path (with a separator or `.npz` in it), which is returned.

    Raises:
        UsageError: Neither.
    """
    if isinstance(name, str) and _NAME.match(name) and not name.endswith(SUFFIX):
        return dataset.parent / VIEWS / dataset.name / f"{name}{SUFFIX}"
    path = Path(name).expanduser().absolute()
    is_path = not isinstance(name, str) or looks_like_path(name) or path.suffix == SUFFIX
    if not is_path or path.suffix != SUFFIX:
        raise UsageError(
            f"{name!r} is not a valid name for a view: expected letters, digits and . _ + -, or the path of "
            f"a file that ends in {SUFFIX}"
        )
    return path


def dataset_beside(path: Path) -> Path | None:
    """Return the dataset directory of a view that lies in its place; None where it does not."""
    if path.parent.parent.name != VIEWS:
        return None
    return path.parent.parent.parent / path.parent.name


def names_beside(dataset: Path) -> list[str]:
    """List the names of views saved of a dataset directory."""
    return sorted(path.stem for path in (dataset.parent / VIEWS / dataset.name).glob(f"*{SUFFIX}"))


def write_view(path: Path, view: SavedView) -> None:
    """Write a file, whole or not at all.

    Raises:
        AccessError, NoSpaceError: It cannot be written.
    """
    about = {
        "format_version": VIEW_VERSION,
        "dataset": view.dataset,
        "path": view.path,
        "identity": view.identity,
    }
    text = json.dumps(about, ensure_ascii=False).encode()
    memory = io.BytesIO()
    arrays: dict[str, Any] = {name: array.numpy() for name, array in view.arrays.items()}
    np.savez(memory, about=np.frombuffer(text, np.uint8), **arrays)
    with disk_errors(path.parent):
        write_durably(path, memory.getvalue())


def read_view(path: Path) -> SavedView:
    """Read a file that `write_view` wrote; nothing in it is executed.

    Raises:
        NotFoundError: It is not there.
        AccessError: It may not be read.
        NewerFormatError: It was written by a newer version of this package.
        IntegrityError: It is not a view, or is damaged.
    """
    try:
        if path.exists() and not path.is_file():  # to open a FIFO would wait for ever
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            _refuse_compressed(file)
            with np.load(file, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
        about = parse_json(arrays.pop(_ABOUT).tobytes(), str(path))
        if about["format_version"] > VIEW_VERSION:
            raise NewerFormatError(
                f"{path} is a view of format {about['format_version']}; this version of "
                f"offline-data reads up to {VIEW_VERSION}"
            )
        dataset, place, identity = (about[name] for name in ("dataset", "path", "identity"))
        if not all(isinstance(text, str) for text in (dataset, place, identity)):
            raise ValueError("it does not name its dataset")
        return SavedView(dataset, place, identity, _checked(arrays))
    except FileNotFoundError:
        raise NotFoundError(f"There is no view {path}") from None
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise IntegrityError(f"{path} is not a view, or is damaged: {error}") from error


def _refuse_compressed(file: BinaryIO) -> None:
    """Raise `ValueError` where arrays take more room in memory than in the file."""
    with zipfile.ZipFile(file) as content:
        if any(one.compress_type != zipfile.ZIP_STORED for one in content.infolist()):
            raise ValueError("its arrays are compressed, which those of a view are not")
    file.seek(0)


def _checked(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    if set(arrays) not in _KINDS:
        raise ValueError(f"it has the arrays {sorted(arrays)}")
    sizes = {array.shape for array in arrays.values()}
    if any(array.dtype != np.int64 or array.ndim != 1 for array in arrays.values()):
        raise ValueError("row numbers are int64, one after the other")
    if len(sizes) != 1:
        raise ValueError(f"its arrays differ in length: {sizes}")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
