from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from offline_data.base.errors import FormatError
from offline_data.raw.tf_example import BytesValues, parse_example
from tests.toys.rlds import decode_example, encode_example, example_class, toy_record

FLOATS = st.lists(st.floats(width=32), max_size=4).map(lambda x: np.array(x, np.float32))
INTS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4).map(lambda x: np.array(x, np.int64))
BYTES = st.lists(st.binary(max_size=9), max_size=3)


RECORD = encode_example({k: v for k, v in toy_record(1, 2).items() if "image" not in k})


def plain(values: Any) -> Any:
    if isinstance(values, BytesValues):
        return [values[number] for number in range(len(values))]
    return values


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        mine = plain(found[name])
        if isinstance(values, list):
            assert mine == values
        else:
            assert mine.dtype == values.dtype
            assert np.array_equal(mine, values, equal_nan=values.dtype.kind == "f")


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(max_size=5), st.one_of(FLOATS, INTS, BYTES), max_size=3))
@example({"x" * size: np.arange(size) for size in (0, 1, 2, 9, 60, 126, 127, 128)})
@example({"é" * 100: [b"x" * 300, b""], "b": np.arange(200), "c": np.ones(200, np.float32)})
def test_what_protobuf_writes(features: dict[str, Any]) -> None:
    assert_same(parse_example(encode_example(features)), features)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_give_features_or_one_error(data: bytes) -> None:
    with suppress(FormatError):
        parse_example(data)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255), st.booleans())
def test_damaged_messages(place: int, byte: int, cut: bool) -> None:
    data = bytearray(RECORD)
    place %= len(data)
    data[place] = byte
    with suppress(FormatError):
        parse_example(bytes(data[:place] if cut else data))


def field(number: int, wire: int, content: bytes) -> bytes:
    tag = bytes([number << 3 | wire])
    return tag + (bytes([len(content)]) if wire == 2 else b"") + content


def message(*entries: bytes) -> bytes:
    return field(1, 2, b"".join(field(1, 2, entry) for entry in entries))


def entry(name: str, *lists: bytes) -> bytes:
    return field(1, 2, name.encode()) + field(2, 2, b"".join(lists))


FORMS = {
    "floats that are not packed": message(
        entry("a", field(2, 2, field(1, 5, b"\0\0\x80?") + field(1, 5, b"\0\0\0@")))
    ),
    "integers that are not packed": message(
        entry("a", field(3, 2, field(1, 0, b"\xac\x02") + field(1, 0, b"\xff" * 9 + b"\x01")))
    ),
    "integers of both forms": message(
        entry("a", field(3, 2, field(1, 0, b"\x05") + field(1, 2, b"\x06\x07")))
    ),
    "a list in two parts": message(
        entry("a", field(3, 2, field(1, 2, b"\x05")), field(3, 2, field(1, 2, b"\x06")))
    ),
    "the value before the name": message(
        field(2, 2, field(3, 2, field(1, 2, b"\x05"))) + field(1, 2, b"a")
    ),
    "a name twice": message(
        entry("a", field(3, 2, field(1, 2, b"\x05"))), entry("a", field(1, 2, field(1, 2, b"x")))
    ),
    "fields that are not known": field(9, 0, b"\x01")
    + field(8, 1, bytes(8))
    + message(entry("a", field(3, 2, field(1, 2, b"\x05") + field(7, 2, b"zz"))))
    + field(7, 2, b"zz"),
    "lists without values": message(
        *(entry(name, field(kind, 2, b"")) for kind, name in enumerate("abc", 1)), entry("d")
    ),
    "another message": b"",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_that_the_wire_format_allows(form: str) -> None:
    data = FORMS[form]
    assert example_class().FromString(data) is not None
    assert_same(parse_example(data), decode_example(data))
