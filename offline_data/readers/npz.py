"""`.npz` files: named arrays, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from offline_data.errors import NotFoundError
from offline_data.readers.npy import read_npy
from offline_data.readers.npy_header import read_header
from offline_data.readers.zips import open_zip

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from offline_data.readers.npy_header import NpyHeader

_SUFFIX = ".npy"


@contextmanager
def open_npz(path: Path, *, most: int) -> Iterator[NpzArrays]:
    """Open a `.npz` file for as long as the block runs.

    Args:
        path: The file, also where its name ends otherwise.
        most: Bytes that its arrays together may have.

    Raises:
        OfflineDataError: What `zips.open_zip` raises.

    Example:
        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "episode.npz")
        ...     np.savez_compressed(path, reward=np.array([1001, 1002], np.float32))
        ...     with open_npz(path, most=1000) as arrays:
        ...         print(list(arrays), arrays.shape_of("reward"), arrays["reward"])
        ['reward'] (2,) [1001. 1002.]
    """
    with open_zip(path, most=most) as archive:
        yield NpzArrays(archive, path)


class NpzArrays(Mapping[str, "NDArray[Any]"]):
    """The arrays of an open `.npz` file by name, in the order of its directory.

    Every access reads the array anew, into its own memory. One thread at a time.

    Args:
        archive: What `zips.open_zip` gives.
        path: The file, for messages.

    Attributes:
        others: Names of members that are no arrays; they are left alone.
    """

    def __init__(self, archive: zipfile.ZipFile, path: Path) -> None:
        self._archive, self._path = archive, path
        files = [info for info in archive.infolist() if not info.is_dir()]
        self._members = {
            info.filename.removesuffix(_SUFFIX): info
            for info in files
            if info.filename.endswith(_SUFFIX)
        }
        self._headers: dict[str, NpyHeader] = {}
        self.others = tuple(x.filename for x in files if not x.filename.endswith(_SUFFIX))

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Read one array; raises `NotFoundError` or `FormatError`, which names file and array."""
        info = self._member(name)
        with self._archive.open(info) as stream:
            return read_npy(stream, size=info.file_size, where=self._where(name))

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def get(self, name: str, default: Any = None) -> Any:
        """Return an array, or `default` where there is none of this name."""
        if name not in self:
            return default
        return self[name]

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of an array without reading its values."""
        return self._header(name).shape

    def dtype_of(self, name: str) -> np.dtype[Any]:
        """Return the item type of an array without reading its values."""
        return self._header(name).dtype

    def _header(self, name: str) -> NpyHeader:
        if name not in self._headers:
            with self._archive.open(self._member(name)) as stream:
                self._headers[name] = read_header(stream, where=self._where(name))
        return self._headers[name]

    def _member(self, name: str) -> zipfile.ZipInfo:
        if name not in self._members:
            there = ", ".join(self._members) or "none"
            raise NotFoundError(f"{self._path} has no array {name!r}; arrays: {there}")
        return self._members[name]

    def _where(self, name: str) -> str:
        return f"{self._path}, array {name!r}"
