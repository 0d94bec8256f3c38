from __future__ import annotations

from pathlib import Path

import pytest
import torch

from offline_data.base.errors import AccessError, NotFoundError
from offline_data.rows.gather.mmap import map_file


def test_words_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(bytes(range(24)))
    for stride, dtype in ((8, torch.int64), (12, torch.int32), (6, torch.int16), (3, torch.uint8)):
        words = map_file(path, 24 // stride, stride).words
        assert words.dtype == dtype
        assert words.view(torch.uint8).flatten().tolist() == list(range(24))
        words.fill_(-1 if dtype.is_signed else 0)  # reaches this process's memory only
    assert path.read_bytes() == bytes(range(24))


def test_a_file_larger_than_memory_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 42)  # 4 TiB, all hole
    assert int(map_file(path, 1 << 39, 8).words[-1, 0]) == 0


def test_rows_without_bytes_need_no_file(tmp_path: Path) -> None:
    assert map_file(tmp_path / "none", 5, 0).words.shape == (5, 0)
    assert map_file(tmp_path / "none", 0, 8).words.shape == (0, 1)


def test_missing_short_and_forbidden_files(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="deleted or truncated"):
        map_file(tmp_path / "none", 1, 8)
    (tmp_path / "short").write_bytes(bytes(15))
    with pytest.raises(NotFoundError, match="truncated"):
        map_file(tmp_path / "short", 2, 8)
    with pytest.raises(AccessError, match="cannot be mapped"):
        map_file(tmp_path, 1, 8)
