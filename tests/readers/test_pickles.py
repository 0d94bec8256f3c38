"""Pickles read here are what Python's own reader gives, or are refused, and nothing is run."""

from __future__ import annotations

import collections
import io
import math
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from offline_data.errors import FormatError
from offline_data.readers.pickles import load, loads

PROTOCOLS = range(6)


def read(data: bytes) -> Any:
    return loads(data, where="steps.pickle")


def assert_same(found: Any, expected: Any) -> None:
    """Compare types, item types, axis orders and values, where NaN is NaN."""
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
        assert_same_array(found, expected)
    elif isinstance(expected, np.generic):
        assert found.dtype == expected.dtype
        assert found.tobytes() == expected.tobytes()
    elif isinstance(expected, complex):
        assert_same([found.real, found.imag], [expected.real, expected.imag])
    elif isinstance(expected, float):
        assert struct.pack("d", found) == struct.pack("d", expected)
    else:
        assert found == expected


def assert_same_array(found: Any, expected: Any) -> None:
    assert not found.flags.writeable
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.dtype.isalignedstruct == expected.dtype.isalignedstruct
    assert found.flags.f_contiguous == expected.flags.f_contiguous
    assert found.flags.c_contiguous == expected.flags.c_contiguous
    if expected.dtype.hasobject:
        assert_same(found.ravel().tolist(), expected.ravel().tolist())
    else:
        assert found.tobytes() == expected.tobytes()


def assert_read_as_by_python(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert_same(read(data), pickle.loads(data))  # noqa: S301 - what this test wrote


LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**2000), 2**2000)
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters())
    | st.binary(max_size=300)
    | st.binary(max_size=300).map(bytearray)
)
KEY = st.text(max_size=5) | st.binary(max_size=5) | st.integers(-(2**63), 2**63) | st.none()
SCALAR_TYPES = npst.scalar_dtypes() | npst.unicode_string_dtypes() | npst.byte_string_dtypes()


def records(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    shapes = npst.array_shapes(max_dims=2, max_side=3) | st.just(())
    fields = st.tuples(st.text("abé ", min_size=1, max_size=3), inner, shapes)
    aligned = st.booleans()
    lists = st.lists(fields, min_size=1, max_size=3, unique_by=lambda field: field[0])
    return st.builds(lambda layout, align: np.dtype(layout, align=align), lists, aligned)


ITEM_TYPES = SCALAR_TYPES | records(SCALAR_TYPES) | records(records(SCALAR_TYPES))


def plain_arrays() -> st.SearchStrategy[Any]:
    shapes = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    return npst.arrays(ITEM_TYPES, shapes)


def axes_moved(array: Any) -> st.SearchStrategy[Any]:
    return st.permutations(range(array.ndim)).map(array.transpose)


def numpy_values() -> st.SearchStrategy[Any]:
    arrays = plain_arrays()
    return arrays | arrays.flatmap(axes_moved) | SCALAR_TYPES.flatmap(npst.from_dtype)


def object_array(items: list[Any]) -> Any:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def array_of(item: Any) -> Any:
    array = np.empty(1, object)
    array[0] = item
    return array


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = KEY | st.tuples(KEY, KEY)
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=4).map(object_array)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict)
        | st.sets(keys, max_size=4)
        | st.frozensets(keys, max_size=4)
    )


VALUES = st.recursive(LEAF | numpy_values(), containers, max_leaves=12)


@settings(max_examples=300, deadline=None)
@given(value=VALUES, protocol=st.sampled_from(PROTOCOLS))
@example(value=[math.nan, -0.0, math.inf, b"", "", bytearray(), (), set()], protocol=0)
@example(value=["\ud800 \\ \n \x00 'ä€😀'" * 100, b"\xff" * 70_000], protocol=0)
@example(value=["\ud800 \\ \n \x00 'ä€😀'" * 100, b"\xff" * 70_000], protocol=1)
@example(value=["\ud800 'ä€😀'"], protocol=4)
@example(value=list(range(3000)) + [tuple(range(k)) for k in range(5)], protocol=1)
def test_values_are_those_of_python(value: Any, protocol: int) -> None:
    assert_read_as_by_python(value, protocol)


