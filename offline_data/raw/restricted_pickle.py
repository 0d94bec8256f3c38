"""Reading pickles of arrays, numbers, text and plain containers without running code from them.

`pickle.Unpickler` decodes; globals are restricted to the table below, whose entries are functions of
this file that check their arguments before calling numpy. A pickle can still request much memory:
read those of strangers in a process with a memory limit.
"""

from __future__ import annotations

import io
import math
import pickle
import re
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError
from offline_data.base.plurals import plural

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CODE = re.compile(r"[<>=|]?(?:[biufcSUV][0-9]{1,10}|[mM]8(?:\[[0-9]{0,9}[a-zA-Zμ]{1,7}\])?)")
_OBJECT = re.compile(r"[<>=|]?O[0-9]?")
_BLOCK = 1 << 18  # bytes read at once
_LAST_CHARACTER = 0x10FFFF
_HINT = "nothing in it was executed; if the file is damaged, download it again"


def loads(data: bytes, *, where: str) -> Any:
    r"""Read one pickle of protocol 0 to 5, with nothing after it.

    Returns:
        A value of numbers, `str`, `bytes`, `bytearray`, None, `list`, `tuple`, `dict` (also for
        `OrderedDict`), `set`, `frozenset`, numpy scalars and `numpy.ndarray`, never of subclasses.
        Pillow images become arrays of pixels. Strings of Python 2 are `str`, decoded as Latin-1.

    Raises:
        FormatError: It contains anything else, or is damaged.

    Example:
        >>> loads(pickle.dumps({"action": np.array([1.5, -2.0])}), where="steps.pickle")
        {'action': array([ 1.5, -2. ])}
        >>> loads(b"cos\nsystem\n(S'true'\ntR.", where="steps.pickle")
        Traceback (most recent call last):
        offline_data.errors.FormatError: steps.pickle cannot be read: it asks for os.system; only ...
    """
    return _load(io.BytesIO(data), where)


def load(stream: IO[bytes], *, size: int, where: str) -> Any:
    """Read one pickle from a stream, up to its end or `size` bytes; see `loads`."""
    return _load(io.BufferedReader(_LimitedStream(stream, size), _BLOCK), where)


def _load(stream: IO[bytes], where: str) -> Any:
    try:
        value = _plain_values(PlainUnpickler(stream, encoding="latin-1").load())
    except (
        pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError, ImportError, LookupError,
        MemoryError, RecursionError, TypeError, ValueError,
    ) as error:  # fmt: skip
        reason = str(error)[:400] or type(error).__name__  # which may quote what is in the file
        raise FormatError(f"{where} cannot be read: {reason}", hint=_HINT) from error
    if more := sum(map(len, iter(lambda: stream.read(_BLOCK), b""))):
        raise FormatError(
            f"{where} cannot be read: {plural(more, 'byte follows', 'bytes follow')} it", hint=_HINT
        )
    return value


