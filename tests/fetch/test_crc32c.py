from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offline_data.fetch.crc32c import Crc32c


def crc(*blocks: bytes) -> str:
    running = Crc32c()
    for block in blocks:
        running.update(block)
    return running.hexdigest()


def bit_by_bit(data: bytes) -> str:
    """The definition: long division by the reversed polynomial of RFC 3720."""
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = (state >> 1) ^ (0x82F63B78 if state & 1 else 0)
    return f"{state ^ 0xFFFFFFFF:08x}"


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # the examples of RFC 3720, B.4
        (bytes(32), "8a9136aa"),
        (b"\xff" * 32, "62a8ab43"),
        (bytes(range(32)), "46dd794e"),
        (bytes(range(31, -1, -1)), "113fdb5c"),
        (b"", "00000000"),
    ],
)
def test_published_examples(data: bytes, expected: str) -> None:
    assert crc(data) == expected


@pytest.mark.parametrize("size", [16_383, 16_384, 16_385, 40_003])
def test_large_blocks_by_the_definition(size: int) -> None:
    data = random.Random(size).randbytes(size)  # noqa: S311 - any bytes will do
    assert crc(data) == bit_by_bit(data)


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, 150_000), max_size=4))
def test_any_cut_gives_the_same(cuts: list[int]) -> None:
    data = random.Random(3).randbytes(150_000)  # noqa: S311 - any bytes will do
    # what the definition above gives for these bytes
    edges = [0, *sorted(cuts), len(data)]
    pieces = [data[start:stop] for start, stop in pairwise(edges)]
    assert crc(*pieces) == "35f22ced"
