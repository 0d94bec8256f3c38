"""Where the values of an HDF5 dataset lie, checked before any of them is read.

A file from a stranger may declare more rows than memory holds, name other files of this machine, or
compress a chunk to less than a chunk. The rules, for every dataset of which values are read:

- Its values lie in the file itself: no external storage, no virtual dataset over another file.
- A chunk has at most `LARGEST_CHUNK` bytes, and one compressor of those in `readers.inflate`.
- A dataset of more than `UNWRITTEN` bytes has storage: at most `LARGEST_RATIO` times the bytes that
  the file has for it. What was declared and never written is its fill value, up to that size.
"""

from __future__ import annotations

import math
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from offline_data.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

LARGEST_CHUNK = 256 << 20
"""Bytes of a chunk: each thread that reads holds one."""

UNWRITTEN = 64 << 20
"""Bytes that a dataset may declare without having them in the file."""

LARGEST_RATIO = 1100
"""Bytes of values per byte of storage; deflate reaches 1,032."""

FEW = 1 << 18
"""Values that are too few, whatever their type, to be worth a look at their size."""

_EXTERNAL, _FILTERED = 1 << 0x07, 1 << 0x0B
"""Bits of an object header that has a message of these types: external files, filter pipeline."""

_DEPTH = 8
"""Virtual datasets that may stand one upon the other."""


@cache
def guarded() -> Any:
    """Return access properties for opening objects without following an external link.

    HDF5 has no switch for it. But it can be told how to open the file that a link leads to: here
    out of an empty buffer, whatever its name, which fails without looking at the file system.
    `h5d.open` takes them too, among others, and is a fifth slower for it than `h5o.open`.
    """
    import io

    from h5py import h5fd, h5p

    nothing = h5p.create(h5p.FILE_ACCESS)
    nothing.set_fileobj_driver(h5fd.fileobj_driver, io.BytesIO())
    links = h5p.create(h5p.LINK_ACCESS)
    links.set_elink_fapl(nothing)
    return links


def is_plain(dataset: Any) -> bool:
    """Return True if HDF5 can be left to read an open low-level dataset as it is.

    That is one block of the file, or chunks without filters. This is asked for every leaf of every
    episode: the list of creation properties, which says all this, would take three times as long as
    the two questions here.

    Raises:
        FormatError: See `check_storage`, which was asked where it returns False.
    """
    if dataset.get_offset() is not None:
        return True
    # Chunks, or the header itself: a virtual dataset has no storage of its own.
    if dataset.get_storage_size() and not (
        _low().h5o.get_info(dataset).hdr.mesg.present & (_FILTERED | _EXTERNAL)
    ):
        return True
    plan = dataset.get_create_plist()
    if plan.get_layout() == _low().h5d.CHUNKED and not plan.get_nfilters():
        return True
    _check(dataset, plan, _DEPTH)
    return False


@cache
def _low() -> Any:
    """Return h5py, imported once: an import statement in a hot function is not free."""
    import h5py

    return h5py


def check_storage(dataset: Any) -> None:
    """Check where the values of an open low-level dataset lie.

    Raises:
        FormatError: A rule of this module is broken; the message names file and dataset.
    """
    if dataset.get_offset() is None:
        _check(dataset, dataset.get_create_plist(), _DEPTH)


def check_size(dataset: Any) -> tuple[int, ...]:
    """Return the shape of a low-level dataset of which all values may be read into memory.

    Raises:
        FormatError: It declares more bytes than the file can have for it.
    """
    shape: tuple[int, ...] = dataset.shape or ()
    if math.prod(shape) <= FEW and dataset.get_type().get_size() <= UNWRITTEN // FEW:
        return shape
    from h5py import h5i

    nbytes = math.prod(shape) * dataset.get_type().get_size()
    if nbytes <= UNWRITTEN:
        return shape
    stored = min(_stored(dataset, _DEPTH), h5i.get_file_id(dataset).get_filesize())
    if nbytes > UNWRITTEN + LARGEST_RATIO * stored:
        raise _refused(
            dataset,
            f"declares {nbytes:,} bytes (shape {list(shape)}), for which the file has {stored:,}",
        )
    return shape


