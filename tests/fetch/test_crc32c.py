from __future__ import annotations

import random

import pytest

from offline_data.fetch.files import Hashes, RemoteFile

PUBLISHED = RemoteFile("a", ("https://lab.example/a",), digest="crc32c:00000000")


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
    hashes = Hashes(PUBLISHED)
    hashes.update(data)
    assert hashes.hex("crc32c") == expected


def test_any_cut_gives_the_same() -> None:
    data = random.Random(3).randbytes(150_000)  # noqa: S311 - any bytes will do
    for cut in (0, 1, 16_383, 16_384, 150_000):
        hashes = Hashes(PUBLISHED)
        hashes.update(data[:cut])
        hashes.update(data[cut:])
        assert hashes.hex("crc32c") == "35f22ced"  # by long division with RFC 3720's polynomial
