"""Pickles are what Python's own reader gives, or are refused, and nothing is run."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import FormatError
from offline_data.raw import restricted_pickle
from offline_data.raw.restricted_pickle import load, loads
from tests.refusals import Refusals

REFUSALS = Refusals.beside(__file__)

PROTOCOLS = range(6)


def read(data: bytes) -> Any:
    return loads(data, where="steps.pickle")


def assert_same(found: Any, expected: Any) -> None:
    """Compare types, item types, axis orders and values."""
    kinds: list[type] = [type(found), type(expected)]
    assert kinds in ([kinds[1]] * 2, [dict, collections.OrderedDict])
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.flags.f_contiguous == expected.flags.f_contiguous
        assert_same(found.tolist(), expected.tolist())
    else:
        assert found == expected
        assert getattr(found, "dtype", None) == getattr(expected, "dtype", None)


def objects(*values: Any, shape: tuple[int, ...] | None = None, order: Any = "C") -> Any:
    array = np.empty(len(values), object)
    for place, value in enumerate(values):
        array[place] = value
    return array if shape is None else np.asarray(array.reshape(shape), order=order)


VALUES: dict[str, Any] = {
    "plain": [1, -(2**70), 2.5, True, None, "é\U0001f600", b"\0\xff", 1j, {"a": (1, [2])}, {3}],
    "frozen": {"set": frozenset({1, (2, "x")}), ("k", 1): bytearray(b"12")},
    "arrays": {
        code: np.arange(6).astype(code).reshape(2, 3)
        for code in ("f4", ">f8", "<i2", "u1", "c8", "?")
    },
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "text": np.array([["go", "stöp"]]),
    "bytes": np.array([b"a", b"bcd"]),
    "times": np.array(["2020-01-01"], "M8[ns]"),
    "empty": np.zeros((0, 3), "f4"),
    "nothing": np.float32(2.5),
    "scalars": [np.float32(1.5), np.int64(-7), np.bool_(True), np.str_("x")],
    "objects": objects([1, [2]], {"a": np.arange(3)}, None, (np.ones(2),), "x", 3.5),
    "objects in two axes": objects(1, [2, 3], (4,), np.ones(2), shape=(2, 2), order="F"),
    "a dict as an object": objects({"steps": [np.arange(2)]}, shape=()),
    "ordered": collections.OrderedDict(b=1, a=[np.arange(2)]),
    "nested": ([(np.arange(2), [(np.arange(3),)])],),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_of_python(name: str, protocol: int) -> None:
    found = read(pickle.dumps(VALUES[name], protocol))
    assert_same(found, VALUES[name])
    assert not isinstance(found, np.ndarray) or found.flags.writeable


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_shared_stays_shared(protocol: int) -> None:
    array, inner = np.arange(3), [1]
    loop: list[Any] = [array, array, inner, (inner, array), {"x": inner}]
    loop.append(loop)
    found = read(pickle.dumps(loop, protocol))
    assert found[0] is found[1] is found[3][1]
    assert found[2] is found[3][0] is found[4]["x"]
    assert found[5] is found


def test_containers_deeper_than_python_recurses() -> None:
    found = read(b"\x80\x04" + b"]" * 10_000 + b"a" * 9_999 + b".")
    for _ in range(9_999):
        (found,) = found
    assert found == []


def test_streams_are_read_to_their_size() -> None:
    data = pickle.dumps([1001])
    assert load(io.BytesIO(data + b"more"), size=len(data), where="x") == [1001]
    with pytest.raises(FormatError, match="4 bytes follow"):
        load(io.BytesIO(data + b"more"), size=1000, where="x")


class Asks:
    """Pickles as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _code(*parts: bytes) -> bytes:
    return b"\x80\x02" + b"".join(parts) + b"."


_ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
_F8 = b"cnumpy\ndtype\n(U\x02f8K\x00K\x01tR"
HOSTILE = {
    "os.system": pickle.dumps(Asks(os.system, "touch hacked"), 0),
    "eval": pickle.dumps(Asks(eval, "open('hacked', 'w')")),
    "getattr": pickle.dumps(Asks(getattr, "x", "upper")),
    "numpy.load": pickle.dumps(Asks(np.load, "x")),
    "numpy.frombuffer": pickle.dumps(Asks(np.frombuffer, b"12345678")),
    "a class of ours": pickle.dumps(Asks(FormatError, "x")),
    "a dotted name": _code(b"\x8c\x05numpy\x8c\x0adtype.type\x93"),
    "persistent": b"\x80\x02K\x01Q.",
    "extension": b"\x80\x02\x82\x01.",
    "buffers": b"\x80\x05\x97.",
    "structured": pickle.dumps(np.zeros(2, [("a", "f4"), ("b", "O")])),
    "object bytes": _code(_ARRAY, b"(K\x01K\x01\x85cnumpy\ndtype\n(U\x02O8K\x00K\x01tRK\x00C\x08AAAAAAAAtb"),
    "an object number": _code(b"cnumpy.core.multiarray\nscalar\n(cnumpy\ndtype\n(U\x02O8tRC\x08AAAAAAAAtR"),
    "too few bytes": _code(_ARRAY, b"(K\x01K\x03\x85", _F8, b"K\x00C\x08AAAAAAAAtb"),
    "a huge shape": _code(_ARRAY, b"(K\x01J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86", _F8, b"K\x00C\x00tb"),
    "a negative shape": _code(_ARRAY, b"(K\x01J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86", _F8, b"K\x00C\x08AAAAAAAAtb"),
    "fields by state": _code(b"cnumpy\ndtype\n(U\x02V8tR(K\x03U\x01|NU\x01a\x85}U\x01aK\x00sK\x08K\x01K\x00tb"),
    "an array without a state": _code(_ARRAY),
    "a function as a value": _code(b"cnumpy\ndtype\n"),
    "an item type as a value": _code(_F8),
    "text of no characters": _code(_ARRAY, b"(K\x01K\x01\x85cnumpy\ndtype\n(U\x02U1tRK\x00C\x04\xff\xff\xff\xfftb"),
    "a function is changed": _code(b"cnumpy\ndtype\n(N}U\x09_functioncbuiltins\nlist\nstb"),
    "a function gets a state": _code(b"cnumpy\ndtype\n}U\x09_functioncbuiltins\nlist\nsb"),
    "a type is changed": _code(b"cbuiltins\nset\n(N}U\x03addcbuiltins\nlist\nstb"),
    "the image type is changed": _code(b"cPIL.Image\nImage\n(N}U\x03addcbuiltins\nlist\nstb"),
    "the image type gets a state": _code(b"cPIL.Image\nImage\n](}U\x01LK\x01K\x01\x86NU\x01ae", b"b"),
    "an image without a state": _code(b"cPIL.Image\nImage\n)\x81."[:-1]),
    "an image of more than it has": _code(
        b"cPIL.Image\nImage\n)\x81](}U\x01LJ\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86NU\x01aeb"
    ),
    "an image of another mode": _code(b"cPIL.Image\nImage\n)\x81](}U\x01PK\x01K\x01\x86NU\x01aeb"),
    "a set of arrays": _code(b"cbuiltins\nset\n(]", _ARRAY, b"atR"),
    "an array as a key": _code(b"}", _ARRAY, b"K\x01s"),
    "zeros": _code(b"cbuiltins\nbytearray\n(J\xff\xff\xff\x7ftR"),
    "cut short": pickle.dumps(np.arange(9))[:-9],
    "nothing": b"",
    "no pickle": b"<html>",
}  # fmt: skip


@REFUSALS.of("pickles", HOSTILE)
def test_what_asks_for_more_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name not in {"cut short", "nothing", "no pickle"}:  # none is refused as mere damage
        assert list(pickletools.genops(HOSTILE[name]))[-1][0].name == "STOP"
    before = {key: repr(value) for key, value in restricted_pickle._NAMES.items()}
    REFUSALS.check("pickles", name, lambda: read(HOSTILE[name]))
    assert list(tmp_path.iterdir()) == []
    assert {key: repr(value) for key, value in restricted_pickle._NAMES.items()} == before
    assert_same(read(pickle.dumps(VALUES["objects"])), VALUES["objects"])