DTYPES = [
    "?", "i1", "<i2", ">i4", "<i8", "u1", ">u8", "<f2", "<f4", ">f8", "longdouble", "<c8", ">c16",
    "S5", "<U3", ">U3", "V7", "M8", "<M8[ns]", ">M8[25s]", "m8[D]",
]  # fmt: skip
RECORD = np.dtype([("a", "<i4"), ("b", ">f8", (2, 3)), ("c", [("d", "U2"), ("e", "?")])])


def numbered(dtype: Any, shape: tuple[int, ...]) -> Any:
    """No two items alike, as far as the type has so many values."""
    array = np.zeros(shape, dtype)
    if array.dtype.names:
        for name in array.dtype.names:
            array[name] = numbered(array.dtype[name].base, array[name].shape)
    elif array.dtype.kind == "V":
        array[...] = np.frombuffer(bytes(range(array.nbytes)), array.dtype).reshape(shape)
    else:
        array[...] = np.arange(1, array.size + 1).reshape(shape).astype(array.dtype)
    return array


@pytest.mark.parametrize("dtype", [*DTYPES, RECORD])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3), (3, 2, 2)])
def test_arrays(dtype: Any, shape: tuple[int, ...]) -> None:
    array = numbered(dtype, shape)
    for protocol in PROTOCOLS:
        assert_read_as_by_python(array, protocol)
        assert_read_as_by_python(array.T, protocol)
        assert_read_as_by_python(array[::2] if shape else array, protocol)


