"""HDF5 groups as trees of leaves, read through h5py's low-level interface.

The high-level interface costs 5 to 10 times as much for each small dataset, which is most of the
time it takes to read short episodes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.files import human_bytes
from offline_data.raw.hdf5 import (
    ELSEWHERE,
    FEW,
    check_size,
    check_storage,
    h5,
    links_within_file,
    place_of,
)
from offline_data.raw.hdf5_headers import KnownHeaders
from offline_data.raw.images import is_jpeg
from offline_data.raw.inflate import check_chunks, read_rows

NAMES = 1 << 27  # bytes of memory for the names of a file: those of some 700,000 datasets

OPEN = 1 << 30  # bytes for the open groups and leaves of one episode: some 65,000; most have ten
_NAME, _NODE = 128, 16 << 10  # bytes of a name besides its letters, and of an open group or leaf

DEEPEST = 32  # groups within groups

_LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class TreeLeaf:
    """One dataset, described but not read."""

    rows: int | None
    """Length of the first axis; None where the dataset is one value."""
    dtype: np.dtype[Any]
    """Item type in this machine's byte order; `object` for text and pieces of unequal length."""
    shape: tuple[int, ...]
    """Shape of one row."""
    form: str
    """`array`, `text`, `bytes` (rows of uint8 of any length), or `other`: cannot be read."""


