"""Reading `tf.train.Example` messages from the wire format, without TensorFlow or protobuf.

```proto
message Example   { Features features = 1; }
message Features  { map<string, Feature> feature = 1; }
message Feature   { oneof kind { BytesList = 1; FloatList = 2; Int64List = 3; } }   // repeated value = 1
```
The wire format is described at https://protobuf.dev/programming-guides/encoding. Arrays are views of
the message, while protobuf creates a Python object for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from offline_data.base.errors import FormatError

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MOST_VARINT = 10  # bytes of the longest varint, which every negative number has


@dataclass(frozen=True)
class BytesValues:
    """Values of a `BytesList`, as places in the message that they are of."""

    data: bytes
    begins: list[int]
    ends: list[int]

    def __len__(self) -> int:
        return len(self.begins)

    def __getitem__(self, number: int) -> bytes:
        return self.data[self.begins[number] : self.ends[number]]


Value: TypeAlias = "BytesValues | NDArray[np.float32] | NDArray[np.int64]"
"""All values of one feature: `[n]`."""


def parse_example(data: bytes) -> dict[str, Value]:
    """Read a serialized `tf.train.Example`: values of features by name; raises `FormatError`.

    Features without a list are left out, since their kind is unknown.

    Example:
        >>> parse_example(bytes.fromhex("0a120a100a0672657761726412061a040a020507"))
        {'reward': array([5, 7])}
    """
    found: dict[str, Value] = {}
    try:
        for number, wire, begin, end in _fields(data, 0, len(data)):
            if number == 1 and wire == _LENGTH:
                _read_features(data, begin, end, found)
    except (IndexError, ValueError) as error:
        raise FormatError(f"it is not a tf.train.Example: {error}") from error
    return found


def _read_features(data: bytes, at: int, end: int, found: dict[str, Value]) -> None:
    """Read the entries of the map; one of a name that was there replaces that."""
    while at < end:
        if data[at] != 0x0A:  # not an entry
            _, _, _, at = next(_fields(data, at, end))
            continue
        length, at = _varint(data, at + 1)
        stop = at + length
        if stop > end:
            raise ValueError("an entry ends after its map")
        # Every writer puts a name and one list of values, in this order; anything else is read as
        # the wire format allows it.
        key = at + 2 + data[at + 1] if stop - at > 1 and data[at + 1] < 128 else stop
        if key + 3 < stop and data[at] == 0x0A and data[key] == 0x12:
            length, begin = _varint(data, key + 1)
            kind = data[begin] >> 3
            if length and begin + length == stop and data[begin] & 7 == _LENGTH:
                length, begin = _varint(data, begin + 1)
                if begin + length == stop and kind in _READERS:
                    found[data[at + 2 : key].decode()] = _READERS[kind](data, [(begin, stop)])
                    at = stop
                    continue
        _read_entry(data, at, stop, found)
        at = stop


def _read_entry(data: bytes, begin: int, end: int, found: dict[str, Value]) -> None:
    """Read an entry of any form; lists of the same kind are joined, and the last kind counts."""
    name, lists = "", []
    for number, wire, at, stop in _fields(data, begin, end):
        if number == 1 and wire == _LENGTH:
            name = data[at:stop].decode()
        elif number == 2 and wire == _LENGTH:
            lists += [field for field in _fields(data, at, stop) if field[0] in _READERS]
    if lists:
        kind = lists[-1][0]
        places = [(at, stop) for number, _, at, stop in lists if number == kind]
        found[name] = _READERS[kind](data, places)


def _read_bytes(data: bytes, places: list[tuple[int, int]]) -> BytesValues:
    begins: list[int] = []
    ends: list[int] = []
    for at, end in places:
        while at < end:
            if data[at] != 0x0A:
                raise ValueError("a list of bytes has another field")
            length = data[at + 1]
            at += 2
            if length > 127:  # of an image: two or three bytes, read here, as there are many
                middle, last = data[at], data[at + 1]
                if middle < 128:
                    length += (middle << 7) - 128
                    at += 1
                elif last < 128:
                    length += (last << 14) + (middle << 7) - 128 - (128 << 7)
                    at += 2
                else:
                    length, at = _varint(data, at - 1)
            begins.append(at)
            at += length
            ends.append(at)
        if at != end:
            raise ValueError("a value ends after its list")
    return BytesValues(data, begins, ends)


def _read_floats(data: bytes, places: list[tuple[int, int]]) -> NDArray[np.float32]:
    parts = []
    for begin, end in places:
        for number, wire, at, stop in _fields(data, begin, end):
            if number == 1 and wire in {_LENGTH, _FIXED32}:  # packed, or one by one
                if (stop - at) % 4:
                    raise ValueError("a list of floats has a part of one")
                parts.append(np.frombuffer(data, "<f4", (stop - at) // 4, at))
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.float32), *parts])


def _read_ints(data: bytes, places: list[tuple[int, int]]) -> NDArray[np.int64]:
    parts = []
    for begin, end in places:
        for number, wire, at, stop in _fields(data, begin, end):
            if number == 1 and wire in {_LENGTH, _VARINT}:
                parts.append(_unpack_varints(np.frombuffer(data, np.uint8, stop - at, at)))
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])


_READERS: dict[int, Callable[[bytes, list[tuple[int, int]]], Value]] = {
    1: _read_bytes,
    2: _read_floats,
    3: _read_ints,
}
"""Reader of the list of each field of `Feature`, given the places of its messages."""


def _unpack_varints(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return varints that lie end to end, all at once.

    Example:
        >>> _unpack_varints(np.array([5, 0xAC, 2], np.uint8)).tolist()
        [5, 300]
    """
    goes_on = data > 127
    if not goes_on.any():
        return data.astype(np.int64)
    if goes_on[-1]:
        raise ValueError("a list of integers is cut off")
    stops = np.flatnonzero(~goes_on) + 1
    starts = np.concatenate([[0], stops[:-1]])
    lengths = stops - starts
    if lengths.max() > _MOST_VARINT:
        raise ValueError("an integer has more than 64 bits")
    values = np.zeros(len(starts), np.uint64)
    for place in range(int(lengths.max())):
        has = lengths > place
        bits = (data[starts[has] + place] & 0x7F).astype(np.uint64)
        values[has] |= bits << np.uint64(7 * place)
    return values.view(np.int64)


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, begin and end of each field of a message."""
    while at < end:
        tag = data[at]
        at += 1
        if tag > 127:
            tag, at = _varint(data, at - 1)
        wire = tag & 7
        if wire == _LENGTH:
            length, at = _varint(data, at)
        elif wire == _VARINT:
            length = _varint(data, at)[1] - at
        elif wire in {_FIXED64, _FIXED32}:
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"a field has wire type {wire}")
        if at + length > end:
            raise ValueError("a field ends after its message")
        yield tag >> 3, wire, at, at + length
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("an integer has more than 64 bits")
