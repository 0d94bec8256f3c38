"""Files of saved views: location, and reading and writing without executing anything.

```
<root>/<source>/<dataset>/<revision>/                    the dataset directory
<root>/<source>/<dataset>/.views/<revision>/NAME.npz     its saved views
```

A file is a numpy `.npz`: `about`, the bytes of a JSON text (`SavedView`'s fields except the arrays,
and `format_version`), and int64 arrays: `episodes` for a view of whole episodes; or `first` and
`lengths` of contiguous pieces of rows; or `rows`. Numbers are the dataset's.
"""

from __future__ import annotations

import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from offline_data.base.errors import (
    AccessError,
    IntegrityError,
    NewerFormatError,
    NotFoundError,
    UsageError,
)
from offline_data.base.files import check_links, disk_errors, write_durably
from offline_data.base.json import as_unicode, parse_json
from offline_data.rows.selection import Pieces, RowList, RowMap, of_runs, smallest, whole_of
from offline_data.rows.storage import Storage
from offline_data.rows.trajectories import TrajectoryStorage
from offline_data.store.layout import VIEWS
from offline_data.store.manifest import HistoryStep, identity_of
from offline_data.store.reader import DatasetReader

VIEW_VERSION = 1  # version of the view format that this package writes, and the newest it reads

SUFFIX = ".npz"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+\-]*\Z")
_DAMAGED = (  # errors raised by numpy, zipfile and json for an invalid file
    *(struct.error, zipfile.BadZipFile, zlib.error, EOFError, ValueError, LookupError, TypeError),
    *(AttributeError, ArithmeticError, MemoryError, RuntimeError, SyntaxError),
)
_KINDS = ({"episodes"}, {"first", "lengths"}, {"rows"})


@dataclass(frozen=True)
class SavedView:
    """Contents of a view file."""

    dataset: str  # its id with its revision
    path: str  # the dataset directory when the view was saved
    identity: str  # see `identity_of`
    arrays: Mapping[str, Tensor]  # `episodes`; or `first` and `lengths`; or `rows`: int64
    recipe: tuple[Mapping[str, Any], ...] = ()  # steps that selected the rows, if known


def place_of(dataset: Path, name: str | os.PathLike[str]) -> Path:
    """Return the file of a view by name, or the path itself; raises `UsageError`."""
    if isinstance(name, str) and _NAME.match(name) and not name.endswith(SUFFIX):
        return dataset.parent / VIEWS / dataset.name / f"{name}{SUFFIX}"
    path = Path(name).expanduser().absolute()
    if path.suffix != SUFFIX:
        raise UsageError(
            f"{name!r} is not a valid name for a view: expected letters, digits and . _ + -, or the path of "
            f"a file that ends in {SUFFIX}"
        )
    return path


def dataset_next_to(path: Path) -> Path | None:
    """Return the dataset directory of a view in its standard location, else None."""
    if path.parent.parent.name != VIEWS:
        return None
    return path.parent.parent.parent / path.parent.name


