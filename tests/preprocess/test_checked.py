"""What is read is what was written; a file that was damaged in any way is as if it were not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.preprocess.checked import read_checked, write_checked

ABOUT = {"boot": None, "counts": {"rows": 3}, "mean": [0.1, float("inf")]}
ARRAYS: dict[Any, Any] = {
    ("file",): np.arange(5),
    ("start",): np.array([1.5, -0.0, np.nan]),
    ("deep", "er"): np.zeros((2, 0, 3), np.float16),
}


@pytest.mark.parametrize("durable", [False, True])
def test_values_come_back(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "new" / "folder" / "one"
    write_checked(path, {"old": 1}, {}, durable=durable)
    write_checked(path, ABOUT, ARRAYS, durable=durable)
    found = read_checked(path)
    assert found is not None
    about, arrays = found
    assert about == ABOUT
    assert list(arrays) == list(ARRAYS)
    for key, values in ARRAYS.items():
        assert arrays[key].dtype == values.dtype
        np.testing.assert_array_equal(arrays[key], values)
    assert [one.name for one in path.parent.iterdir()] == ["one"]


def test_every_damage_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "one"
    write_checked(path, ABOUT, ARRAYS, durable=False)
    whole = path.read_bytes()
    for size in {0, 1, 64, 65, 66, len(whole) // 2, len(whole) - 1}:
        path.write_bytes(whole[:size])
        assert read_checked(path) is None, size
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert read_checked(path) is None, at
    for other in (b"\n", b"PK\x03\x04", b"{}\n{}", whole + b"x"):
        path.write_bytes(other)
        assert read_checked(path) is None
    path.write_bytes(whole)
    assert read_checked(path) is not None


def test_what_is_not_there(tmp_path: Path) -> None:
    assert read_checked(tmp_path / "none") is None
    assert read_checked(tmp_path) is None
    (tmp_path / "file").touch()
    assert read_checked(tmp_path / "file" / "below") is None
