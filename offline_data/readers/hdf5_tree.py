"""HDF5 groups as trees of leaves, read through h5py's low-level interface.

The high-level interface costs 5 to 10 times as much for each small dataset, which is most of the
time it takes to read short episodes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.errors import FormatError
from offline_data.readers.hdf5_storage import check_size, check_storage, guarded, is_plain, place_of
from offline_data.readers.images import is_jpeg
from offline_data.readers.inflate import check_chunks, read_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


MOST_NODES = 10_000
"""Groups and leaves of one episode or flat file; most have about ten."""

DEEPEST = 32
"""Groups within groups."""

_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class TreeLeaf:
    """One dataset below a group, looked at but not read."""

    path: tuple[str, ...]
    """Names of the links from the group to the dataset."""
    rows: int | None
    """Length of the first axis; None where the dataset is one value."""
    dtype: np.dtype[Any]
    """Item type in this machine's byte order; `object` for text and pieces of unequal length."""
    shape: tuple[int, ...]
    """Shape of one row."""
    form: str
    """`array`, `text`, `bytes` (rows of uint8 of any length), or `other`: cannot be read."""


def walk(group: Any, path: tuple[str, ...] = ()) -> Iterator[TreeLeaf]:
    """Yield the leaves below an `h5py` group or dataset, in the order of their names.

    Raises:
        FormatError: A link is not a plain (hard) one, a name is not UTF-8, or there are more than
            `MOST_NODES` groups and leaves or `DEEPEST` levels, as where links make a ring.
        OSError: Something is there, but damaged.
    """
    waiting = [(path, group.id)]
    for _ in range(MOST_NODES):
        if not waiting:
            return
        place, node = waiting.pop()
        if isinstance(node, _low().h5d.DatasetID):
            yield look(node, place)
            continue
        if not isinstance(node, _low().h5g.GroupID):
            raise FormatError(f"{place_of(node)} is a named type; expected a group or dataset")
        if len(place) > DEEPEST:
            raise FormatError(f"{place_of(node)} lies more than {DEEPEST} groups deep")
        links = members(node)
        for name, target in links[: MOST_NODES + 1]:
            if target is not None:
                raise _not_followed(node, name, target)
        waiting += [((*place, n), _child(node, n)) for n, _ in reversed(links[:MOST_NODES])]
    raise FormatError(f"{place_of(group.id)} has more than {MOST_NODES:,} groups and leaves")


def _child(group: Any, name: str) -> Any:
    try:
        return _low().h5o.open(group, name.encode(), guarded())
    except (KeyError, ValueError) as error:  # how h5py reports damage: the name is there
        raise OSError(f"{name!r} exists but cannot be opened: {error}") from error


def _not_followed(group: Any, name: str, target: str) -> FormatError:
    return FormatError(
        f"{place_of(group)} has a link {name!r} to {target!r}, which is not followed",
        hint="`h5repack` or a copy with h5py makes one file of several",
    )


def look(dataset: Any, path: tuple[str, ...]) -> TreeLeaf:
    """Say what an open low-level dataset holds, without reading it."""
    shape = dataset.shape
    dtype = dataset.dtype
    form = _form(dtype)
    kept = dtype.newbyteorder("=") if form == "array" else np.dtype(object)
    return TreeLeaf(path, shape[0] if shape else None, kept, tuple(shape[1:] or ()), form)


def _form(dtype: np.dtype[Any]) -> str:
    import h5py

    if dtype.kind in "biufc":
        return "array"
    if dtype.kind == "S" or h5py.check_string_dtype(dtype) is not None:
        return "text"
    inner = h5py.check_vlen_dtype(dtype)
    return "bytes" if inner is not None and np.dtype(inner) == np.uint8 else "other"


@cache
def _low() -> Any:
    """Return h5py, imported once: an import statement in a hot function is not free."""
    import h5py

    return h5py


def open_group(parent: Any, path: tuple[str, ...], *, beside: bool = False) -> Any:
    """Open a group below a low-level group or file, or return None where there is none.

    Args:
        parent: The group or file.
        path: Names from there.
        beside: Whether the last name may be a link to a file in the same folder, by its plain name.

    Raises:
        FormatError: A link out of the file is on the way.
        OSError: It is there, but damaged, or no group.
    """
    try:
        found = _low().h5o.open(parent, _joined(path), guarded())
    except (KeyError, ValueError, TypeError) as error:
        found = _open_beside(parent, path) if beside else None
        if found is None:
            return _absent(parent, path, error)
    if not isinstance(found, _low().h5g.GroupID):
        raise OSError(f"{'/'.join(path)!r} exists but is not a group")
    return found