def _check(dataset: Any, plan: Any, depth: int) -> None:
    from h5py import h5d

    layout = plan.get_layout()
    if layout == h5d.CHUNKED:
        _check_chunks(dataset, plan)
    elif layout == h5d.VIRTUAL:
        _check_sources(dataset, plan, depth)
    elif plan.get_external_count():
        name = os.fsdecode(plan.get_external(0)[0])
        raise _refused(dataset, f"has its values in another file, {name!r}")


def _check_chunks(dataset: Any, plan: Any) -> None:
    values = math.prod(plan.get_chunk())
    if values > FEW and (nbytes := values * dataset.get_type().get_size()) > LARGEST_CHUNK:
        raise _refused(
            dataset,
            f"has chunks of {nbytes:,} bytes; at most {LARGEST_CHUNK:,} are read",
            hint="`h5repack -l CHUNK=…` writes it in smaller ones",
        )


def _check_sources(dataset: Any, plan: Any, depth: int) -> None:
    """Check that a virtual dataset is made of datasets of its own file, which are sound.

    HDF5 ends the process where a virtual dataset is a single value or of variable length.
    """
    from h5py import h5t

    sources = _sources(dataset, plan, depth)
    if not dataset.shape or dataset.get_type().detect_class(h5t.VLEN) or _is_text(dataset):
        raise _refused(dataset, "is a virtual dataset that is not an array of numbers")
    for source in sources:
        if source.get_type().get_class() != dataset.get_type().get_class():
            raise _refused(dataset, "is a virtual dataset over values of another type")
        if source.get_offset() is None:
            _check(source, source.get_create_plist(), depth - 1)


def _sources(dataset: Any, plan: Any, depth: int) -> Sequence[Any]:
    """Open the datasets that a virtual dataset is made of."""
    from h5py import h5d, h5i, h5o

    if depth == 0:
        raise _refused(dataset, f"is a virtual dataset over more than {_DEPTH} others")
    names: dict[str, None] = {}
    for number in range(plan.get_virtual_count()):
        target, name = plan.get_virtual_filename(number), plan.get_virtual_dsetname(number)
        if target != "." or "%" in name:
            raise _refused(dataset, f"is a virtual dataset with values in another file, {target!r}")
        names[name] = None
    file = h5i.get_file_id(dataset)
    try:
        found = [h5o.open(file, name.encode(), guarded()) for name in names]
    except (KeyError, ValueError, OSError) as error:
        raise _refused(
            dataset, f"is a virtual dataset over one that cannot be opened: {error}"
        ) from error
    if not all(isinstance(source, h5d.DatasetID) for source in found):
        raise _refused(dataset, "is a virtual dataset over what is no dataset")
    return found


def _is_text(dataset: Any) -> bool:
    from h5py import h5t

    kind = dataset.get_type()
    return kind.get_class() == h5t.STRING and bool(kind.is_variable_str())


def _stored(dataset: Any, depth: int) -> int:
    from h5py import h5d

    plan = dataset.get_create_plist()
    if plan.get_layout() == h5d.VIRTUAL:
        return sum(_stored(source, depth - 1) for source in _sources(dataset, plan, depth))
    stored: int = dataset.get_storage_size()
    return stored


def _refused(dataset: Any, why: str, hint: str | None = None) -> FormatError:
    return FormatError(f"{place_of(dataset)} {why}", hint=hint)


def place_of(dataset: Any) -> str:
    """Name file and dataset of an open low-level object, for messages."""
    from h5py import h5f, h5i

    name = (h5i.get_name(dataset) or b"?").decode("utf-8", "backslashreplace")
    return f"{h5f.get_name(dataset).decode('utf-8', 'surrogateescape')}: {name!r}"