@pytest.mark.parametrize("dtype", [*DTYPES, RECORD])
def test_scalars(dtype: Any) -> None:
    for protocol in PROTOCOLS:
        assert_read_as_by_python(numbered(dtype, (1,))[0], protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_large_arrays_and_records_of_odd_layout(protocol: int) -> None:
    layout = {"names": ["x", "y"], "formats": [">i2", "<f4"], "offsets": [6, 1], "itemsize": 13}
    aligned = np.dtype([("x", "i1"), ("y", "f8"), ("z", "U1", (3,))], align=True)
    for dtype in ("<f4", ">f4", layout, aligned):
        assert_read_as_by_python(numbered(dtype, (300, 7)), protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_object_arrays(protocol: int) -> None:
    nested = np.empty((2, 2), object)
    nested[0] = [{"a": numbered("f4", (2,))}, None]
    nested[1] = ["text", np.array([1, None], object)]
    for value in (nested, np.asfortranarray(nested), np.array({"k": 1}, object), nested[:0]):
        assert_read_as_by_python(value, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_is_shared_stays_shared(protocol: int) -> None:
    array, step = numbered("f4", (3,)), {"k": [1]}
    found = read(pickle.dumps([array, step, {"again": array}, step["k"], step], protocol))
    assert found[0] is found[2]["again"]
    assert found[1] is found[4]
    assert found[1]["k"] is found[3]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_contains_itself_is_kept(protocol: int) -> None:
    ring: list[Any] = [1001]
    table: dict[str, Any] = {}
    ring += [ring, (ring, 2002)]
    table["self"] = table
    held = np.empty(1, object)
    held[0] = [held]
    found = read(pickle.dumps([ring, table, held], protocol))
    assert found[0][1] is found[0][2][0] is found[0]
    assert found[1]["self"] is found[1]
    assert found[2][0][0] is found[2]
    found[2][0].clear()  # arrays are not collected in rings
    around: Any = ([],)
    around[0].append(around)
    (inner,) = read(pickle.dumps(around, protocol))
    assert inner[0][0] is inner


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_streams_and_views(protocol: int) -> None:
    value = {"observation": numbered("f8", (400, 40)), "id": "1001"}
    data = pickle.dumps(value, protocol)

    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(777, size or 0))

    for stream in (io.BytesIO(data), Dribble(data), io.BytesIO(data + b"later")):
        assert_same(load(stream, size=len(data), where="x"), value)
    assert_same(loads(memoryview(data), where="x"), value)
    with pytest.raises(FormatError, match=r"(is|are) announced|it ends too early"):
        load(io.BytesIO(data), size=len(data) - 1, where="x")
    with pytest.raises(FormatError, match="5 bytes follow its end"):
        load(io.BytesIO(data + b"later"), size=len(data) + 9, where="x")


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


@settings(max_examples=400, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    read_or_refused(data)


CHUNKS = st.sampled_from(
    [
        *(bytes([code]) for code in b"(.012NRabeu}]lt\x81\x85\x86\x87\x88\x89\x8f\x90\x91\x93\x94"),
        *(b"cnumpy\ndtype\n", b"cnumpy\nndarray\n", b"cbuiltins\nset\n"),
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n",
        *(b"h" + bytes([k]) for k in range(4)),
        *(b"q" + bytes([k]) for k in range(4)),
        *(b"K" + bytes([k]) for k in range(5)),
        *(b"U\x02" + code for code in (b"f4", b"U1", b"O8", b"V8", b"M8")),
        *(b"C\x04\0\0\0\0", b"U\x01b", b"U\x01<", b"K\x00\x85", b"J\xff\xff\xff\xff"),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(CHUNKS, max_size=40))
def test_random_opcodes(chunks: list[bytes]) -> None:
    read_or_refused(b"".join(chunks) + b".")


SAMPLE = [{"a": numbered(RECORD, (2,)), "b": array_of(np.float32(1)), "t": (b"x", "é", 2.5, {3})}]


@settings(max_examples=600, deadline=None)
@given(protocol=st.sampled_from(PROTOCOLS), data=st.data())
def test_damaged_pickles(protocol: int, data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps(SAMPLE, protocol))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        stop = data.draw(st.integers(place, min(place + 3, len(whole))))
        whole[place:stop] = data.draw(st.binary(max_size=3))
    read_or_refused(bytes(whole))


def read_or_refused(data: bytes) -> None:
    try:
        value = read(data)
    except FormatError:
        return
    assert_plain(value, set())


def assert_plain(value: Any, seen: set[int]) -> None:
    assert isinstance(value, np.generic) or type(value) in {
        *(type(None), bool, int, float, complex, str, bytes, bytearray),
        *(list, tuple, dict, set, frozenset, np.ndarray),
    }
    if id(value) in seen:
        return
    seen.add(id(value))
    if type(value) is dict:
        value = [*value, *value.values()]
    elif type(value) is np.ndarray:
        value = value.tolist()
    if isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            assert_plain(item, seen)


def pickles_in(folder: Path) -> list[tuple[str, bytes]]:
    found = []
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in archive:
                stream = archive.extractfile(member)
                assert stream is not None
                found.append((member.name, stream.read()))
    return found


@pytest.mark.parametrize(("flavour", "count"), [("toy_array", 3), ("toy_bytes_dict", 3)])
def test_real_steps(realdata: Path, flavour: str, count: int) -> None:
    found = pickles_in(realdata / "fixtures_generated" / "oxe_jxu124" / flavour)
    assert len(found) == count
    for _, data in found:
        value = pickle.loads(data)  # noqa: S301 - generated files of ours
        assert len(value["steps"]) > 1
        assert_same(read(data), value)


@pytest.mark.parametrize(
    ("flavour", "asked"), [("toy_malicious", r"builtins\.|posix\.|os\."), ("toy_pil", r"PIL\.")]
)
def test_real_pickles_that_ask_for_more(realdata: Path, flavour: str, asked: str) -> None:
    found = pickles_in(realdata / "fixtures_generated" / "oxe_jxu124" / flavour)
    assert found
    for name, data in found:
        with pytest.raises(FormatError, match=rf"data\.pickle .* it asks for {asked}"):
            loads(data, where=name)