def _open_beside(parent: Any, path: tuple[str, ...]) -> Any:
    """Open what an external link leads to, or return None if that is not a file of this folder."""
    whole = _joined(path)
    if not parent.links.exists(whole) or (
        parent.links.get_info(whole).type != _low().h5l.TYPE_EXTERNAL
    ):
        return None
    name, place = parent.links.get_val(whole)
    file = Path(os.fsdecode(_low().h5f.get_name(parent))).parent / os.fsdecode(name)
    if file.name != os.fsdecode(name) or file.is_symlink() or not file.is_file():
        return None
    opened = _low().h5f.open(os.fsencode(file), _low().h5f.ACC_RDONLY)
    return _low().h5o.open(opened, place, guarded())


def open_dataset(parent: Any, path: tuple[str, ...]) -> Any:
    """Open a dataset below a low-level group or file, or return None where there is none.

    Raises:
        FormatError: A link out of the file is on the way.
        OSError: It is there, but damaged.
    """
    try:
        found = _low().h5o.open(parent, _joined(path), guarded())
    except (KeyError, ValueError, TypeError) as error:
        return _absent(parent, path, error)
    if not isinstance(found, _low().h5d.DatasetID):
        raise OSError(f"{'/'.join(path)!r} exists but cannot be opened: it is no dataset")
    return found


def _absent(parent: Any, path: tuple[str, ...], error: Exception) -> None:
    """Return if nothing is at `path`; raise if something is, but damaged or in another file.

    h5py reports all of these in the same way.
    """
    for end in range(1, len(path) + 1):
        name = _joined(path[:end])
        if not parent.links.exists(name):
            return
        if (target := _target(parent, name)) is not None:
            raise _not_followed(parent, name.decode(), target) from error
    raise OSError(f"{'/'.join(path)!r} exists but cannot be opened: {error}") from error


@lru_cache(maxsize=1024)
def _joined(path: tuple[str, ...]) -> bytes:
    return "/".join(path).encode()


def members(group: Any) -> list[tuple[str, str | None]]:
    """List the links of a low-level group or file by name.

    Returns:
        The name of each, and where it leads if it is not a plain (hard) link.

    Raises:
        FormatError: A name is not UTF-8.
    """
    names: list[tuple[bytes, bool]] = []
    hard = _low().h5l.TYPE_HARD
    group.links.iterate(lambda name, info: names.append((name, info.type == hard)), info=True)
    try:
        return [(name.decode(), None if plain else _target(group, name)) for name, plain in names]
    except UnicodeDecodeError as error:
        raise FormatError(f"{place_of(group)} has a name that is not UTF-8: {error}") from error


def _target(group: Any, name: bytes) -> str | None:
    """Say where a link leads if it is not a plain (hard) one: a file, a path, or unknown."""
    kind = group.links.get_info(name).type
    if kind == _low().h5l.TYPE_HARD:
        return None
    if kind not in {_low().h5l.TYPE_EXTERNAL, _low().h5l.TYPE_SOFT}:
        return "a place that only its writer knows"
    value = group.links.get_val(name)
    target = value[0] if isinstance(value, tuple) else value
    return str(target.decode("utf-8", "backslashreplace"))


def attribute_names(group: Any) -> list[bytes]:
    """List the attributes of a low-level group."""
    names: list[bytes] = []
    _low().h5a.iterate(group, names.append)
    return names


def integer_attribute(group: Any, name: str) -> int:
    """Read an integer attribute of a low-level group, whatever its width.

    Raises:
        TypeError: It is not a single number.
        ValueError: It is a number, but no integer.
    """
    h5t, attribute = _low().h5t, _low().h5a.open(group, name.encode())
    kind = attribute.get_type()
    # HDF5 writes as many values as the attribute has, wherever they go.
    one = attribute.get_storage_size() == kind.get_size()
    if not one or kind.get_class() not in {h5t.INTEGER, h5t.FLOAT}:
        raise TypeError(f"{name!r} is {attribute.dtype} of shape {attribute.shape}")
    if kind.get_class() == h5t.FLOAT:
        return _whole(attribute)
    value = np.empty((), np.int64)
    attribute.read(value, mtype=_memory_type(value.dtype))
    if value == _LARGEST:  # HDF5 clips a larger uint64 to this
        value = np.empty((), np.uint64)
        attribute.read(value)
    return int(value)


