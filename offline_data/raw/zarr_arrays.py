"""zarr groups, of format 2 and 3, as a folder or in a zip: rows of arrays, read without the zarr package.

```
format 2    data/action/.zarray       {"shape": [100, 2], "chunks": [64, 2], "dtype": "<f4", …}
            data/action/0.0           rows 0 to 63
format 3    data/action/zarr.json     {"shape": [100, 2], "chunk_grid": …, "codecs": […]}
            data/action/c/0/0         rows 0 to 63
```

zarr itself would follow links, and take any codec that a file names, such as a pickle. Compressed
chunks need numcodecs, of which some codecs are used by name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from math import ceil, prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError, MissingDependencyError
from offline_data.base.files import check_relative, human_bytes, is_file, read_head
from offline_data.base.json import parse_json
from offline_data.raw.archive import name_damage, open_zip
from offline_data.raw.hdf5 import LARGEST_CHUNK, LARGEST_RATIO, UNWRITTEN
from offline_data.raw.restricted_pickle import plain_dtype

_ARRAY, _ARRAY_3 = ".zarray", "zarr.json"
_GROUPS = (".zgroup", _ARRAY, _ARRAY_3)
_COMPRESSORS = {"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"}
_FILTERS = {"delta", "fixedscaleoffset", "shuffle"}
_READ = _COMPRESSORS | _FILTERS | {"crc32c"}
_LARGEST_METADATA = 1 << 20
_NAMES = 1 << 30  # bytes of memory for the names of the files of a folder: some six million
_ZIP_BYTES = 1 << 42
_DEEPEST = 32
_WORDS = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf, None: 0}


def is_zarr(path: Path) -> bool:
    """Return True for a zarr folder, or a zip whose name says that it is one; opens no file."""
    return any(is_file(path / name) for name in _GROUPS) or (
        path.name.endswith(".zarr.zip") and is_file(path)
    )


@contextmanager
def open_zarr(path: Path) -> Iterator[Mapping[str, ZarrArray]]:
    """Open a folder or a zip, and give its arrays by name (`data/action`), sorted.

    Raises:
        FormatError: It is not zarr, is damaged, has a link, or an array that numpy cannot hold or
            whose codec is not known; or declares far more values than it stores.
        MissingDependencyError: An array is compressed, and numcodecs is not installed (when read).
    """
    if path.is_dir():
        yield _arrays_in(_Folder(path))
        return
    with open_zip(path, budget=_ZIP_BYTES) as (archive, files):
        yield _arrays_in(_Zip(path, archive, files))


class _Folder:
    """The files of a folder by relative name; links are refused."""

    def __init__(self, path: Path) -> None:
        self.path, self._root = path, path.resolve()
        self.folders, self._names = set[str](), 0
        self._sizes = dict(self._list("", 0))

    def _list(self, below: str, depth: int) -> Iterator[tuple[str, int]]:
        with os.scandir(self.path / below) as found:
            entries = list(found)
        self._names += sum(len(below) + len(entry.name) + 128 for entry in entries)
        if depth > _DEEPEST or self._names > _NAMES:
            raise FormatError(
                f"{self.path / below} is more than {_DEEPEST} folders deep, or the names of the files take "
                f"more than {human_bytes(_NAMES)} of memory",
                hint="larger chunks, or shards, make fewer files",
            )
        for entry in entries:
            name = f"{below}{entry.name}"
            if entry.is_symlink():
                raise FormatError(f"{self.path / name} is a link, which is not followed")
            if entry.is_dir():
                self.folders.add(name)
                yield from self._list(f"{name}/", depth + 1)
            else:
                yield name, entry.stat().st_size

    def names(self) -> Mapping[str, int]:
        """Return the stored bytes of each file."""
        return self._sizes

    def read(self, name: str, limit: int) -> bytes:
        path = self.path / check_relative(name)
        if path.resolve() != self._root / name:  # replaced since it was listed
            raise FormatError(f"{path} is a link, which is not followed")
        return read_head(path, limit)


class _Zip:
    """The members of a zip by name, without the folder that all lie in."""

    def __init__(self, path: Path, archive: Any, files: Mapping[str, Any]) -> None:
        self.path, self._archive = path, archive
        tops = {name.partition("/")[0] for name in files}
        inner = f"{next(iter(tops))}/" if len(tops) == 1 and not tops & set(_GROUPS) else ""
        self._files = {name.removeprefix(inner): info for name, info in files.items()}
        below = (PurePosixPath(name.removeprefix(inner)) for name in archive.namelist())
        self.folders = {str(parent) for name in below for parent in name.parents}
        self.folders |= {n.removeprefix(inner)[:-1] for n in archive.namelist() if n[-1:] == "/"}

    def names(self) -> Mapping[str, int]:
        return {name: info.compress_size for name, info in self._files.items()}

    def read(self, name: str, limit: int) -> bytes:
        with name_damage(f"{self.path}, {name}"), self._archive.open(self._files[name]) as stream:
            content: bytes = stream.read(limit)
            return content


def _arrays_in(files: _Folder | _Zip) -> dict[str, ZarrArray]:
    found, stored = {}, {}
    names = files.names()
    for name in names:
        place, _, last = name.rpartition("/")
        if last in {_ARRAY, _ARRAY_3}:
            metadata = parse_json(files.read(name, _LARGEST_METADATA), f"{files.path}, {name}")
            if last == _ARRAY or (
                isinstance(metadata, dict) and metadata.get("node_type") == "array"
            ):
                found[place], stored[place] = metadata, 0
    if not any(name.rpartition("/")[2] in _GROUPS for name in names):
        raise FormatError(f"{files.path} is not zarr: it has no .zgroup, .zarray or zarr.json")
    for name, size in names.items():
        place = name
        while place and place not in stored:
            place = place.rpartition("/")[0]
        if place in stored:
            stored[place] += size
    return {place: _describe(files, place, found[place], stored[place]) for place in sorted(found)}


def _describe(files: _Folder | _Zip, place: str, metadata: Any, stored: int) -> ZarrArray:
    """Return an array as its metadata describe it; raises `FormatError`."""
    where = f"{files.path}, array {place!r}"
    try:
        with name_damage(where):
            array = _array_of(files, place, metadata)
    except KeyError as error:
        raise FormatError(f"{where} lacks {error} in its metadata") from error
    shape, chunks = array.shape, array.chunks
    lengths = [*shape, *chunks]
    if len(shape) != len(chunks) or not all(type(n) is int and n >= 0 for n in lengths):
        raise FormatError(f"{where} has the shape {list(shape)} and chunks of {list(chunks)}")
    if 0 in chunks or array.dtype.kind not in "biufc":
        raise FormatError(f"{where} has {array.dtype} in chunks of {list(chunks)}")
    if prod(chunks) * array.dtype.itemsize > LARGEST_CHUNK:
        raise FormatError(f"{where} has chunks of more than {LARGEST_CHUNK:,} bytes")
    if array.nbytes > UNWRITTEN + LARGEST_RATIO * stored:
        raise FormatError(
            f"{where} declares {array.nbytes:,} bytes (shape {list(shape)}), for which it has {stored:,}"
        )
    return array


def _array_of(files: _Folder | _Zip, place: str, metadata: Any) -> ZarrArray:
    if not isinstance(metadata, dict):
        raise TypeError("its metadata are not an object")
    shape = tuple(metadata["shape"])
    if metadata["zarr_format"] == 2:
        filters = [*(metadata["filters"] or ()), *filter(None, [metadata["compressor"]])]
        return ZarrArray(
            files,
            place,
            shape,
            plain_dtype(metadata["dtype"]),
            tuple(metadata["chunks"]),
            [{**each, "id": each["id"]} for each in filters],
            metadata["fill_value"],
            "",
            metadata.get("dimension_separator", "."),
            "F" if metadata["order"] == "F" else "C",
        )
    codecs = [{**c.get("configuration", {}), "id": c["name"]} for c in metadata["codecs"]]
    little = all(codec.get("endian", "little") == "little" for codec in codecs)
    dtype = np.dtype(metadata["data_type"]).newbyteorder("<" if little else ">")
    grid, keys = metadata["chunk_grid"], metadata["chunk_key_encoding"]
    if grid["name"] != "regular" or keys["name"] not in {"default", "v2"}:
        raise ValueError(f"its chunks are {grid['name']!r}, {keys['name']!r}")
    default = keys["name"] == "default"
    separator = keys.get("configuration", {}).get("separator", "/" if default else ".")
    return ZarrArray(
        files,
        place,
        shape,
        dtype,
        tuple(grid["configuration"]["chunk_shape"]),
        [{"id": codec["id"]} for codec in codecs if codec["id"] != "bytes"],
        metadata["fill_value"],
        f"c{separator}" if default else "",
        separator,
    )


@dataclass
class ZarrArray:
    """An array of an open group; the last rows of chunks are kept, for reading in order."""

    files: Any = field(repr=False)
    place: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]  # as stored, maybe of another byte order than this machine's
    chunks: tuple[int, ...]
    codecs: list[dict[str, Any]]
    fill: Any
    prefix: str
    separator: str
    order: Any = "C"
    _band: tuple[int, NDArray[Any]] | None = field(default=None, repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def unknown_codec(self) -> str | None:
        """Name of the first codec that is not read; None: all are."""
        names = (str(codec["id"]) for codec in self.codecs)
        return next((name for name in names if name not in _READ), None)

    @property
    def absent_chunks(self) -> int:
        """Number of chunks that were not written: their values are the fill value."""
        counts = (ceil(n / size) for n, size in zip(self.shape, self.chunks, strict=True))
        return sum(not self._is_stored(place) for place in product(*map(range, counts)))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `[stop - start, …]` in this machine's byte order; raises `FormatError`."""
        rows = np.empty((stop - start, *self.shape[1:]), self.dtype.newbyteorder("="))
        size, done = self.chunks[0], start
        while done < stop:
            number = done // size
            if self._band is None or self._band[0] != number:
                self._band = None  # before the next one is allocated
                self._band = number, self._read_band(number)
            until = min(stop, (number + 1) * size)
            begin = number * size
            rows[done - start : until - start] = self._band[1][done - begin : until - begin]
            done = until
        return rows

    def _read_band(self, number: int) -> NDArray[Any]:
        """Read all chunks with the rows of one."""
        begin, rest = number * self.chunks[0], self.shape[1:]
        shape = (min(self.chunks[0], self.shape[0] - begin), *rest)
        if prod(shape) * self.dtype.itemsize > LARGEST_CHUNK:
            raise FormatError(
                f"{self.files.path}, array {self.place!r}: the chunks of a row have more than "
                f"{LARGEST_CHUNK:,} bytes together",
                hint="write it with fewer rows in a chunk",
            )
        band = np.empty(shape, self.dtype)
        counts = [
            range(ceil(length / size)) for length, size in zip(rest, self.chunks[1:], strict=True)
        ]
        for place in product(*counts):
            sizes = zip(place, self.chunks[1:], strict=True)
            cut = (slice(None), *(slice(n * size, (n + 1) * size) for n, size in sizes))
            part = band[cut]
            part[...] = self._read_chunk((number, *place))[tuple(map(slice, part.shape))]
        return band

    def _file_of(self, place: tuple[int, ...]) -> str:
        name = f"{self.prefix}{self.separator.join(map(str, place))}"
        return f"{self.place}/{name}" if self.place else name

    def _is_stored(self, place: tuple[int, ...]) -> bool:
        """Return whether a chunk has a file; raise `FormatError` where a folder has its name."""
        if (name := self._file_of(place)) in self.files.folders:
            raise FormatError(
                f"{self.files.path}, {name} is a folder, expected the file of a chunk",
                hint="copy the dataset again",
            )
        return name in self.files.names()

    def _read_chunk(self, place: tuple[int, ...]) -> NDArray[Any]:
        name = self._file_of(place)
        where = f"{self.files.path}, {name}"
        if not self._is_stored(place):
            with name_damage(where):
                return np.full(self.chunks, _WORDS.get(self.fill, self.fill), self.dtype)
        nbytes = prod(self.chunks) * self.dtype.itemsize
        data: Any = self.files.read(name, 2 * LARGEST_CHUNK)
        for codec in reversed(self.codecs):
            data = _decode(codec, data, nbytes, where)
        if len(data := bytes(data)) != nbytes:
            raise FormatError(f"{where} has {len(data):,} bytes of values, expected {nbytes:,}")
        return np.frombuffer(data, self.dtype).reshape(self.chunks, order=self.order)


