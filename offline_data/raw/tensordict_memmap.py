"""Memory-mapped TensorDicts, as `TensorDict.memmap` writes them, described without torch.

```
meta.json         {"action": {"shape": [20, 2], "dtype": "torch.float32"}, "next": {"type": "TensorDict"}, "shape": [20], …}
action.memmap     values of a leaf; no file where there are none
next/meta.json    a nested TensorDict, or values that are not tensors: {"data": ["pick up", …], …}
```

Source: `tensordict/_td.py` and `tensordict/tensorclass.py` of https://github.com/pytorch/tensordict.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.json import MAX_DEPTH, count_of, read_json, shown
from offline_data.base.plurals import plural

META = "meta.json"
BUFFER_METADATA = "buffer_metadata.json"
PICKLE = "pickle.pkl"  # `PlainValues.data` of values that were pickled

_TENSORDICT = "<class 'tensordict._td.TensorDict'>"
_STACK = "<class 'tensordict.tensorclass.NonTensorStack'>"
_PLAIN = "<class 'tensordict.tensorclass.NonTensorData'>"
_MAX_JSON = 1 << 26  # texts of rows are in it
_DTYPES = {
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
}


@dataclass(frozen=True)
class MappedTensor:
    """A leaf whose file is long enough for its shape."""

    path: Path
    dtype: str
    """Name that torch and, except for bfloat16, numpy have."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all values; 0: there is no file."""
        bits = 8 if self.dtype == "bool" else int(self.dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))
        return math.prod(self.shape) * (bits // 8)

    def map(self) -> NDArray[Any]:
        """Map the values, read-only; raises `FormatError`."""
        try:
            if not self.nbytes:
                return np.empty(self.shape, self.dtype)
            found: NDArray[Any] = np.asarray(np.memmap(self.path, self.dtype, "r", 0, self.shape))
        except (OSError, OverflowError, ValueError) as error:
            raise FormatError(f"{self.path} cannot be mapped: {error}") from error
        if self.dtype == "bool" and int(found.view(np.uint8).max()) > 1:
            raise FormatError(f"{self.path} is not of bools, which are 0 or 1")
        return found


@dataclass(frozen=True)
class PlainValues:
    """Values that are not tensors."""

    data: Any
    """JSON, of which a list has a value for each row if `stacked`; or `PICKLE`."""
    stacked: bool


@dataclass(frozen=True)
class MappedDict:
    """A TensorDict."""

    shape: tuple[int, ...]
    content: Mapping[str, MappedTensor | PlainValues | MappedDict]

    def leaves(
        self, above: tuple[str, ...] = ()
    ) -> Iterator[tuple[tuple[str, ...], MappedTensor | PlainValues]]:
        """Yield nested keys and leaves."""
        for name, value in self.content.items():
            if isinstance(value, MappedDict):
                yield from value.leaves((*above, name))
            else:
                yield (*above, name), value


def is_torchrl_dump(folder: Path) -> bool:
    """Return True if TorchRL's `ReplayBuffer.dumps` wrote a folder, as its names say."""
    return os.path.lexists(folder / BUFFER_METADATA) and not os.path.lexists(folder / "state.json")


def read_tensordict(folder: Path, depth: int = 0) -> MappedDict | PlainValues:
    """Describe the TensorDict, or the values, in a folder; opens no file of values.

    Raises `FormatError`: a link, a missing or short file, a dtype or a class that is not read;
    `NotFoundError`, `AccessError`.
    """
    if depth > MAX_DEPTH:
        raise FormatError(f"{folder} is nested deeper than {MAX_DEPTH}")
    path = check_plain(folder, stat.S_ISDIR) / META
    metadata = read_fields(path)
    kind = metadata.get("_type")
    if kind in (_STACK, _PLAIN):
        data = metadata.get("data")
        if kind == _STACK and data != PICKLE and not isinstance(data, list):
            raise FormatError(f"{path}: 'data' is {shown(data)}; expected a list")
        return PlainValues(data, kind == _STACK)
    if kind != _TENSORDICT:
        raise FormatError(f"{path}: '_type' is {shown(kind)}; expected a TensorDict, or text")
    content: dict[str, MappedTensor | PlainValues | MappedDict] = {}
    for key, entry in metadata.items():
        if not isinstance(entry, dict):
            continue
        below = folder / _file_name(key)
        if "type" in entry:
            content[key] = read_tensordict(below, depth + 1)
        else:
            content[key] = describe_tensor(below.with_name(f"{below.name}.memmap"), entry)
    return MappedDict(_shape_of(metadata, path), content)


def is_tensordict(folder: Path, *names: str) -> bool:
    """Return True for a memory-mapped TensorDict with some names; raises like `read_tensordict`."""
    if not os.path.lexists(folder / META):
        return False
    metadata = read_fields(folder / META)
    return metadata.get("_type") == _TENSORDICT and metadata.keys() >= {*names}


def describe_tensor(path: Path, entry: Mapping[str, Any]) -> MappedTensor:
    """Return a leaf of the dtype and shape in `entry`; raises `FormatError`."""
    said = entry.get("dtype")
    name = said.removeprefix("torch.") if isinstance(said, str) else ""
    if name not in _DTYPES or said == name or entry.get("is_nested", False) is not False:
        raise FormatError(f"{path} is of {shown(said)}; expected a dtype of numbers, not nested")
    tensor = MappedTensor(path, name, _shape_of(entry, path))
    if tensor.nbytes:
        found = check_plain(path, stat.S_ISREG).lstat().st_size
        if found < tensor.nbytes:
            raise FormatError(
                f"{path} has {plural(found, 'byte')}; expected {shown(tensor.nbytes)} for {shown([*tensor.shape])}"
            )
    return tensor


def _shape_of(entry: Mapping[str, Any], path: Path) -> tuple[int, ...]:
    shape = entry.get("shape")
    if not isinstance(shape, list):
        raise FormatError(f"{path}: its shape is {shown(shape)}; expected a list")
    return tuple(count_of(size, f"{path}: a size of its shape") for size in shape)


def _file_name(key: str) -> str:
    """Return the name of a leaf's file as tensordict writes it: without separators."""
    if key in {"", ".", ".."}:
        return "%2E" * len(key) or "%"
    return re.sub(r'[\x00-\x1f\x7f/<>:"|?*\\ %]', lambda found: f"%{ord(found[0]):02X}", key)


def read_fields(path: Path) -> dict[str, Any]:
    """Return the JSON object in a plain file; raises like `read_tensordict`."""
    fields = read_json(check_plain(path, stat.S_ISREG), max_bytes=_MAX_JSON)
    if not isinstance(fields, dict):
        raise FormatError(f"{path} is {shown(fields)}; expected an object")
    return fields


def check_plain(path: Path, kind: Callable[[int], bool]) -> Path:
    """Return a path that is a plain file or folder itself, no link; raises `FormatError`."""
    what = "folder" if kind is stat.S_ISDIR else "file"
    try:
        if kind(path.lstat().st_mode):
            return path
    except OSError as error:
        raise FormatError(f"the {what} {path} cannot be read: {error.strerror}") from error
    raise FormatError(f"{path} is not a plain {what}; links are not followed")