def walk(group: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield names and low-level dataset of every leaf below a low-level group, in order of names.

    Raises `FormatError` for a link that is not a plain (hard) one, a name that is not UTF-8, more than
    `DEEPEST` levels, and leaves that would take more than `OPEN` bytes; `OSError` where something is
    damaged.
    """
    waiting: list[tuple[tuple[str, ...], Any]] = [((), group)]
    count = 0
    while waiting:
        place, parent = waiting.pop()
        node = _child(parent, place[-1], place[-1]) if place else group
        count += 1
        check_open(count, group)
        if isinstance(node, h5().h5d.DatasetID):
            yield place, node
            continue
        if not isinstance(node, h5().h5g.GroupID):
            raise FormatError(f"{place_of(node)} is a named type; expected a group or dataset")
        if len(place) > DEEPEST:
            raise FormatError(f"{place_of(node)} is more than {DEEPEST} groups deep")
        links = members(node)
        for name, target in links:
            if target is not None:
                raise _link_error(node, name, target)
        waiting += [((*place, name), node) for name, _ in reversed(links)]


def check_open(count: int, group: Any) -> None:
    """Raise `FormatError` if that many groups and leaves of a low-level group may not be open at once."""
    if count * _NODE > OPEN:
        raise FormatError(
            f"{place_of(group)} has groups and datasets that take more than {human_bytes(OPEN)} of memory"
        )


class Datasets(Mapping[str, Any]):
    """Datasets of an open `h5py.File` by name, opened at access; raises `OSError` for damage."""

    def __init__(self, root: Any, names: Iterable[str]) -> None:
        self._root, self._names = root, dict.fromkeys(names)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return h5().Dataset(_child(self._root, name, name))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def datasets_in(file: Any) -> tuple[Datasets, dict[str, str]]:
    """Find every dataset of an open `h5py.File` by name, in the order of names, and every other link.

    No link but a plain (hard) one is followed; groups are entered once, under the first of their
    names. Raises as `walk` does, and `FormatError` for names that take more than `NAMES` bytes.
    """
    h5o = h5().h5o
    root, size = file["/"].id, 0
    names: list[str] = []
    links: dict[str, str] = {}
    whole = h5o.get_info(root)
    seen, waiting = {(whole.fileno, whole.addr)}, [("", True)]
    while waiting:
        prefix, is_group = waiting.pop()
        if not is_group:
            names.append(prefix)
            continue
        if prefix.count("/") >= DEEPEST:
            raise FormatError(f"{place_of(root)} is more than {DEEPEST} groups deep")
        node = _child(root, prefix, prefix) if prefix else root
        below = []
        for name, target in members(node):
            path = f"{prefix}/{name}" if prefix else name
            size += len(path) + _NAME
            if size > NAMES:
                raise FormatError(
                    f"{place_of(root)} has names that take more than {human_bytes(NAMES)} of memory"
                )
            if target is not None:
                links[path] = target
                continue
            try:
                found = h5o.get_info(node, name.encode())
            except (KeyError, RuntimeError, ValueError) as error:
                raise OSError(f"{path!r} exists but cannot be opened: {error}") from error
            place = (found.fileno, found.addr)
            if found.type == h5o.TYPE_DATASET or (
                found.type == h5o.TYPE_GROUP and place not in seen
            ):
                seen.add(place)
                below.append((path, found.type == h5o.TYPE_GROUP))
        waiting += reversed(below)
    return Datasets(root, names), links


def lies_elsewhere(dataset: Any) -> bool:
    """Return True if reading a dataset would open files that the file names."""
    if dataset.is_virtual:
        return any(source.file_name != "." for source in dataset.virtual_sources())
    return dataset.external is not None


def dtype_of(dataset: Any) -> np.dtype[Any] | None:
    """Return the item type of a dataset, or None where numpy does not have it."""
    try:
        found: np.dtype[Any] = dataset.dtype
    except (TypeError, ValueError):  # h5py's answers to types that it cannot map
        return None
    return found


def _child(group: Any, name: str, shown: str) -> Any:
    try:
        return h5().h5o.open(group, name.encode(), links_within_file())
    except (KeyError, ValueError) as error:  # how h5py reports damage: the name is there
        raise OSError(f"{shown!r} exists but cannot be opened: {error}") from error


def _link_error(group: Any, name: str, target: str) -> FormatError:
    return FormatError(
        f"{place_of(group)} has a link {name!r} to {target!r}, which is not followed",
        hint="`h5repack` or a copy with h5py makes one file of several",
    )


def describe(dataset: Any) -> TreeLeaf:
    """Describe an open low-level dataset, without reading it; raises `FormatError`."""
    shape, dtype = dataset.shape, dtype_of(dataset)
    if dtype is None:
        raise FormatError(f"{place_of(dataset)} is of a type that numpy does not have")
    form = _form(dtype)
    kept = dtype.newbyteorder("=") if form == "array" else np.dtype(object)
    return TreeLeaf(shape[0] if shape else None, kept, tuple(shape[1:] or ()), form)


def _form(dtype: np.dtype[Any]) -> str:
    if dtype.kind in "biufc":
        return "array"
    if dtype.kind == "S" or h5().check_string_dtype(dtype) is not None:
        return "text"
    inner = h5().check_vlen_dtype(dtype)
    return "bytes" if inner is not None and np.dtype(inner) == np.uint8 else "other"


def open_group(parent: Any, path: tuple[str, ...], *, sibling: bool = False) -> Any:
    """Open a group below a low-level group or file, or return None where there is none.

    With `sibling`, the last name may be a link to a file in the same folder, by its plain name. Raises
    `FormatError` for other links out of the file, and `OSError` where it is damaged, or no group.
    """
    low, name = h5(), _join_path(path)
    try:
        if len(path) == 1 and parent.links.get_info(name).type == low.h5l.TYPE_HARD:
            return low.h5g.open(parent, name)  # faster than where a link may lead anywhere
        found = low.h5o.open(parent, name, links_within_file())
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        found = _open_sibling(parent, path) if sibling else None
        if found is None:
            return _check_absent(parent, path, error)
    if not isinstance(found, h5().h5g.GroupID):
        raise OSError(f"{'/'.join(path)!r} exists but is not a group")
    return found


def open_dataset(parent: Any, path: tuple[str, ...]) -> Any:
    """Open a dataset as `open_group` opens a group."""
    low, name = h5(), _join_path(path)
    try:
        if len(path) == 1 and parent.links.get_info(name).type == low.h5l.TYPE_HARD:
            return low.h5d.open(parent, name)  # a third faster than where a link may lead anywhere
        found = low.h5o.open(parent, name, links_within_file())
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        return _check_absent(parent, path, error)
    if not isinstance(found, low.h5d.DatasetID):
        raise OSError(f"{'/'.join(path)!r} exists but cannot be opened: it is not a dataset")
    return found


def _open_sibling(parent: Any, path: tuple[str, ...]) -> Any:
    """Open what an external link leads to, or return None if that is not a file of this folder."""
    whole = _join_path(path)
    if not parent.links.exists(whole) or (
        parent.links.get_info(whole).type != h5().h5l.TYPE_EXTERNAL
    ):
        return None
    name, place = parent.links.get_val(whole)
    file = Path(os.fsdecode(h5().h5f.get_name(parent))).parent / os.fsdecode(name)
    if file.name != os.fsdecode(name) or file.is_symlink() or not file.is_file():
        return None
    opened = h5().h5f.open(os.fsencode(file), h5().h5f.ACC_RDONLY)
    return h5().h5o.open(opened, place, links_within_file())


def _check_absent(parent: Any, path: tuple[str, ...], error: Exception) -> None:
    """Return if nothing is at `path`, else raise: h5py reports absence, damage and links alike."""
    for end in range(1, len(path) + 1):
        name = _join_path(path[:end])
        if not parent.links.exists(name):
            return
        if (target := _target(parent, name)) is not None:
            raise _link_error(parent, name.decode(), target) from error
    raise OSError(f"{'/'.join(path)!r} exists but cannot be opened: {error}") from error


@lru_cache(maxsize=1024)
def _join_path(path: tuple[str, ...]) -> bytes:
    return "/".join(path).encode()


def members(group: Any) -> list[tuple[str, str | None]]:
    """List a group's links: name (`FormatError` unless UTF-8), and target unless plain."""
    names: list[tuple[bytes, bool]] = []
    hard = h5().h5l.TYPE_HARD
    group.links.iterate(lambda name, info: names.append((name, info.type == hard)), info=True)
    try:
        return [(name.decode(), None if plain else _target(group, name)) for name, plain in names]
    except UnicodeDecodeError as error:
        raise FormatError(f"{place_of(group)} has a name that is not UTF-8: {error}") from error


def _target(group: Any, name: bytes) -> str | None:
    """Say where a link leads if it is not a plain (hard) one: a file, a path, or unknown."""
    kind = group.links.get_info(name).type
    if kind == h5().h5l.TYPE_HARD:
        return None
    if kind not in {h5().h5l.TYPE_EXTERNAL, h5().h5l.TYPE_SOFT}:
        return "a place that only its writer knows"
    value = group.links.get_val(name)
    target = value[0] if isinstance(value, tuple) else value
    return str(target.decode("utf-8", "backslashreplace"))


def attribute_names(group: Any) -> list[bytes]:
    """List the attributes of a low-level group."""
    names: list[bytes] = []
    h5().h5a.iterate(group, names.append)
    return names


def read_attributes(group: Any, wanted: frozenset[str] | None = None) -> dict[str, Any]:
    """Return the attributes of a low-level group, or those of `wanted`; raises `FormatError`."""
    found: dict[str, Any] = {}
    names = {name.decode(errors="replace") for name in attribute_names(group)}
    for name in sorted(names if wanted is None else wanted & names):
        try:
            value = h5().Group(group).attrs[name]
            found[name] = value.decode() if isinstance(value, bytes) else value
        except (KeyError, OSError, OverflowError, RuntimeError, TypeError, ValueError) as error:
            raise FormatError(f"its attribute {name!r} cannot be read: {error}") from error
    return found


def number_attribute(group: Any, name: str) -> int | float:
    """Read a numeric attribute of a group exactly; raises `TypeError` unless one number."""
    h5t, attribute = h5().h5t, h5().h5a.open(group, name.encode())
    kind = attribute.get_type()
    # HDF5 writes as many values as the attribute has, wherever they go.
    one = attribute.get_storage_size() == kind.get_size()
    if not one or kind.get_class() not in {h5t.INTEGER, h5t.FLOAT}:
        raise TypeError(f"{name!r} is {attribute.dtype} of shape {attribute.shape}")
    value = np.empty((), np.float64 if kind.get_class() == h5t.FLOAT else np.int64)
    attribute.read(value, mtype=_memory_type(value.dtype))
    if value.dtype == np.int64 and value == _LARGEST:  # HDF5 clips a larger uint64 to this
        value = np.empty((), np.uint64)
        attribute.read(value)
    number: int | float = value.item()
    return number


def read_scalar(dataset: Any) -> Any:
    """Read a low-level dataset of one value, as h5py gives it."""
    return _high(dataset)[()]


def read_numbers(dataset: Any) -> NDArray[Any]:
    """Read a whole low-level dataset of numbers, in this machine's byte order."""
    shape = check_size(dataset)
    values = read_rows(h5().Dataset(dataset), 0, shape[0])
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def read_plain(
    group: Any,
    name: str,
    dtype: np.dtype[Any],
    row_shape: tuple[int, ...],
    headers: KnownHeaders | None = None,
) -> NDArray[Any] | None:
    """Read the dataset `name` of a group if it is unfiltered `[rows, *row_shape]` of `dtype`.

    Returns None if not, or if it is absent, empty, damaged or not stored plainly in this file;
    opening it tells why. For short episodes, where each question to HDF5 takes as long as reading;
    `headers` spares most.
    """
    low, encoded = h5(), name.encode()
    memory = _memory_type(dtype)
    key = name, dtype, row_shape
    try:
        link = group.links.get_info(encoded)
        # What a hard link leads to is in this file.
        if link.type != low.h5l.TYPE_HARD:
            return None
        known = None if headers is None else headers.find(key, link.u)
        if headers is not None and known is not None and known.shape[1:] == row_shape:
            values = headers.read(known, dtype)
            if values is not None:
                return values
        dataset = low.h5d.open(group, encoded) if known else _open_plain(group, encoded, memory)
        shape: tuple[int, ...] | None = known.shape if known else dataset and dataset.shape
        if not shape or shape[1:] != row_shape:
            return None
        size = math.prod(shape)
        if size > FEW:
            check_size(dataset)
        # A virtual dataset has no storage of its own, a damaged list of chunks less than it should.
        if dataset.get_storage_size() < max(size * dtype.itemsize, 1):
            return None
        values = np.empty(shape, dtype)
        dataset.read(_memory_space(shape), low.h5s.ALL, values, mtype=memory)
    except _FAILURES:
        return None
    if headers is not None and not known:
        headers.add(key, link.u)
    return values


_FAILURES = (KeyError, ValueError, TypeError, OSError, RuntimeError, OverflowError)
"""Errors of h5py for absent, damaged or other objects; addresses beyond any file overflow."""


def _open_plain(group: Any, name: bytes, memory: Any) -> Any:
    """Open a dataset that is of this type, and has neither filters nor external files; else None."""
    low = h5()
    info = low.h5o.get_info(group, name)
    if info.type != low.h5o.TYPE_DATASET or info.hdr.mesg.present & ELSEWHERE:
        return None
    dataset = low.h5d.open(group, name)
    return dataset if dataset.get_type().equal(memory) else None


@lru_cache(maxsize=4096)
def _memory_space(shape: tuple[int, ...]) -> Any:
    return h5().h5s.create_simple(shape)


@lru_cache(maxsize=64)
def _memory_type(dtype: np.dtype[Any]) -> Any:
    return h5().h5t.py_create(dtype)


def read_text(dataset: Any, where: str) -> NDArray[np.object_]:
    """Read a low-level dataset of strings as `str`, keeping its shape; they must be UTF-8."""
    raw = np.asarray(_high(dataset)[()])
    out = np.empty(raw.shape, dtype=object)
    try:
        for index, value in np.ndenumerate(raw):
            out[index] = value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise FormatError(f"{where} is not UTF-8 text: {error}") from error
    return out


def read_frames(dataset: Any, start: int = 0, stop: int | None = None) -> list[bytes]:
    """Read rows of a low-level dataset as bytes: uint8 of any lengths or `[rows, length]`, or strings."""
    whole = _high(dataset, start, stop)
    return [
        row if isinstance(row, bytes) else np.asarray(row).tobytes() for row in whole[start:stop]
    ]


def _high(dataset: Any, start: int = 0, stop: int | None = None) -> Any:
    """Return a low-level dataset as an `h5py.Dataset`, of which these rows may be read."""
    check_size(dataset)
    check_storage(dataset)
    whole = h5().Dataset(dataset)
    if whole.shape:
        check_chunks(whole, start, len(whole) if stop is None else stop)
    return whole


def first_frame(dataset: Any) -> bytes | None:
    """Return the first row of a dataset of uint8 pieces if its rows are JPEG images, else None."""
    # A row of a `[rows, length]` array may begin like an image by chance, so there all rows are
    # examined, at both ends.
    frames = read_frames(dataset)
    whole = len(dataset.shape) > 1
    return frames[0] if frames and all(is_jpeg(f, whole=whole) for f in frames) else None