class _LimitedStream(io.RawIOBase):
    """At most `size` more bytes of a stream."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream: Any = stream
        self._left = max(0, size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer, /) -> int:
        count: int = self._stream.readinto(memoryview(buffer)[: self._left])
        self._left -= count
        return count


def plain_dtype(code: object) -> np.dtype[Any]:
    """Return the numpy dtype of one type string, as `.npy` headers and pickles write it.

    It has kind and size with or without byte order: `<f4`, `b1`, `U12`, `M8[ns]`, `O`. Raises
    `ValueError` for another form, which numpy might read as something else than one type.

    Example:
        >>> plain_dtype(">i2")
        dtype('>i2')
        >>> plain_dtype("f4,(100000,100000)O")
        Traceback (most recent call last):
        ValueError: 'f4,(100000,100000)O' is not a plain item type
    """
    if not isinstance(code, str) or not (_OBJECT.fullmatch(code) or _CODE.fullmatch(code)):
        raise ValueError(f"{code!r:.80} is not a plain item type")
    try:
        return np.dtype(object) if _OBJECT.fullmatch(code) else np.dtype(code)
    except TypeError as error:
        raise ValueError(f"{code!r} is not an item type of this numpy") from error


def check_text(array: NDArray[Any]) -> None:
    """Raise `ValueError` for text items with invalid characters, on which numpy fails later."""
    if array.dtype.kind == "U" and array.dtype.itemsize and array.size:
        codes = np.dtype(np.uint32).newbyteorder(array.dtype.byteorder)
        if np.ascontiguousarray(array).view(codes).max() > _LAST_CHARACTER:
            raise ValueError("text contains an invalid code point")


class _Dtype:
    """An item type in a pickle: what `numpy.dtype(…)` gave, and then got as its state."""

    __slots__ = ("dtype",)

    def __init__(self, code: object, *_flags: object) -> None:
        self.dtype = plain_dtype(code)

    def __setstate__(self, state: object) -> None:
        version, order, subtype, names, fields, *sizes = _tuple(state)
        if version not in {3, 4} or (subtype, names, fields) != (None, None, None):
            raise ValueError("it has an item type that is not plain")
        if self.dtype.kind in "mM" and len(sizes) == 4:  # the unit, after sizes and flags
            unit, count, *_ = _tuple(_tuple(sizes[3], 2)[1])
            if unit != b"generic":
                self.dtype = plain_dtype(f"{self.dtype.kind}8[{count}{_bytes(unit).decode()}]")
        if order in {"<", ">"}:
            self.dtype = self.dtype.newbyteorder(order)


class _Array:
    """An array in a pickle; `_plain_values` puts the array itself in its place."""

    __slots__ = ("array", "values")

    def __setstate__(self, state: object) -> None:
        _version, shape, dtype, fortran, values = _tuple(state, 5)
        order = "F" if fortran else "C"
        self.values: list[Any] = []
        if not _dtype_of(dtype).hasobject:
            self.array = _from_bytes(values, dtype, shape, order)
            return
        if type(values) is not list or len(values) != _count(shape):
            raise ValueError("an array of objects has not as many as its shape says")
        self.array = np.empty(shape, object, order)  # type: ignore[call-overload]
        self.values = values

    def fill(self, values: list[Any]) -> None:
        """Assign the objects one by one, in C order: numpy would unpack lists among them."""
        flat = np.empty(len(values), object)
        for place, value in enumerate(values):
            flat[place] = value
        self.array[...] = flat.reshape(self.array.shape)


class _Image(_Array):
    """An image of Pillow in a pickle, of which the pixels are taken; Pillow is not imported."""

    __slots__ = ()

    def __setstate__(self, state: Any) -> None:
        _info, mode, size, _palette, values = state[:5]
        if mode not in _PIXELS:
            raise ValueError(f"it has an image of mode {mode!r:.20}; {', '.join(_PIXELS)} are read")
        dtype, channels = _PIXELS[mode]
        shape = (*_tuple(size, 2)[::-1], *channels)
        self.values, self.array = [], _from_bytes(values, _Dtype(dtype), shape)


_PIXELS = {
    "L": ("u1", ()), "RGB": ("u1", (3,)), "RGBA": ("u1", (4,)), "I;16": ("<u2", ()),
    "I": ("<i4", ()), "F": ("<f4", ()),
}  # fmt: skip
"""Item type and channels of an image, by Pillow's mode."""


