"""HDF5 groups as trees of leaves, read through h5py's low-level interface.

The high-level interface costs 5 to 10 times as much for each small dataset, which is most of the
time it takes to read short episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from offline_data.errors import FormatError
from offline_data.readers.images import is_jpeg

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray


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
    """Yield the leaves below an `h5py` group or dataset, in the order of the file.

    Links out of the file are passed over, except that they are yielded as form `other`.

    Raises:
        OSError: Something is there, but damaged.
    """
    import h5py

    if isinstance(group, h5py.Dataset):
        yield look(group.id, path)
        return
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
            yield TreeLeaf((*path, name), None, np.dtype(object), (), "other")
        else:
            yield from walk(_child(group, name), (*path, name))


def _child(group: Any, name: str) -> Any:
    try:
        return group[name]
    except (KeyError, ValueError) as error:  # how h5py reports damage: the name is there
        raise OSError(f"{name!r} is there but cannot be opened: {error}") from error


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


def open_group(parent: Any, path: tuple[str, ...]) -> Any:
    """Open a group below a low-level group or file, or return None where there is none.

    Raises:
        OSError: It is there, but damaged.
    """
    return _open(_low().h5g.open, parent, path)


def open_dataset(parent: Any, path: tuple[str, ...]) -> Any:
    """Open a dataset below a low-level group or file, or return None where there is none.

    Raises:
        OSError: It is there, but damaged.
    """
    return _open(_low().h5d.open, parent, path)


def _open(opener: Callable[[Any, bytes], Any], parent: Any, path: tuple[str, ...]) -> Any:
    try:
        return opener(parent, _joined(path))
    except (KeyError, ValueError, TypeError) as error:
        # h5py reports what is damaged in the same way as what is not there.
        if all(parent.links.exists(_joined(path[:end])) for end in range(1, len(path) + 1)):
            raise OSError(f"{'/'.join(path)!r} is there but cannot be opened: {error}") from error
        return None


@lru_cache(maxsize=1024)
def _joined(path: tuple[str, ...]) -> bytes:
    return "/".join(path).encode()


def members(group: Any) -> list[tuple[str, str | None]]:
    """List the links of a low-level group or file, with the other file that a link leads to."""
    links: list[tuple[str, str | None]] = []
    external = _low().h5l.TYPE_EXTERNAL

    def add(name: bytes, info: Any) -> None:
        target = group.links.get_val(name)[0].decode() if info.type == external else None
        links.append((name.decode(), target))

    group.links.iterate(add, info=True)
    return links


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
    if attribute.shape != () or not isinstance(kind, (h5t.TypeIntegerID, h5t.TypeFloatID)):
        # HDF5 would write all of an array into the eight bytes below.
        raise TypeError(f"{name!r} is {attribute.dtype} of shape {attribute.shape}")
    if isinstance(kind, h5t.TypeFloatID):
        return _whole(attribute)
    value = np.empty((), np.int64)
    attribute.read(value, mtype=_memory_type(value.dtype))
    if value == _LARGEST:  # HDF5 clips a larger uint64 to this
        value = np.empty((), np.uint64)
        attribute.read(value)
    return int(value)


def _whole(attribute: Any) -> int:
    value = np.empty((), np.float64)
    attribute.read(value)
    if not float(value).is_integer():
        raise ValueError(f"{float(value)!r} is no integer")
    return int(value)


def read_into(dataset: Any, out: NDArray[Any]) -> None:
    """Read a whole low-level dataset of numbers into `out`, C-contiguous and of its shape.

    Values are converted to the dtype of `out`; the caller has made sure that this loses nothing.
    """
    every = _low().h5s.ALL
    dataset.read(every, every, out, mtype=_memory_type(out.dtype))


def read_if_fits(dataset: Any, out: NDArray[Any]) -> bool:
    """Read a whole low-level dataset into `out` if it has its dtype and number of values.

    HDF5 itself compares the numbers while reading. To ask for the shape first would take a
    quarter as long as reading does, which counts where episodes are short.

    Returns:
        Whether it was read; if not, `out` is as it was.
    """
    memory_type = _memory_type(out.dtype)
    if not dataset.get_type().equal(memory_type):
        return False
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
        FormatError: The bytes are not UTF-8.
    """
    import h5py

    raw = np.asarray(h5py.Dataset(dataset)[()])
    out = np.empty(raw.shape, dtype=object)
    try:
        for index, value in np.ndenumerate(raw):
            out[index] = value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise FormatError(f"{where} is not UTF-8 text: {error}") from error
    return out


def read_frames(dataset: Any) -> list[bytes]:
    """Read a low-level dataset of uint8 pieces, one a row: of any lengths, or `[rows, length]`."""
    import h5py

    return [np.asarray(row, dtype=np.uint8).tobytes() for row in h5py.Dataset(dataset)[()]]


def first_frame(dataset: Any) -> bytes | None:
    """Return the first row of a dataset of uint8 pieces if its rows are JPEG images, else None.

    A row of a `[rows, length]` array may begin like an image by chance, so there all rows are
    looked at, at both ends.
    """
    frames = read_frames(dataset)
    whole = len(dataset.shape) > 1
    return frames[0] if frames and all(is_jpeg(f, whole=whole) for f in frames) else None