def read_scalar(dataset: Any) -> Any:
    """Read a low-level dataset of one value, as h5py gives it.

    Raises:
        FormatError: A rule of `hdf5_storage` is broken.
    """
    return _high(dataset)[()]


def _whole(attribute: Any) -> int:
    value = np.empty((), np.float64)
    attribute.read(value)
    number = float(value)
    if not number.is_integer():
        raise ValueError(f"{number!r} is not an integer")
    return int(number)


def read_into(dataset: Any, out: NDArray[Any]) -> None:
    """Read a whole low-level dataset of numbers into `out`, C-contiguous and of its shape.

    Values are converted to the dtype of `out`; the caller has made sure that this loses nothing.
    Rows that were never written and have no fill value stay as they are.

    Raises:
        FormatError: A chunk is damaged, or a rule of `hdf5_storage` is broken.
    """
    if is_plain(dataset):
        every = _low().h5s.ALL
        dataset.read(every, every, out, mtype=_memory_type(out.dtype))
    else:
        out[...] = read_rows(_low().Dataset(dataset), 0, len(out))


def read_numbers(dataset: Any) -> NDArray[Any]:
    """Read a whole low-level dataset of numbers, in this machine's byte order.

    Raises:
        FormatError: A chunk is damaged, or a rule of `hdf5_storage` is broken.
    """
    values = np.zeros(check_size(dataset), dataset.dtype.newbyteorder("="))
    read_into(dataset, values)
    return values


def read_if_fits(dataset: Any, out: NDArray[Any]) -> bool:
    """Read a whole low-level dataset into `out` if it has its dtype and number of values.

    HDF5 itself compares the numbers while reading. To ask for the shape first would take a
    quarter as long as reading does, which counts where episodes are short.

    Returns:
        Whether it was read; if not, `out` is as it was.

    Raises:
        FormatError: A chunk is damaged, or a rule of `hdf5_storage` is broken.
    """
    memory_type = _memory_type(out.dtype)
    if not dataset.get_type().equal(memory_type):
        return False
    if not is_plain(dataset):
        if dataset.shape != out.shape:
            return False
        out[...] = read_rows(_low().Dataset(dataset), 0, len(out))
        return True
    try:
        dataset.read(_memory_space(out.shape), _low().h5s.ALL, out, mtype=memory_type)
    except (ValueError, OSError):
        if dataset.shape != out.shape:
            return False
        raise
    return True


@lru_cache(maxsize=4096)
def _memory_space(shape: tuple[int, ...]) -> Any:
    return _low().h5s.create_simple(shape)


@lru_cache(maxsize=64)
def _memory_type(dtype: np.dtype[Any]) -> Any:
    from h5py import h5t

    return h5t.py_create(dtype)


def read_text(dataset: Any, where: str) -> NDArray[np.object_]:
    """Read a low-level dataset of strings as `str`, keeping its shape.

    Raises:
        FormatError: The bytes are not UTF-8, or a rule of `hdf5_storage` is broken.
    """
    raw = np.asarray(_high(dataset)[()])
    out = np.empty(raw.shape, dtype=object)
    try:
        for index, value in np.ndenumerate(raw):
            out[index] = value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise FormatError(f"{where} is not UTF-8 text: {error}") from error
    return out


def read_frames(dataset: Any) -> list[bytes]:
    """Read a low-level dataset of uint8 pieces, one a row: of any lengths, or `[rows, length]`.

    Raises:
        FormatError: A rule of `hdf5_storage` is broken.
    """
    return [np.asarray(row, dtype=np.uint8).tobytes() for row in _high(dataset)[()]]


def _high(dataset: Any) -> Any:
    """Return a low-level dataset as an `h5py.Dataset`, all of which may be read."""
    check_size(dataset)
    check_storage(dataset)
    whole = _low().Dataset(dataset)
    if whole.shape:
        check_chunks(whole, 0, len(whole))
    return whole


def first_frame(dataset: Any) -> bytes | None:
    """Return the first row of a dataset of uint8 pieces if its rows are JPEG images, else None.

    A row of a `[rows, length]` array may begin like an image by chance, so there all rows are
    looked at, at both ends.
    """
    frames = read_frames(dataset)
    whole = len(dataset.shape) > 1
    return frames[0] if frames and all(is_jpeg(f, whole=whole) for f in frames) else None
