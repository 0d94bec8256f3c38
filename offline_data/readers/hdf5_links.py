"""The datasets that lie in an HDF5 file itself; what leads out of it is named, never followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def datasets_in(file: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Find every dataset of an open file, at any depth.

    Soft links are not followed either: what they lead to is found under its own name, or not at
    all.

    Args:
        file: An open `h5py.File`.

    Returns:
        The `h5py.Dataset`s by name, parts joined by `/`, in the order of the file; and the target
        of every link that was not followed, by its name.
    """
    found: dict[str, Any] = {}
    links: dict[str, str] = {}
    _walk(file, "", {file["/"].id}, found, links)
    return found, links


def _walk(
    group: Any, prefix: str, seen: set[Any], found: dict[str, Any], links: dict[str, str]
) -> None:
    """Add what is in a group; groups in `seen` are not entered, as hard links can make a ring."""
    import h5py

    for name in group:
        link = group.get(name, getlink=True)
        if not isinstance(link, h5py.HardLink):
            links[prefix + name] = link.path
            continue
        item = group[name]
        if isinstance(item, h5py.Dataset):
            found[prefix + name] = item
        elif isinstance(item, h5py.Group) and item.id not in seen:
            seen.add(item.id)
            _walk(item, f"{prefix}{name}/", seen, found, links)


def lies_elsewhere(dataset: Any) -> bool:
    """Tell whether reading a dataset would open files that the file names."""
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
