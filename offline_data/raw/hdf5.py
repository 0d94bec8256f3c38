"""Opening HDF5 files, and checking the storage of datasets before any value is read.

A file from a stranger may declare more rows than fit into memory, refer to other files of this
machine, or contain chunks that inflate to less than a chunk. Every dataset that is read must follow
these rules:

- Its values are in the file itself: no external storage, no virtual dataset over another file.
- A chunk has at most `LARGEST_CHUNK` bytes, and one of the compressors in `readers.inflate`.
- A dataset of more than `UNWRITTEN` bytes has at most `LARGEST_RATIO` times the bytes of its storage.
  Up to that size, values that were declared and never written are the fill value.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from offline_data.base.errors import AccessError, FormatError, OfflineDataError
from offline_data.base.files import check_magic, read_head

MAGIC = b"\x89HDF\r\n\x1a\n"
"""First bytes of an HDF5 file, or those after its user block of 512, 1024, 2048, … bytes."""

LARGEST_CHUNK = 256 << 20
"""Largest chunk in bytes: each reading thread holds one."""

UNWRITTEN = 64 << 20
"""Bytes that a dataset may declare without storage in the file."""

LARGEST_RATIO = 1100
"""Bytes of values per byte of storage; deflate reaches 1,032."""

FEW = 1 << 18
"""Number of values up to which the size is not checked, whatever their type."""

CACHE_SLOTS = 521
"""Slots of the chunk cache of each dataset, as in HDF5 1; with the 8,191 of HDF5 2, opening a dataset
takes half as long again, as much as reading one of a short episode."""

ELSEWHERE = 1 << 0x07 | 1 << 0x0B
"""Bits of the header of an object that has external files, or filters."""

_DEPTH = 8
"""Nesting depth of virtual datasets."""


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open an HDF5 file read-only as an `h5py.File`.

    Raises:
        NotFoundError, AccessError: There is no such file; it may not be read, or too many are open.
        FormatError: It is not HDF5, or is damaged; also where reading inside the block fails.
    """
    check_hdf5(path)
    with name_hdf5_damage(path), h5().File(path, "r", rdcc_nslots=CACHE_SLOTS) as file:
        _forget_metadata(file)
        yield file


@contextmanager
def name_hdf5_damage(path: Path) -> Iterator[None]:
    """Turn what h5py raises where a file is damaged into a `FormatError` that names it.

    `open_hdf5` does so for its block; a reading that may be skipped needs it for itself.
    """
    try:
        yield
    except OfflineDataError:
        raise
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None) in {errno.EMFILE, errno.ENFILE}:
            raise AccessError(
                f"{path} cannot be opened: this process has too many open files",
                hint="allow it more: ulimit -n",
            ) from error
        said = str(error).splitlines() or [type(error).__name__]
        raise FormatError(
            f"{path} is damaged or cut short: {said[0]}",
            hint="download or copy the file again; `h5dump -H FILE` shows what is left of it",
        ) from error


def is_hdf5(path: Path) -> bool:
    """Return True if a regular file has the signature of HDF5; raises as `read_head` does."""
    if read_head(path).startswith(MAGIC):
        return True
    with path.open("rb") as file:
        size, place = file.seek(0, os.SEEK_END), 512
        while place < size:
            file.seek(place)
            if file.read(len(MAGIC)) == MAGIC:
                return True
            place *= 2
    return False


def check_hdf5(path: Path) -> None:
    """Raise `FormatError` unless a file has the signature of HDF5."""
    if not is_hdf5(path):
        check_magic(path, MAGIC, "an HDF5 file")


def _forget_metadata(file: Any) -> None:
    """Keep HDF5's cache of object headers at 2 MiB instead of up to 32.

    Files of many small objects are read once, from first to last: with the default, 20,000 episodes
    cost 0.4 GB of memory, and a seventh more time. All names of a group are one object, which has to
    fit: else it is read again for each name.
    """
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    names = 64 * int(file["/"].id.get_num_objs())
    least = (1 << 20) + min(names, 64 << 20)
    config.initial_size, config.min_size, config.max_size = least, least, least + (1 << 20)
    file.id.set_mdc_config(config)


@cache
def h5() -> Any:
    """Return h5py, imported once: an import statement in a hot function is not free."""
    import h5py

    return h5py


@cache
def links_within_file() -> Any:
    """Return access properties for opening objects without following an external link.

    HDF5 has no option for it, but accepts properties for opening the target file of a link: here an
    empty in-memory file, which fails without accessing the file system. `h5d.open` also takes such
    properties, but is a fifth slower than `h5o.open`.
    """
    import io

    h5fd, h5p = h5().h5fd, h5().h5p
    nothing = h5p.create(h5p.FILE_ACCESS)
    nothing.set_fileobj_driver(h5fd.fileobj_driver, io.BytesIO())
    links = h5p.create(h5p.LINK_ACCESS)
    links.set_elink_fapl(nothing)
    return links


