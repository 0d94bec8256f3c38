"""JSON from a stranger: exact values, or a sentence that names the file."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from offline_data.base.errors import AccessError, FormatError, NotFoundError
from offline_data.base.json import MAX_DEPTH, count_of, parse_json, read_json


def nested(depth: int) -> str:
    """`depth` lists within each other."""
    return "[" * depth + "]" * depth


def test_values_stay_exact() -> None:
    text = f'{{"n": 9007199254740993, "big": {10**30}, "x": 0.1, "é": "\\ud83d\\ude00"}}'
    values = {"n": 9007199254740993, "big": 10**30, "x": 0.1, "é": "\U0001f600"}
    assert parse_json(text, "here") == values
    assert parse_json(b"\xef\xbb\xbf[1]", "here") == [1]  # a byte-order mark
    parse_json(nested(MAX_DEPTH), "here")


def test_constants_are_floats_unless_finite_is_asked_for() -> None:
    inf = float("inf")
    assert parse_json("[Infinity, -Infinity, 1e999]", "here") == [inf, -inf, inf]
    for text in ("[NaN]", "[Infinity]", "[-1e999]"):
        with pytest.raises(FormatError, match=r"here.*not a finite number"):
            parse_json(text, "here", finite=True)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html>", "web page"),
        (b'{"a": 1', "not JSON"),
        (b'"\xff"', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        ("[]\ud800", "not UTF-8"),
        (b'"\\ud800"', "not UTF-8"),
        (b'{"\\udfff x": 1}', "not UTF-8"),
        (b'{"a": {"b": 1, "b": 1}}', "'b' occurs twice"),
        (nested(MAX_DEPTH + 1), "nested deeper"),
        (nested(10**6), "nested deeper"),
        ("[" + "1" * 401 + "]", "401 digits"),
    ],
    ids=range(12),
)
def test_what_is_refused(data: bytes | str, says: str) -> None:
    with pytest.raises(FormatError, match=f"the file.*{says}"):
        parse_json(data, "the file")


@pytest.mark.parametrize("value", [-1, 2**63, 10**400, 1.0, float("nan"), True, None, "3", [3]])
def test_no_count(value: object) -> None:
    with pytest.raises(FormatError, match=r"total is .*; expected an integer") as caught:
        count_of(value, "total")
    assert len(str(caught.value)) < 150
    assert [count_of(0, "total"), count_of(2**63 - 1, "total")] == [0, 2**63 - 1]


def test_a_file_is_read_as_far_as_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[12345]")
    assert read_json(path, max_bytes=7) == [12345]
    with pytest.raises(FormatError, match=f"{path} is larger than 6 bytes"):
        read_json(path, max_bytes=6)


def test_what_is_no_plain_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "ring").symlink_to("ring")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in ("fifo", "folder", "device", "socket", "ring"):
            with pytest.raises(FormatError, match=f"{tmp_path / name} is not a plain file"):
                read_json(tmp_path / name)
    for name in ("none", "none/below", "x" * 300):
        with pytest.raises(NotFoundError, match="There is no file"):
            read_json(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "a.json").chmod(0)
    with pytest.raises(AccessError, match="cannot be read"):
        read_json(tmp_path / "a.json")
