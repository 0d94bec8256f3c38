"""What a pickle may not do: run, import, take memory without end, or build what numpy never wrote."""

from __future__ import annotations

import collections
import os
import pickle
import re
import struct
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.errors import FormatError
from offline_data.readers.pickles import loads

PROTOCOLS = range(6)
PROTO = b"\x80\x04"


def read(data: bytes) -> Any:
    return loads(data, where="steps.pickle")


def refused(data: bytes, match: str) -> None:
    with pytest.raises(FormatError, match=match) as caught:
        read(data)
    assert re.match(r"steps\.pickle cannot be read at byte \d+: ", caught.value.message)


def array_of(item: Any) -> Any:
    array = np.empty(1, object)
    array[0] = item
    return array


class Calls:
    """What pickles as a call of anything."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


class Plain:
    """An instance like any other: its class and its attributes."""

    def __init__(self) -> None:
        self.reward = 1001


class Matrix(np.ndarray[Any, Any]):
    """A subclass of the array."""


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("hidden", ["alone", "in a list", "in an array", "as a key", "in a state"])
@pytest.mark.parametrize("function", ["os.system", "builtins.eval", "subprocess.check_call"])
def test_nothing_is_run(tmp_path: Path, function: str, hidden: str, protocol: int) -> None:
    canary = tmp_path / "canary"
    command = f"touch {canary}"
    call = {
        "os.system": Calls(os.system, command),
        "builtins.eval": Calls(eval, f"open({str(canary)!r}, 'w').close()"),
        "subprocess.check_call": Calls(subprocess.check_call, ["touch", str(canary)]),
    }[function]
    value: Any = {
        "alone": call,
        "in a list": [np.array([1001, 1002], "f4"), {"k": (call,)}],
        "in an array": array_of([call]),
        "as a key": {call: 1},
        "in a state": Calls(Calls, call),
    }[hidden]
    data = pickle.dumps(value, protocol)
    asked = {"os.system": r"(posix|nt)\.system", "builtins.eval": r"(__builtin__|builtins)\.eval"}
    first = asked.get(function, r"(commands|subprocess)\.check_call")
    refused(data, rf"it asks for ({first}|.*\.Calls); only arrays, numbers, text, bytes and plain")
    assert not canary.exists()


def test_the_canary_lives(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    pickle.loads(pickle.dumps(Calls(os.system, f"touch {canary}")))  # noqa: S301 - what must not be
    assert canary.exists()


def name(module: str, attribute: str) -> bytes:
    return b"c" + module.encode() + b"\n" + attribute.encode() + b"\n"


def by_stack(module: str, attribute: str) -> bytes:
    texts = (module.encode(), attribute.encode())
    return b"".join(b"\x8c" + bytes([len(text)]) + text for text in texts) + b"\x93"


SYSTEM = name("os", "system") + b"(S'true'\ntR."


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (SYSTEM, r"at byte 0: it asks for os\.system"),
        (b"(lp0\n" + SYSTEM, r"at byte 5: it asks for os\.system"),
        (PROTO + by_stack("collections", "OrderedDict.fromkeys") + b".", r"OrderedDict\.fromkeys"),
        (PROTO + by_stack("numpy", "ndarray.tofile") + b".", r"numpy\.ndarray\.tofile"),
        (PROTO + by_stack("numpy", "load") + b".", r"numpy\.load"),
        (PROTO + by_stack("builtins", "getattr") + b".", r"builtins\.getattr"),
        (PROTO + by_stack("numpy.core.multiarray", "__builtins__") + b".", "__builtins__"),
        (PROTO + b"NN\x93.", "a name that is no text"),
        (name("evil\x1b[2J", "x" * 300) + b".", r"it asks for 'evil\\x1b\[2J\.x+';"),
        (name("os", "system\x1b[2J") + b".", r"it asks for 'os\.system\\x1b\[2J';"),
        (b"(" + name("builtins", "list") + b"o.", r"builtins\.list"),
        (b"(ios\nsystem\n.", "the opcode INST"),
        (b"(" + name("builtins", "set") + b"No.", "the opcode OBJ"),
        (b"\x80\x02\x82\x01.", "the opcode EXT1"),
        (b"\x80\x02\x83\x01\x00.", "the opcode EXT2"),
        (b"\x80\x02\x84\x01\x00\x00\x00.", "the opcode EXT4"),
        (b"Pevil\n.", "the opcode PERSID"),
        (b"NQ.", "the opcode BINPERSID"),
        (b"\x80\x05\x97.", "the opcode NEXT_BUFFER"),
        (b"\x80\x05N\x98.", "the opcode READONLY_BUFFER"),
        (name("builtins", "set") + b")}\x92.", "the opcode NEWOBJ_EX"),
        (b"\xff.", "no opcode, but the byte 0xff"),
        (b"\x80\x06N.", "of protocol 6; 0 to 5 are read"),
        (b"](K\x01K\x02eN}b.", "it sets the state of a dict|NoneType"),
        (b"]}b.", "it sets the state of a list"),
        (b"}}b.", "it sets the state of a dict"),
        (b"(tS'x'\nb.", "it sets the state of a tuple"),
        (name("numpy", "dtype") + b"}b.", "it sets the state of a Name"),
        (name("builtins", "set") + b".", r"it holds builtins\.set as a value"),
        (b"]" + name("numpy", "ndarray") + b"a.", r"it holds numpy\.ndarray as a value"),
        (b"(" + name("numpy", "dtype") + b"K\x01d.", "a Name is a key"),
        (pickle.dumps({"x": [np.dtype("f4")]}), "it holds an item type of numpy as a value"),
        (pickle.dumps(array_of((np.dtype("f4"),))), "it holds an item type of numpy as a value"),
        (name("numpy", "ndarray") + b"(K\x05tR.", r"it calls numpy\.ndarray itself"),
        (name("builtins", "set") + b"NR.", r"it calls builtins\.set itself"),
        (b"](K\x05tR.", "it calls a list"),
        (b"N" + b"(K\x05t\x81.", "it calls a NoneType"),
        (name("builtins", "bytearray") + b"(J\xff\xff\xff\x7ftR.", "not meant for it"),
        (name("builtins", "bytes") + b"(J\xff\xff\xff\x7ftR.", "not meant for it"),
        (name("builtins", "set") + b"(S'abc'\ntR.", "not meant for it"),
        (name("builtins", "complex") + b"(S'1'\nK\x01tR.", "not meant for it"),
        (name("collections", "OrderedDict") + b"(](]etR.", "not meant for it"),
        (name("_codecs", "encode") + b"(Vx\nVrot13\ntR.", "not meant for it"),
        (name("_codecs", "encode") + b"(V\\u20ac\nVlatin1\ntR.", "can't encode|codec"),
        (b"N.N", "1 bytes follow its end"),
        (b"NN.", "does not end with one value"),
        (b"N(N.", "does not end with one value"),
        (b"(N.", "does not end with one value"),
        (b"", "it ends too early"),
        (b"N", "it ends too early"),
        (b"K", "it ends too early"),
        (b"I12", "a line does not end"),
        (b"I1_0\n.", "b'1_0' is no whole number"),
        (b"I" + b"9" * 5000 + b"\n.", "is no whole number"),
        (b"Fx\n.", "could not convert"),
        (b"Sabc\n.", "is no string in quotes"),
        (b"S'\\u0041'\n.", "an escape that Python 2 does not write"),
        (b"S'\\\\\\'\n.", "an escape that Python 2 does not write"),
        (b"X\x05\x00\x00\x00ab.", "5 bytes are announced, 3 follow"),
        (b"T\xff\xff\xff\xffab.", "-1 bytes are announced"),
        (b"\x8b\xff\xff\xff\xffab.", "-1 bytes are announced"),
        (b"\x8e\xff\xff\xff\xff\xff\xff\xff\xffab.", "18446744073709551615 bytes are announced"),
        (b"\x96\x00\x00\x00\x00\x00\x01\x00\x00ab.", "bytes are announced"),
        (b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00N.", "a frame of 5 bytes is announced"),
        (b"X\x02\x00\x00\x00\xff\xfe.", "utf-8"),
        (b"h\x05.", "it refers to value 5, which it never kept"),
        (b"g-1\n.", "it refers to value -1"),
        (b"q\x00.", "it takes what was never put on its stack"),
        (b"t.", "it takes what was never put on its stack"),
        (b"1.", "it takes what was never put on its stack"),
        (b"N\x86.", "it takes what was never put on its stack"),
        (b"}K\x01s.", "it adds to a|a key without|never put"),
        (b"}(K\x01u.", "a key without a value"),
        (b"NNa.", "it adds to a NoneType as if it were a list"),
        (b"](NNu.", "it adds to a list as if it were a dict"),
        (b"]((Ke\x90.", "it adds to a list|never put"),
        (b"}]Ns.", "a list is a key"),
        (b"\x8f(]\x90.", "a list is a key"),
        (b"(]\x91.", "a list is a key"),
        (b"}\x8b\x10\x00\x00\x00" + b"\x77" * 16 + b"Ns.", "64 bits"),
    ],
)
def test_what_else_is_refused(data: bytes, match: str) -> None:
    refused(data, match)


def test_classes_are_refused_by_name() -> None:
    matrix = np.zeros(2).view(Matrix)
    for value, asked in (
        (Plain(), r"\.Plain"),
        (matrix, r"\.Matrix"),
        (np.ma.masked_array([1]), r"numpy\.ma\."),
        (np.zeros(1, [("x", "f4")]).view(np.recarray), "recarray"),
        (Path("x"), r"pathlib"),
        (slice(1), "slice"),
        (range(3), "x?range"),
        (len, "len"),
        (collections.Counter(), "Counter"),
        (np.random.default_rng(0), r"numpy\.random"),
    ):
        for protocol in (2, 4, 5):
            refused(pickle.dumps(value, protocol), f"it asks for .*{asked}")
    for protocol in (0, 1):
        refused(pickle.dumps(Plain(), protocol), r"it asks for copy_reg\._reconstructor")


class State:
    """Pickles as a numpy object given this state."""

    def __init__(self, make: tuple[Any, ...], state: Any) -> None:
        self.made = (*make, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.made


def array_with(*state: Any) -> State:
    return State((EMPTY, (np.ndarray, (0,), b"b")), state)


def type_with(*state: Any, code: str = "V8") -> State:
    return State((np.dtype, (code, False, True)), state)


EMPTY: Any = np.zeros(1).__reduce__()[0]
SCALAR: Any = np.float32(1).__reduce__()[0]
BUFFER: Any = np.zeros(1).__reduce_ex__(5)[0]
F4, OBJECT = np.dtype("f4"), np.dtype(object)
ONE = b"\0\0\x80?"


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (array_with(1, (2,), F4, False, ONE), r"an array \[2\] of float32 has 4 bytes, not 8"),
        (array_with(1, (10**15,), F4, False, ONE), "has 4 bytes, not 4000000000000000"),
        (array_with(1, (1 << 62, 4), F4, False, b""), "has 0 bytes, not"),
        (array_with(1, (-1,), F4, False, ONE), "no whole numbers from 0 on"),
        (array_with(1, (1 << 70, 0), F4, False, b""), "no whole numbers from 0 on"),
        (array_with(1, (True,), F4, False, ONE), "no whole numbers from 0 on"),
        (array_with(1, [1], F4, False, ONE), "a shape of 32 whole numbers at most"),
        (array_with(1, (1,) * 33, F4, False, ONE), "a shape of 32 whole numbers at most"),
        (array_with(1, (1,), "f4", False, ONE), "no tuple of five with an item type"),
        (array_with(1, (1,), F4, False), "no tuple of five"),
        (array_with(2, (1,), F4, False, ONE), "another version than 1"),
        (array_with(1, (1,), F4, "F", ONE), "another version than 1"),
        (array_with(1, (1,), F4, False, 4), "raw bytes of numpy values is something else"),
        (array_with(1, (1,), F4, False, [1.0]), "raw bytes of numpy values is something else"),
        (array_with(1, (1,), F4, False, "€€€€"), "latin-1"),
        (array_with(1, (2,), OBJECT, False, [1]), "no list of 2 items"),
        (array_with(1, (1,), OBJECT, False, ONE + ONE), "no list of 1 items"),
        (array_with(1, (1,), OBJECT, False, (1,)), "no list of 1 items"),
        (array_with(1, (1,), np.dtype("U1"), False, b"\xff" * 4), "no character"),
        (array_with(1, (1,), np.dtype([("t", ">U1")]), False, b"\1\0\0\0"), "no character"),
        (Calls(SCALAR, F4, ONE + ONE), "has 8 bytes, not 4"),
        (Calls(SCALAR, OBJECT, {}), "not meant for it"),
        (Calls(SCALAR, F4, [1]), "raw bytes"),
        (Calls(SCALAR, F4), "not meant for it"),
        (Calls(EMPTY, np.ndarray, (5,), b"b"), "not meant for it"),
        (Calls(EMPTY, np.ndarray, (0,), b"O"), "not meant for it"),
        (Calls(EMPTY, np.ndarray, (0,), b"b"), "never gets its values"),
        (Calls(EMPTY, np.dtype, (0,), b"b"), "not numpy.ndarray"),
        (Calls(BUFFER, ONE, F4, (2,), "C"), "has 4 bytes, not 8"),
        (Calls(BUFFER, ONE, F4, (1,), "A"), "not meant for it"),
        (Calls(BUFFER, "text", F4, (1,), "C"), "not meant for it"),
        (Calls(BUFFER, b"1234" * 2, OBJECT, (1,), "C"), "not meant"),
        (Calls(BUFFER, ONE, F4, (1,), "K", (1,)), "not meant for it"),
        (Calls(BUFFER, ONE, F4, (1,), "K", [0]), "a shape of 32"),
        (Calls(np.dtype, "f4,(3)O", False, True), "is no plain item type"),
        (Calls(np.dtype, "float64", False, True), "is no plain item type"),
        (Calls(np.dtype, "U99999999999", False, True), "is no plain item type"),
        (Calls(np.dtype, "f3", False, True), "'f3' is no item type of numpy here"),
        (Calls(np.dtype, [("a", "f4")], False, True), "not meant for it"),
        (Calls(np.dtype, "f4", True, True), "not meant for it"),
        (Calls(np.dtype, {"names": []}), "not meant for it"),
        (type_with(3, "<", None, None, None, -1, -1), "another version than 3 or 4"),
        (type_with(9, "<", None, None, None, -1, -1, 0), "another version than 3 or 4"),
        (type_with(3, "!", None, None, None, -1, -1, 0), "byte order of an item type is none"),
        (type_with(3, "<", None, None, None, 9, -1, 0), "said to have another size"),
        (type_with(3, "|", None, ("a",), {"a": (F4, 8)}, 8, 1, 0), "lies outside of it"),
        (type_with(3, "|", None, ("a",), {"a": (F4, -1)}, 8, 1, 0), "lies outside of it"),
        (type_with(3, "|", None, ("a",), {"a": (F4, 0)}, 99, 1, 0), "said to have another size"),
        (type_with(3, "|", None, ("a",), {"a": (F4, 0)}, "8", 1, 0), "a size that is no number"),
        (type_with(3, "|", None, ("a",), {"b": (F4, 0)}, 8, 1, 0), "not those it names"),
        (type_with(3, "|", None, ("a", "a"), {"a": (F4, 0)}, 8, 1, 0), "name"),
        (type_with(3, "|", None, ((),), {(): (F4, 0)}, 8, 1, 0), "not those it names"),
        (type_with(3, "|", None, ("a",), [1], 8, 1, 0), "no names or no fields"),
        (type_with(3, "|", None, ("a",), {"a": (F4,)}, 8, 1, 0), "not an item type and an offset"),
        (type_with(3, "|", None, ("a",), {"a": (F4, 0, "t")}, 8, 1, 0), "not an item type and"),
        (type_with(3, "|", None, ("a",), {"a": ("f4", 0)}, 8, 1, 0), "not an item type and"),
        (type_with(3, "|", None, ("a",), {"a": (OBJECT, 0)}, 8, 1, 0), "neither number"),
        (type_with(3, "|", (F4, (2,), 3), None, None, 8, 1, 0), "inner shape that is none"),
        (type_with(3, "|", (F4, (1 << 40,)), None, None, 8, 1, 0), "size|shape"),
        (type_with(3, "|", ("f4", (2,)), None, None, 8, 1, 0), "neither number"),
        (
            type_with(4, "<", None, None, None, -1, -1, 0, (None, (b"qs", 1, 1, 1)), code="M8"),
            "a unit that numpy does not know",
        ),
        (
            type_with(4, "<", None, None, None, -1, -1, 0, {"x": 1}, code="M8"),
            "a time has no unit",
        ),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_states_that_numpy_never_writes(value: Any, match: str, protocol: int) -> None:
    refused(pickle.dumps(value, protocol), match)


def test_a_type_that_is_an_array_is_no_item_type() -> None:
    refused(pickle.dumps(array_with(1, (1,), np.dtype((F4, (2,))), False, bytes(8))), "an array")


def test_a_state_is_set_once() -> None:
    state = b"(K\x03V<\nNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    refused(name("numpy", "dtype") + b"(Vf4\nI0\nI1\ntR" + state * 2 + b".", "item type twice")


def test_an_array_gets_values_once() -> None:
    data = pickle.dumps(np.array([1001, 1002], "f4"), 2)
    again = data[:-1] + data[data.rindex(b"(K\x01K\x02\x85") :]
    refused(again, "state of an array that has its values")
    refused(pickle.dumps(np.array([1001, 1002], "f4"), 5)[:-1] + b"Nb.", "that has its values")


def test_metadata_of_item_types_are_left_out() -> None:
    noted = np.dtype("f4", metadata={"note": "ignored"})
    data = pickle.dumps(np.ones(2, noted), 2)
    assert b"ignored" in data
    found = read(data)
    assert found.dtype.metadata is None
    assert found.tolist() == [1.0, 1.0]
    hostile = type_with(4, "<", None, None, None, -1, -1, 0, Calls(os.system, "true"), code="f4")
    refused(pickle.dumps(array_with(1, (1,), hostile, False, ONE)), r"\.system")


def deep(opening: bytes, closing: bytes, count: int) -> bytes:
    return opening * count + b"N" + closing * count + b"."


@pytest.mark.parametrize(
    ("opening", "closing", "kind"), [(b"]", b"a", list), (b"}N", b"s", dict), (b"", b"\x85", tuple)]
)
def test_nesting_is_as_deep_as_the_file_says(opening: bytes, closing: bytes, kind: type) -> None:
    value: Any = read(deep(opening, closing, 200_000))
    kinds = []
    while value is not None:
        kinds.append(type(value))
        value = value[None if kind is dict else 0]
    assert kinds == [kind] * 200_000


def nested_arrays(count: int) -> bytes:
    value: Any = None
    for _ in range(count):
        value = array_of(value)
    return pickle.dumps(value, 4)


def test_arrays_of_arrays_are_bounded() -> None:
    """numpy frees them recursively: 100,000 in each other would end the process."""
    value, depth = read(nested_arrays(32)), 0
    while value is not None:
        value, depth = value[0], depth + 1
    assert depth == 32
    refused(nested_arrays(33), "more than 32 deep in each other")
    array: Any = array_of(None)
    array[0] = array
    refused(pickle.dumps(array, 4), "holds an array that has no values yet")


def test_records_in_records_are_bounded() -> None:
    dtype: Any = "f4"
    for _ in range(8):
        dtype = np.dtype([("x", dtype)])
    assert read(pickle.dumps(np.zeros(1, dtype))).dtype == dtype
    refused(pickle.dumps(np.zeros(1, [("x", dtype)])), "or 8 levels of them")
    wide = np.dtype([(str(k), "V0") for k in range(100)])
    refused(pickle.dumps(np.zeros(1, [(str(k), wide) for k in range(100)])), "1000 fields")


def doubled(count: int) -> bytes:
    """A tuple whose parts, each shared by two, would be 2 ** count if they were not."""
    return b")q\x00" + b"h\x00\x86q\x00" * count


def test_what_is_shared_many_times_is_not_walked() -> None:
    value = read(doubled(10_000) + b".")
    assert value[0] is value[1]
    refused(b"}" + doubled(60) + b"Ns.", "a key has more than 64 parts")
    refused(b"(" + doubled(60) + b"\x91.", "a key has more than 64 parts")
    for module, attribute in (("_codecs", "encode"), ("builtins", "bytearray")):
        call = name(module, attribute) + b"Vx\n" + doubled(60) + b"\x86R."
        refused(call, "not meant for it")
    record = type_with(3, "|", None, ("€",), {}, 8, 1, 0)
    data = pickle.dumps(array_with(1, (1,), record, False, bytes(8)), 2)
    text = b"X\x03\x00\x00\x00" + "€".encode()
    refused(data.replace(text, doubled(60)), "not those it names")


LONG = b"\x8e" + struct.pack("<Q", 1_000_000) + b"\1" * 1_000_000 + b"q\x01"
TEXT = b"X" + struct.pack("<I", 1_000_000) + b"\1" * 1_000_000 + b"q\x01"
ITEMS = b"](" + b"".join(b"M" + struct.pack("<H", k) for k in range(10_000)) + b"eq\x01"
BYTES_TYPE = name("numpy", "dtype") + b"(Vu1\nI0\nI1\ntRq\x020"
VOID_TYPE = name("numpy", "dtype") + b"(VV1000000\nI0\nI1\ntRq\x020"
SHELL = (
    name("numpy.core.multiarray", "_reconstruct") + name("numpy", "ndarray") + b"K\x00\x85U\x01b"
)
COPIES = {
    "bytearray": (LONG, name("builtins", "bytearray") + b"h\x01\x85R"),
    "set": (ITEMS, name("builtins", "set") + b"h\x01\x85R"),
    "frozenset": (ITEMS, name("builtins", "frozenset") + b"h\x01\x85R"),
    "encode": (TEXT, name("_codecs", "encode") + b"h\x01Vlatin1\n\x86R"),
    "array": (LONG + BYTES_TYPE, SHELL + b"\x87R(K\x01J\x40\x42\x0f\x00\x85h\x02\x89h\x01tb"),
    "scalar": (LONG + VOID_TYPE, name("numpy.core.multiarray", "scalar") + b"h\x02h\x01\x86R"),
}


@pytest.mark.parametrize("kind", COPIES)
def test_copies_of_one_value_are_bounded(
    kind: str, memory_below: Callable[[int], AbstractContextManager[None]]
) -> None:
    before, once = COPIES[kind]
    found = read(b"(" + before + once * 2 + b"l.")
    assert len(found[-1].tobytes() if kind in {"array", "scalar"} else found[-1]) >= 10_000
    hostile = b"(" + before + once * 1000 + b"l."
    with memory_below(300 * len(hostile) if "set" in kind else 10 * len(hostile)):
        refused(hostile, "its values copied take many times its own bytes")


@pytest.mark.parametrize(
    "data",
    [
        b"Nr\xff\xff\xff\xff.",
        b"Np4294967296\n.",
        b"\x8e\x00\x00\x00\x00\x01\x00\x00\x00abc.",
        b"\x80\x04\x95\x00\x00\x00\x00\x01\x00\x00\x00N.",
        pickle.dumps(array_with(1, (1 << 40,), F4, False, ONE)),
        pickle.dumps(array_with(1, (0, 1 << 50), F4, False, b"")),
    ],
)
def test_announced_lengths_take_no_memory(
    data: bytes, memory_below: Callable[[int], AbstractContextManager[None]]
) -> None:
    with memory_below(1_000_000), suppress(FormatError):
        read(data)
