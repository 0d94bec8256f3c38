"""What is sent is what arrives: values, arrays, functions of a script, and the end of the other."""

from __future__ import annotations

import io
import threading

import numpy as np
import pytest

from offline_data.errors import FormatError, UsageError
from offline_data.processes.wire import (
    dumps,
    loads,
    pack,
    pack_function,
    read,
    unpack,
    write,
)


def test_values_arrive_whole_and_in_order() -> None:
    stream = io.BytesIO()
    values = [{"a": np.arange(100_000), "b": np.zeros(0), "c": None}, "text", FormatError("x")]
    for value in values:
        write(stream, pack(value))
    stream.seek(0)
    first = unpack(read(stream))
    np.testing.assert_array_equal(first["a"], np.arange(100_000))
    assert first["b"].shape == (0,)
    assert unpack(read(stream)) == "text"
    assert str(unpack(read(stream))) == "x"
    with pytest.raises(EOFError):
        read(stream)


def test_a_cut_off_value_is_an_end() -> None:
    whole = io.BytesIO()
    write(whole, pack(np.arange(50)))
    data = whole.getvalue()
    for size in (0, 5, 16, 20, len(data) - 1):
        with pytest.raises(EOFError):
            read(io.BytesIO(data[:size]))


def test_large_arrays_are_not_in_the_pickle() -> None:
    array = np.arange(1 << 16, dtype=np.float64)
    packed = pack(("name", array))
    assert len(packed.body) < 1000
    assert [len(buffer) for buffer in packed.buffers] == [array.nbytes]
    assert np.shares_memory(np.frombuffer(packed.buffers[0]), array)


def test_arrays_that_arrive_can_be_written_to() -> None:
    stream = io.BytesIO()
    write(stream, pack(np.arange(5)))
    stream.seek(0)
    array = unpack(read(stream))
    array += 1
    assert array.tolist() == [1, 2, 3, 4, 5]


def test_functions_travel_with_what_they_close_over() -> None:
    offset = 40

    class Here:
        def __init__(self, value: int) -> None:
            self.value = value

    def function(x: int) -> Here:
        return Here(x + offset)

    made = loads(pack_function(function))
    assert made is not function
    assert made(2).value == 42
    assert loads(dumps([1, None])) == [1, None]


def test_what_exists_here_only_is_refused_in_words() -> None:
    lock = threading.Lock()
    with pytest.raises(UsageError, match=r"cannot be sent.*lock") as caught:
        pack_function(lambda x: (x, lock))
    assert "inside the function" in str(caught.value.hint)
