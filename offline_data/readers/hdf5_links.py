"""The datasets that lie in an HDF5 file itself; what leads out of it is named, never followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from offline_data.errors import FormatError
from offline_data.readers.hdf5_storage import guarded, place_of
from offline_data.readers.hdf5_tree import DEEPEST, MOST_NODES, members

if TYPE_CHECKING:
    import numpy as np


def datasets_in(file: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Find every dataset of an open file, at any depth.

    Soft links are not followed either: what they lead to is found under its own name, or not at
    all. Groups are entered once, under the first of their names.

    Args:
        file: An open `h5py.File`.

    Returns:
        The `h5py.Dataset`s by name, parts joined by `/`, in the order of their names; and the
        target of every link that was not followed, by its name.

    Raises:
        FormatError: A name is not UTF-8, or there are more than `MOST_NODES` of them, or `DEEPEST`
            groups within each other.
        OSError: Something is there, but damaged.
    """
    import h5py
    from h5py import h5d, h5g, h5o

    found: dict[str, Any] = {}
    links: dict[str, str] = {}
    root = file["/"].id
    seen, waiting = {root}, [("", root)]
    while waiting:
        prefix, node = waiting.pop()
        if isinstance(node, h5d.DatasetID):
            found[prefix] = h5py.Dataset(node)
            continue
        if prefix.count("/") >= DEEPEST:
            raise FormatError(f"{place_of(node)} lies more than {DEEPEST} groups deep")
        below = []
        for name, target in members(node):
            path = f"{prefix}/{name}" if prefix else name
            if target is not None:
                links[path] = target
                continue
            try:
                child = h5o.open(node, name.encode(), guarded())
            except (KeyError, ValueError) as error:
                raise OSError(f"{path!r} exists but cannot be opened: {error}") from error
            if isinstance(child, h5d.DatasetID):
                below.append((path, child))
            elif isinstance(child, h5g.GroupID) and child not in seen:
                seen.add(child)
                below.append((path, child))
            if len(found) + len(links) + len(waiting) + len(below) > MOST_NODES:
                raise FormatError(f"{place_of(root)} has more than {MOST_NODES:,} datasets")
        waiting += reversed(below)
    return found, links


def lies_elsewhere(dataset: Any) -> bool:
    """Return True if reading a dataset would open files that the file names."""
    if dataset.is_virtual:
        return any(source.file_name != "." for source in dataset.virtual_sources())
    return dataset.external is not None


def dtype_of(dataset: Any) -> np.dtype[Any] | None:
    """Return the item type of a dataset, or None where numpy does not have it."""
    try:
        found: np.dtype[Any] = dataset.dtype
    except TypeError:  # h5py's answer to types that it cannot map
        return None
    return found