PYTHON_2 = {
    "array, protocol 0": (
        b"cnumpy.core.multiarray\n_reconstruct\np0\n(cnumpy\nndarray\np1\n(I0\ntp2\nS'b'\np3\ntp4\n"
        b"Rp5\n(I1\n(L2L\ntp6\ncnumpy\ndtype\np7\n(S'f8'\np8\nI0\nI1\ntp9\nRp10\n(I3\nS'<'\np11\n"
        b"NNNI-1\nI-1\nI0\ntp12\nbI00\nS'\\x00\\x00\\x00\\x00\\x00\\x00\\xf8?\\x00\\x00\\x00\\x00"
        b"\\x00\\x00\\x00\\xc0'\np13\ntp14\nb."
    ),
    "array, protocol 2": (
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x00cnumpy\nndarray\nq\x01K\x00\x85U\x01b"
        b"\x87Rq\x02(K\x01\x8a\x01\x02\x85cnumpy\ndtype\nq\x03U\x02f8K\x00K\x01\x87Rq\x04(K\x03"
        b"U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x10\x00\x00\x00\x00\x00\x00\x00"
        b"\x00\x00\xf8?\x00\x00\x00\x00\x00\x00\x00\xc0tb."
    ),
    "scalar": (
        b"\x80\x02cnumpy.core.multiarray\nscalar\nq\x00cnumpy\ndtype\nq\x01U\x02f4K\x00K\x01\x87Rq"
        b"\x02(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tbU\x04\x00\x00\xc0?\x86R."
    ),
    "steps, protocol 1": b"](}q\x00(U\x06actionq\x01K\x05U\x03obsG?\xf8\x00\x00\x00\x00\x00\x00ue.",
    "written by pickle of 2.7": (
        b"(lp0\n(dp1\nS'raw'\np2\nS'it\\'s \"\\\\\\n\\x00\\xff'\np3\nsS'step'\np4\n(I1001\nI-2\nF2.5"
        b"\nL100000000000000000000L\nNI01\nV\\u20ac\\u005cu\np5\ntp6\nsac__builtin__\nset\np7\n((lp8\n"
        b"I7\natp9\nRp10\nac__builtin__\ncomplex\np11\n(F1.0\nF2.0\ntp12\nRp13\nac__builtin__\nbytearray"
        b"\np14\n(V\x00\xff\np15\nS'latin-1'\np16\ntp17\nRp18\naccollections\nOrderedDict\np19\n((lp20\n"
        b"(lp21\nS'b'\np22\naI2\naatp23\nRp24\nag1\na."
    ),
    "written by cPickle of 2.7": (
        b"\x80\x02]q\x01(}q\x02(U\x03rawq\x03U\nit's \"\\\n\x00\xffq\x04U\x04stepq\x05(M\xe9\x03J"
        b"\xfe\xff\xff\xffG@\x04\x00\x00\x00\x00\x00\x00\x8a\t\x00\x00\x10c-^\xc7k\x05N\x88X\x05\x00"
        b"\x00\x00\xe2\x82\xac\\uq\x06tuc__builtin__\nset\nq\x07]q\x08K\x07a\x85Rq\tc__builtin__\n"
        b"complex\nq\nG?\xf0\x00\x00\x00\x00\x00\x00G@\x00\x00\x00\x00\x00\x00\x00\x86Rq\x0bc__builtin__\n"
        b"bytearray\nq\x0cX\x03\x00\x00\x00\x00\xc3\xbfU\x07latin-1\x86Rq\rccollections\nOrderedDict\n"
        b"q\x0e]q\x0f]q\x10(U\x01bK\x02ea\x85Rq\x11h\x02e."
    ),
    "strings": (
        b"((lp0\nS'it\\'s \\\\ \\n\\x80'\np1\naS\"it's\"\naVu\\u20ac\naI01\naL-123456789012345678901L"
        b"\naF1.5e-07\na."
    ).replace(b"((l", b"(l"),
    "sets": b"\x80\x02c__builtin__\nset\nq\x00]q\x01(K\x01K\x02e\x85Rc__builtin__\nfrozenset\n]K\x07"
    b"a\x85R\x86.",
    "ordered": b"\x80\x02ccollections\nOrderedDict\n](](U\x01bK\x02e](U\x01aK\x01ee\x85R.",
}


@pytest.mark.parametrize("name", PYTHON_2)
def test_python_2(name: str) -> None:
    data = PYTHON_2[name]
    assert_same(read(data), pickle.loads(data, encoding="latin1"))  # noqa: S301 - from above


@pytest.mark.parametrize("flavour", ["toy_array", "toy_bytes_dict", "toy_malicious", "toy_pil"])
def test_real_files(realdata: Path, flavour: str) -> None:
    folder = realdata / "fixtures_generated" / "oxe_jxu124" / flavour
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            found = [archive.extractfile(member).read() for member in archive]  # type: ignore[union-attr]
        assert found
        for data in found:
            if flavour == "toy_malicious":
                with pytest.raises(FormatError, match=r"it asks for (builtins|posix|os)\."):
                    read(data)
            elif flavour == "toy_pil":
                steps, plain = read(data)["steps"], pickle.loads(data)["steps"]  # noqa: S301 - ours
                for one, other in zip(steps, plain, strict=True):
                    pixels = np.asarray(other["observation"]["image"])
                    np.testing.assert_array_equal(one["observation"]["image"], pixels)
            else:
                value = pickle.loads(data)  # noqa: S301 - generated files of ours
                assert len(value["steps"]) > 1
                assert_same(read(data), value)
