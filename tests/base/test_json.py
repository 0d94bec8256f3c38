"""JSON from a stranger: exact values; `test_refusals` has what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from offline_data.base.errors import AccessError
from offline_data.base.json import MAX_DEPTH, count_of, parse_json, read_json


def nested(depth: int) -> str:
    """`depth` lists within each other."""
    return "[" * depth + "]" * depth


def test_values_stay_exact() -> None:
    text = f'{{"n": 9007199254740993, "big": {10**30}, "x": 0.1, "é": "\\ud83d\\ude00"}}'
    values = {"n": 9007199254740993, "big": 10**30, "x": 0.1, "é": "\U0001f600"}
    assert parse_json(text, "here") == values
    assert parse_json(b"\xef\xbb\xbf[1]", "here") == [1]  # a byte-order mark
    inf = float("inf")
    assert parse_json("[Infinity, -Infinity, 1e999]", "here") == [inf, -inf, inf]
    parse_json(nested(MAX_DEPTH), "here")
    assert [count_of(0, "total"), count_of(2**63 - 1, "total")] == [0, 2**63 - 1]


def test_a_file_is_read_as_far_as_allowed(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[12345]")
    assert read_json(tmp_path / "a.json", max_bytes=7) == [12345]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "a.json").chmod(0)
    with pytest.raises(AccessError, match="cannot be read"):
        read_json(tmp_path / "a.json")