class FixedFunction:
    """A function that a pickle may call, and cannot change: pickles also set attributes."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> Any:
        """Call the function."""
        return self._function(*arguments)

    def __setstate__(self, state: object) -> None:
        raise TypeError("it changes a function")


def _from_bytes(values: object, dtype: object, shape: object, order: object = "C") -> Any:
    plain = _dtype_of(dtype)
    if plain.hasobject:
        raise ValueError("objects are not made of bytes")
    data = values.encode("latin-1") if isinstance(values, str) else values  # of Python 2
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError("the values of an array are not bytes")
    expected = plain.itemsize * _count(shape)
    if len(data) != expected:
        raise ValueError(
            f"an array {shape} of {plain} has {plural(len(data), 'byte')}, not {expected}"
        )
    lengths: Any = shape
    array: Any = np.ndarray(lengths, plain, bytearray(data), order="F" if order == "F" else "C")
    check_text(array)
    return array


def _count(shape: object) -> int:
    lengths = _tuple(shape)
    if len(lengths) > 32 or not all(type(n) is int and 0 <= n < 1 << 48 for n in lengths):
        raise ValueError("an array has a shape of other things than lengths")
    return math.prod(lengths)


def _dtype_of(value: object) -> np.dtype[Any]:
    if not isinstance(value, _Dtype):
        raise TypeError("an array has no item type")
    return value.dtype


def _tuple(value: object, length: int | None = None) -> tuple[Any, ...]:
    if type(value) is not tuple or (length is not None and len(value) != length):
        raise ValueError("numpy's part of it has an unknown form")
    return value


def _encode(text: object, encoding: object = "latin1") -> bytes:
    if not isinstance(text, str) or encoding not in {"latin1", "latin-1"}:
        raise ValueError(f"it asks for text in {encoding!r:.40}")
    return text.encode("latin-1")


def _bytes(data: object = b"", *encoding: object) -> bytes:
    """`bytes(data)`, but not `bytes(int)`, which would allocate."""
    if isinstance(data, str):
        return _encode(data, *encoding)
    if not isinstance(data, (bytes, bytearray, list)):
        raise TypeError("it asks for bytes of something else than bytes")
    return bytes(data)


_OF_NUMPY = {
    ("multiarray", "_reconstruct"): FixedFunction(lambda *_: _Array()),
    ("multiarray", "scalar"): FixedFunction(
        lambda dtype, data=b"": _from_bytes(data, dtype, ())[()]
    ),
    ("numeric", "_frombuffer"): FixedFunction(_from_bytes),
}
_OF_PYTHON = {
    "set": set, "frozenset": frozenset, "complex": complex, "list": list, "dict": dict,
    "tuple": tuple, "bytes": FixedFunction(_bytes),
    "bytearray": FixedFunction(lambda *given: bytearray(_bytes(*given))),
}  # fmt: skip
_NAMES: dict[tuple[str, str], Any] = {
    **{(f"numpy.{c}.{m}", n): f for c in ("core", "_core") for (m, n), f in _OF_NUMPY.items()},
    **{(m, n): f for m in ("builtins", "__builtin__") for n, f in _OF_PYTHON.items()},
    ("numpy", "ndarray"): FixedFunction(lambda *_: _Array()),
    ("numpy", "dtype"): FixedFunction(_Dtype),
    ("collections", "OrderedDict"): dict,
    ("_codecs", "encode"): FixedFunction(_encode),
    ("PIL.Image", "Image"): _Image,
    ("PIL.JpegImagePlugin", "JpegImageFile"): _Image,
    ("PIL.PngImagePlugin", "PngImageFile"): _Image,
}
"""Names that a pickle may use. Types among them are Python's own, which nobody can change, and `_Image`,
which a pickle gives a state to where it would change it."""

_LEAVES = (bool, int, float, complex, str, bytes, bytearray, type(None), np.generic)


class PlainUnpickler(pickle.Unpickler):
    """Knows no names but those of plain values; see `loads`."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what stands for a name."""
        if (module, name) in _NAMES:
            return _NAMES[module, name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}; only plain values are read")

    def persistent_load(self, _pid: object) -> Any:
        """Reject references to objects outside the pickle."""
        raise pickle.UnpicklingError("it refers to an object outside itself")


def _plain_values(value: Any) -> Any:
    """Return the value with arrays in place of `_Array`; reject anything else that is not plain."""
    # Containers are visited before and after their items, with an explicit stack: they may be
    # nested deeper than Python's recursion limit.
    made: dict[int, Any] = {}
    old: list[Any] = []  # keeps the numbers of objects that are replaced from being given again
    waiting = [(value, False)]
    while waiting:
        item, visited = waiting.pop()
        if _is_leaf(item) or (id(item) in made and not visited):
            continue
        parts = _parts(item)
        if not visited:
            old.append(item)
            if type(item) is not tuple:
                made[id(item)] = item.array if isinstance(item, _Array) else item
            waiting.append((item, True))
            waiting += [(part, False) for part in parts]
            continue
        plain = [_get_made(part, made) for part in parts]
        if type(item) is tuple:
            made[id(item)] = tuple(plain)
        elif type(item) is list:
            item[:] = plain
        elif type(item) is dict:
            item.update(zip(list(item), plain, strict=True))
        elif isinstance(item, _Array) and item.values:
            item.fill(plain)
    return _get_made(value, made)


def _is_leaf(item: Any) -> bool:
    return isinstance(item, _LEAVES) or type(item) is np.ndarray


def _get_made(item: Any, made: dict[int, Any]) -> Any:
    if not _is_leaf(item) and id(item) not in made:
        raise ValueError("it has a tuple that contains itself")
    return item if _is_leaf(item) else made[id(item)]


def _parts(item: Any) -> list[Any]:
    """Return the values in a container; raises for all that is not plain."""
    if type(item) in {list, tuple}:
        return list(item)
    if isinstance(item, _Array) and hasattr(item, "array"):
        return item.values
    if type(item) not in {dict, set, frozenset}:
        raise TypeError("it contains objects that are not plain values")
    keys = list(item)
    while keys:
        key = keys.pop()
        if type(key) in {tuple, frozenset}:
            keys += key
        elif not isinstance(key, _LEAVES):
            raise TypeError("it has a key that is not plain")
    return list(item.values()) if type(item) is dict else []