def save_view(
    storage: Storage,
    reader: DatasetReader,
    name: str | os.PathLike[str],
    recipe: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Write the file of a view atomically; see `DatasetView.save`."""
    path = place_of(reader.path, name)
    whole, rows = whole_of(storage)
    runs, pieces = whole.runs(), rows.cut(whole.runs())
    run = runs.of(pieces.first)
    in_full = (runs.starts[run] == pieces.first) & (runs.lengths[run] == pieces.lengths)
    if isinstance(whole, TrajectoryStorage):  # its rows are the episodes
        arrays = {"episodes": rows.at(torch.arange(rows.count))}
    elif bool(in_full.all()):
        arrays = {"episodes": run}
    elif isinstance(rows, RowList):
        arrays = {"rows": rows.rows}
    else:
        arrays = {"first": rows.first, "lengths": rows.lengths}
    about = {
        "format_version": VIEW_VERSION,
        "dataset": reader.manifest.id,
        "path": str(reader.path),
        "identity": identity_of(reader.manifest),
        **({"recipe": [dict(step) for step in recipe]} if recipe else {}),
    }
    text = as_unicode(json.dumps(about, ensure_ascii=False)).encode()
    memory = io.BytesIO()
    content: dict[str, Any] = {name: array.numpy() for name, array in arrays.items()}
    np.savez(memory, about=np.frombuffer(text, np.uint8), **content)
    check_links(reader.path.parent, path)
    with disk_errors(path.parent):
        write_durably(path, memory.getvalue())
    return path


def read_view(path: Path) -> SavedView:
    """Read a file written by `save_view`; executes nothing in it.

    Raises `NotFoundError`, `AccessError`, `NewerFormatError` for a newer version's, and
    `IntegrityError` if it is not a view, or damaged.
    """
    try:
        if path.exists() and not path.is_file():  # opening a FIFO would block forever
            raise ValueError("it is not a file")
        with path.open("rb") as file:
            with zipfile.ZipFile(file) as entries:  # a small file must not expand to a large array
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.infolist()):
                    raise ValueError("its arrays are compressed; those of a view never are")
            file.seek(0)
            with np.load(file, allow_pickle=False) as content:
                arrays = {name: content[name] for name in content.files}
        about = parse_json(arrays.pop("about").tobytes(), str(path))
        if about["format_version"] > VIEW_VERSION:
            raise NewerFormatError(
                f"{path} is a view of format {about['format_version']}; this version of "
                f"offline-data reads up to {VIEW_VERSION}"
            )
        dataset, place, identity = (about[name] for name in ("dataset", "path", "identity"))
        if not all(isinstance(text, str) for text in (dataset, place, identity)):
            raise ValueError("it does not name its dataset")
        recipe = about.get("recipe", [])
        if any(not isinstance(step["step"], str) for step in recipe):
            raise ValueError("its recipe is not a list of steps")
        return SavedView(dataset, place, identity, _check_arrays(arrays), tuple(recipe))
    except FileNotFoundError:
        raise NotFoundError(f"There is no view {path}") from None
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror or error}") from error
    except _DAMAGED as error:
        raise IntegrityError(f"{path} is not a view, or is damaged: {error}") from error


def _check_arrays(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    if set(arrays) not in _KINDS:
        raise ValueError(f"it has the arrays {sorted(arrays)}")
    if any(array.dtype != np.int64 or array.ndim != 1 for array in arrays.values()):
        raise ValueError("row numbers are not one-dimensional int64")
    if len({array.shape for array in arrays.values()}) != 1:
        raise ValueError("its arrays differ in length")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def saved_rows(
    storage: Storage, reader: DatasetReader, name: str | os.PathLike[str]
) -> tuple[RowMap, HistoryStep]:
    """Return the rows of a view of this dataset, and the step of the history that made it.

    Raises like `find_view`, and `UsageError` for a view of transitions where rows are episodes.
    """
    found, step = find_view(reader, name)
    whole = whole_of(storage)[0]
    runs = whole.runs()
    everything = Pieces(runs.starts, runs.lengths)
    if not isinstance(found, SavedView):
        return of_runs(everything, runs, torch.from_numpy(np.flatnonzero(found))), step
    arrays, path = found.arrays, place_of(reader.path, name)
    if "episodes" in arrays:
        _check_range(arrays["episodes"], 0, len(runs.starts), path)
        return of_runs(everything, runs, arrays["episodes"]), step
    if isinstance(whole, TrajectoryStorage):
        raise UsageError(
            f"The view {path} is of transitions, and with split_trajs=True rows are whole episodes",
            hint="omit split_trajs",
        )
    if "rows" in arrays:
        _check_range(arrays["rows"], 0, everything.count, path)
        return smallest(RowList(arrays["rows"]), runs), step
    first, lengths = arrays["first"], arrays["lengths"]
    _check_range(first, 0, everything.count, path)
    run = runs.of(first)
    _check_range(lengths, 1, runs.starts[run] + runs.lengths[run] - first + 1, path)
    return smallest(Pieces(first, lengths), runs), step


def find_view(
    reader: DatasetReader, name: str | os.PathLike[str]
) -> tuple[SavedView | NDArray[Any], HistoryStep]:
    """Return a view of this dataset: saved, by name or path, else the episodes of its filter key.

    A filter key of the source (robomimic's `mask/train`) is a boolean column of the episodes. The
    step of the history that made the view is returned with it. Raises like `read_view`, and
    `IntegrityError` for a view of another dataset.
    """
    manifest = reader.manifest
    masks = {
        "/".join(key[1:]): marks
        for key, marks in reader.episodes.items()
        if key[0] == "mask" and marks.dtype == bool and marks.ndim == 1
    }
    marks = masks.get(os.fspath(name))
    if marks is not None and not (_NAME.match(str(name)) and place_of(reader.path, name).exists()):
        recipe = ({"step": "filter", "where": f"mask.{str(name).replace('/', '.')}"},)
        return marks, HistoryStep("view", str(name), (manifest.id,), recipe=recipe)
    path = place_of(reader.path, name)
    if not path.exists():
        folder = reader.path.parent / VIEWS / reader.path.name
        names = sorted({file.stem for file in folder.glob(f"*{SUFFIX}")} | masks.keys())
        raise NotFoundError(
            f"There is no view {path}",
            hint=f"views of {manifest.id}: {', '.join(names) or 'none'}",
        )
    saved = read_view(path)
    if saved.identity != identity_of(manifest):
        same_name = " with other rows or episodes than before" * (saved.dataset == manifest.id)
        raise IntegrityError(
            f"The view {path} is of {saved.dataset}, and {reader.path} is {manifest.id}{same_name}: "
            "its row numbers would refer to other rows",
            hint=f"save it again: ds.filter(…).save({str(path)!r})",
        )
    return saved, HistoryStep("view", Path(name).name, (saved.dataset,), recipe=saved.recipe)


def _check_range(numbers: Tensor, low: int, high: Tensor | int, path: Path) -> None:
    if bool(((numbers < low) | (numbers >= torch.as_tensor(high))).any()):
        raise IntegrityError(f"{path} is damaged: it has numbers out of the dataset's range")
