"""Saving a view and opening it again: only for the dataset that it was made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from offline_data.buffers.trajectories import TrajectoryStorage
from offline_data.buffers.views.choosing import whole_of
from offline_data.buffers.views.files import (
    SavedView,
    dataset_beside,
    identity_of,
    names_beside,
    place_of,
    read_view,
    write_view,
)
from offline_data.buffers.views.pieces import Pieces, RowList, of_runs, smallest
from offline_data.config import resolve_settings
from offline_data.errors import IntegrityError, NotFoundError, UsageError
from offline_data.ids import parse_id
from offline_data.store.layout import MANIFEST
from offline_data.store.library import find, how_to_get

if TYPE_CHECKING:
    import os

    from torch import Tensor

    from offline_data.buffers.dataset import BaseDatasetExperienceReplay
    from offline_data.buffers.samplers.base import Runs
    from offline_data.buffers.views.pieces import RowMap
    from offline_data.buffers.views.view import DatasetView


def save_view(view: DatasetView, name: str | os.PathLike[str]) -> Path:
    """Write the file of a view; see `DatasetView.save`."""
    path = place_of(view.data_path, name)
    whole, rows = whole_of(view.storage)
    manifest = view._steps_storage.reader.manifest
    arrays = _arrays(rows, whole.runs())
    if isinstance(whole, TrajectoryStorage):  # its rows are the episodes
        arrays = {"episodes": view.rows}
    write_view(path, SavedView(manifest.id, str(view.data_path), identity_of(manifest), arrays))
    return path


def _arrays(rows: RowMap, runs: Runs) -> dict[str, Tensor]:
    pieces = rows.cut(runs)
    run = runs.of(pieces.first)
    if bool(
        (runs.starts[run] == pieces.first).all() and (runs.lengths[run] == pieces.lengths).all()
    ):
        return {"episodes": run}
    if isinstance(rows, RowList):
        return {"rows": rows.rows}
    return {"first": rows.first, "lengths": rows.lengths}


def saved_rows(buffer: BaseDatasetExperienceReplay, name: str | os.PathLike[str]) -> RowMap:
    """Return the rows of a view that was saved of this dataset.

    Raises:
        NotFoundError, AccessError, NewerFormatError, IntegrityError: It cannot be read.
        IntegrityError: It is of another dataset.
        UsageError: It is of rows, and those of the buffer are whole episodes.
    """
    path = place_of(buffer.data_path, name)
    if not path.exists():
        names = ", ".join(names_beside(buffer.data_path)) or "none"
        raise NotFoundError(
            f"There is no view {path}", hint=f"views saved of {buffer.manifest.id}: {names}"
        )
    saved = read_view(path)
    _check_same(saved, buffer, path)
    whole, _ = whole_of(buffer.storage)
    if isinstance(whole, TrajectoryStorage) and "episodes" not in saved.arrays:
        raise UsageError(
            f"The view {path} is of transitions, and with split_trajs=True rows are whole episodes",
            hint="leave split_trajs out",
        )
    return _rows(saved, whole.runs(), path)


def _check_same(saved: SavedView, buffer: BaseDatasetExperienceReplay, path: Path) -> None:
    found = buffer._steps_storage.reader.manifest
    if saved.identity == identity_of(found):
        return
    same_name = " with other rows or episodes than then" if saved.dataset == found.id else ""
    raise IntegrityError(
        f"The view {path} is of {saved.dataset}, and {buffer.data_path} is {found.id}{same_name}: "
        "its row numbers would mean other rows",
        hint=f"make it again: ds.filter(…).save({str(path)!r})",
    )


def _rows(saved: SavedView, runs: Runs, path: Path) -> RowMap:
    everything = Pieces(runs.starts, runs.lengths)
    arrays = saved.arrays
    if "episodes" in arrays:
        _check_range(arrays["episodes"], 0, len(runs.starts), path)
        return of_runs(everything, runs, arrays["episodes"])
    if "rows" in arrays:
        _check_range(arrays["rows"], 0, everything.count, path)
        return smallest(RowList(arrays["rows"]), runs)
    first, lengths = arrays["first"], arrays["lengths"]
    _check_range(first, 0, everything.count, path)
    run = runs.of(first)
    _check_range(lengths, 1, runs.starts[run] + runs.lengths[run] - first + 1, path)
    return smallest(Pieces(first, lengths), runs)


def _check_range(numbers: Tensor, low: int, high: Tensor | int, path: Path) -> None:
    if bool(((numbers < low) | (numbers >= torch.as_tensor(high))).any()):
        raise IntegrityError(f"{path} is damaged: it has numbers that the dataset does not have")


def open_view(
    path: str | os.PathLike[str],
    batch_size: int | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    **options: Any,
) -> DatasetView:
    """Open a saved view, and its dataset with it.

    The dataset is looked for beside the view, then where it was when the view was saved, then
    under the root; nothing is downloaded.

    Args:
        path: The file that `DatasetView.save` wrote.
        batch_size: Rows of a batch where `sample` is not told.
        root: Folder of all datasets; None: `OFFLINE_DATA_HOME`, else the user's cache folder.
        **options: See `BaseDatasetExperienceReplay`.

    Raises:
        NotFoundError: There is no such file, or the dataset is not on this disk.
        IntegrityError: It is damaged, or its dataset is not what it was.
        OfflineDataError: See `BaseDatasetExperienceReplay`.
    """
    from offline_data.buffers.dataset import BaseDatasetExperienceReplay

    file = Path(path).expanduser().absolute()
    folder = _dataset_of(file, read_view(file), root)
    dataset = BaseDatasetExperienceReplay(folder, batch_size, **options)
    return dataset.saved_view(file, sampler=dataset.sampler)


def _dataset_of(file: Path, saved: SavedView, root: str | os.PathLike[str] | None) -> Path:
    for place in (dataset_beside(file), Path(saved.path)):
        if place is not None and (place / MANIFEST).exists():
            return place
    dataset = parse_id(saved.dataset)
    settings = resolve_settings(root=root)
    entry = find(settings.root, dataset)
    if entry is None:
        raise NotFoundError(
            f"The view {file} is of {dataset}, which is neither in {saved.path} nor under "
            f"{settings.root}",
            hint=how_to_get(dataset),
        )
    return entry.path
