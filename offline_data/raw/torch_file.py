"""`.pt` files that `torch.save` wrote, of tensors in lists and dictionaries, read without torch.

A file is a zip: `data.pkl` says which tensors there are, `data/0`, `data/1`, … are their values. The
pickle is read as any from a stranger, with three more names that stand for descriptions.
"""

from __future__ import annotations

import io
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from offline_data.base.errors import FormatError
from offline_data.base.files import human_bytes
from offline_data.raw.archive import name_damage
from offline_data.raw.hdf5 import LARGEST_RATIO, UNWRITTEN
from offline_data.raw.npy import NpyHeader, NpyRows
from offline_data.raw.restricted_pickle import FixedFunction, PlainUnpickler

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

_ITEMS = {
    "BoolStorage": "?", "ByteStorage": "u1", "CharStorage": "i1", "DoubleStorage": "<f8",
    "FloatStorage": "<f4", "HalfStorage": "<f2", "IntStorage": "<i4", "LongStorage": "<i8",
    "ShortStorage": "<i2",
}  # fmt: skip
"""Item type of each class of storages; numpy has no bfloat16."""
_PICKLE = "data.pkl"
_LARGEST = 16 << 20  # bytes of the pickle, which has no values
_NAMES, _DEEPEST = 1 << 27, 32  # bytes of memory for the names of the values; lists within lists


class TorchTensor(NamedTuple):
    """A tensor, described but not read; nothing of it is checked before it is opened."""

    storage: Any
    offset: Any
    shape: Any
    strides: Any


class _Storage(NamedTuple):
    items: str
    key: Any


class _TensorUnpickler(PlainUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return FixedFunction(lambda *parts: TorchTensor(*parts[:4]))
        if module == "torch" and name in _ITEMS:
            return _ITEMS[name]
        if (module, name) == ("torch", "Size"):
            return tuple
        return super().find_class(module, name)

    def persistent_load(self, pid: Any) -> Any:
        word, items, key, *_ = pid
        if word != "storage" or items not in _ITEMS.values():
            raise ValueError("it refers to something else than the values of a tensor")
        return _Storage(items, key)


class TorchTensors:
    """The tensors and numbers of an open file by the path to them: `0/obs` for `[{"obs": …}]`."""

    def __init__(
        self, path: Path, archive: zipfile.ZipFile, files: Mapping[str, zipfile.ZipInfo]
    ) -> None:
        self.path, self._archive = path, archive
        self._inner = next(n for n in files if n.endswith(_PICKLE)).removesuffix(_PICKLE)
        self._files = files
        if files[f"{self._inner}{_PICKLE}"].file_size > _LARGEST:
            raise FormatError(f"{path} has a {_PICKLE} of more than {_LARGEST:,} bytes")
        if self._bytes_of("byteorder", b"little") != b"little":
            raise FormatError(f"{path} is of a big-endian machine; expected little-endian values")
        self.found: dict[str, Any] = {}
        self._names = 0
        try:
            value = _TensorUnpickler(io.BytesIO(self._bytes_of(_PICKLE))).load()
            self._add("", value, 0)
        except FormatError:
            raise
        except Exception as error:
            said = " ".join(str(error).split())[:300] or type(error).__name__
            raise FormatError(
                f"{path} cannot be read: {said}",
                hint="nothing in it was executed; save plain tensors: torch.save({'obs': obs, …}, FILE)",
            ) from error

    def _bytes_of(self, name: str, default: bytes = b"") -> bytes:
        if f"{self._inner}{name}" not in self._files:
            return default
        with name_damage(f"{self.path}, {name}"):
            return self._archive.read(self._inner + name)

    def _add(self, name: str, value: Any, depth: int) -> None:
        self._names += len(name) + 128
        if depth > _DEEPEST or self._names > _NAMES:
            raise FormatError(
                f"{self.path} has names that take more than {human_bytes(_NAMES)} of memory, or more "
                f"than {_DEEPEST} lists within lists"
            )
        if isinstance(value, TorchTensor) or type(value) in {bool, int, float}:
            self.found[name or "tensor"] = value
        elif type(value) in {list, tuple, dict}:
            parts = value.items() if type(value) is dict else enumerate(value)
            for key, part in parts:
                self._add(f"{name}/{key}" if name else str(key), part, depth + 1)

    def header(self, name: str) -> NpyHeader:
        """Return shape and item type of a tensor; raises `FormatError` if it is not in its storage."""
        value = self.found[name]
        if not isinstance(value, TorchTensor):
            return NpyHeader((), "C", np.asarray(value).dtype, 0)
        storage, offset, shape, strides = value
        lengths = (offset, *shape, *strides) if isinstance(shape, tuple) else ("",)
        where = f"{self.path}, tensor {name!r}"
        if not isinstance(storage, _Storage) or len(shape) != len(strides) or len(shape) > 32:
            raise FormatError(f"{where} is not a tensor of a storage")
        if not all(type(n) is int and 0 <= n < 1 << 62 for n in lengths):
            raise FormatError(f"{where} has a shape or strides of other things than lengths")
        dtype, stored = np.dtype(storage.items), self._file_of(storage).file_size
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        nbytes = prod(shape) * dtype.itemsize
        if prod(shape) and ((last + 1) * dtype.itemsize > stored):
            raise FormatError(f"{where} is of shape {list(shape)}, beyond its {stored:,} bytes")
        if nbytes > UNWRITTEN + LARGEST_RATIO * stored:
            raise FormatError(f"{where} declares {nbytes:,} bytes, for which it has {stored:,}")
        return NpyHeader(shape, "C", dtype, 0)

    def _file_of(self, storage: _Storage) -> zipfile.ZipInfo:
        found = self._files.get(f"{self._inner}data/{storage.key}")
        if found is None:
            raise FormatError(f"{self.path} has no values data/{storage.key!r:.40}")
        return found

    @contextmanager
    def rows(self, name: str) -> Iterator[NpyRows]:
        """Open a tensor to read its rows in order."""
        header, value = self.header(name), self.found[name]
        where = Path(f"{self.path}, tensor {name!r}")
        if not isinstance(value, TorchTensor):
            raw = np.asarray(value).tobytes()
            yield NpyRows(where, io.BytesIO(raw), len(raw), header)
            return
        info, size = self._file_of(value.storage), header.dtype.itemsize
        steps = [prod(header.shape[axis + 1 :]) for axis in range(len(header.shape))]
        with name_damage(where), self._archive.open(info) as stream:
            if list(value.strides) == steps or not prod(header.shape):
                stream.seek(value.offset * size)
                yield NpyRows(where, stream, info.file_size, header)
                return
            values = np.frombuffer(stream.read(), header.dtype)  # transposed, or a part of another
            strides = [step * size for step in value.strides]
            view = np.lib.stride_tricks.as_strided(values[value.offset :], header.shape, strides)
            yield NpyRows(where, io.BytesIO(view.tobytes()), view.nbytes, header)

    def read(self, name: str) -> NDArray[Any]:
        """Read a tensor."""
        with self.rows(name) as rows:
            shape = rows.header.shape
            return rows.read(shape[0] if shape else 1)