def _decode(codec: Mapping[str, Any], data: Any, nbytes: int, where: str) -> Any:
    """Undo one codec; raises `FormatError` if it is damaged, or unknown."""
    name = codec["id"]
    if name == "crc32c":  # of format 3, behind the other bytes
        from google_crc32c import value

        if value(data[:-4]) != int.from_bytes(data[-4:], "little"):
            raise FormatError(f"{where} is damaged: its checksum differs")
        return data[:-4]
    if name not in _READ:
        raise FormatError(
            f"{where} is encoded by {name!r:.60}, which is not read",
            hint=f"write it again with one of {', '.join(sorted(_COMPRESSORS))}, or none",
        )
    try:
        import numcodecs
    except ImportError as error:
        raise MissingDependencyError(
            f"{where} is compressed, which needs numcodecs", hint="pip install 'offline-data[zarr]'"
        ) from error
    stated = {"blosc": slice(4, 8), "lz4": slice(0, 4)}.get(name)
    if stated and int.from_bytes(data[stated], "little") > nbytes:
        raise FormatError(f"{where} is damaged: it unpacks to more than its {nbytes:,} bytes")
    with name_damage(where):
        plain = name in _COMPRESSORS and name != "lzma"  # no parameter matters
        found = numcodecs.get_codec({"id": name} if plain else dict(codec)).decode(data)
    return np.ascontiguousarray(found).tobytes() if name in _FILTERS else found