def check_storage(dataset: Any, depth: int = _DEPTH) -> None:
    """Raise `FormatError` unless an open low-level dataset follows this module's rules."""
    if dataset.get_offset() is not None:
        return
    plan, h5d = dataset.get_create_plist(), h5().h5d
    layout = plan.get_layout()
    if layout == h5d.CHUNKED:
        values = math.prod(plan.get_chunk())
        if values > FEW and (nbytes := values * dataset.get_type().get_size()) > LARGEST_CHUNK:
            raise _refusal(
                dataset,
                f"has chunks of {nbytes:,} bytes; at most {LARGEST_CHUNK:,} are read",
                hint="`h5repack -l CHUNK=…` writes it in smaller ones",
            )
    elif layout == h5d.VIRTUAL:
        _check_virtual(dataset, plan, depth)
    elif plan.get_external_count():
        name = os.fsdecode(plan.get_external(0)[0])
        raise _refusal(dataset, f"has its values in another file, {name!r}")


def check_size(dataset: Any) -> tuple[int, ...]:
    """Return the shape of a low-level dataset whose values may be read into memory.

    Raises `FormatError` if it declares more bytes than the file can have for it.
    """
    shape: tuple[int, ...] = dataset.shape or ()
    if math.prod(shape) <= FEW and dataset.get_type().get_size() <= UNWRITTEN // FEW:
        return shape
    nbytes = math.prod(shape) * dataset.get_type().get_size()
    if nbytes <= UNWRITTEN:
        return shape
    stored = min(_count_stored_bytes(dataset, _DEPTH), h5().h5i.get_file_id(dataset).get_filesize())
    if nbytes > UNWRITTEN + LARGEST_RATIO * stored:
        raise _refusal(
            dataset,
            f"declares {nbytes:,} bytes (shape {list(shape)}), for which the file has {stored:,}",
        )
    return shape


def _check_virtual(dataset: Any, plan: Any, depth: int) -> None:
    """Check that a virtual dataset consists of valid datasets of its own file.

    HDF5 crashes on a virtual dataset that is a single value or of variable length.
    """
    sources, h5t, kind = _sources(dataset, plan, depth), h5().h5t, dataset.get_type()
    text = kind.get_class() == h5t.STRING and kind.is_variable_str()
    if not dataset.shape or kind.detect_class(h5t.VLEN) or text:
        raise _refusal(dataset, "is a virtual dataset that is not an array of numbers")
    for source in sources:
        if source.get_type().get_class() != kind.get_class():
            raise _refusal(dataset, "is a virtual dataset over values of another type")
        check_storage(source, depth - 1)


def _sources(dataset: Any, plan: Any, depth: int) -> Sequence[Any]:
    """Open the datasets that a virtual dataset is made of."""
    if depth == 0:
        raise _refusal(dataset, f"is a virtual dataset over more than {_DEPTH} others")
    names: dict[str, None] = {}
    for number in range(plan.get_virtual_count()):
        target, name = plan.get_virtual_filename(number), plan.get_virtual_dsetname(number)
        if target != "." or "%" in name:
            raise _refusal(dataset, f"is a virtual dataset with values in another file, {target!r}")
        names[name] = None
    file = h5().h5i.get_file_id(dataset)
    try:
        found = [h5().h5o.open(file, name.encode(), links_within_file()) for name in names]
    except (KeyError, ValueError, OSError) as error:
        raise _refusal(
            dataset, f"is a virtual dataset over one that cannot be opened: {error}"
        ) from error
    if not all(isinstance(source, h5().h5d.DatasetID) for source in found):
        raise _refusal(dataset, "is a virtual dataset over something other than a dataset")
    return found


def _count_stored_bytes(dataset: Any, depth: int) -> int:
    plan = dataset.get_create_plist()
    if plan.get_layout() == h5().h5d.VIRTUAL:
        return sum(
            _count_stored_bytes(source, depth - 1) for source in _sources(dataset, plan, depth)
        )
    stored: int = dataset.get_storage_size()
    return stored


def _refusal(dataset: Any, why: str, hint: str | None = None) -> FormatError:
    return FormatError(f"{place_of(dataset)} {why}", hint=hint)


def place_of(dataset: Any) -> str:
    """Name file and dataset of an open low-level object, for messages."""
    name = (h5().h5i.get_name(dataset) or b"?").decode("utf-8", "backslashreplace")
    return f"{h5().h5f.get_name(dataset).decode('utf-8', 'surrogateescape')}: {name!r}"
