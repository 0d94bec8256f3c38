"""Rows of text files: bounded in memory, whole, or an error that names the place."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from offline_data.base.errors import FormatError
from offline_data.raw import rows
from offline_data.raw.rows import read_rows

LONG = ["a" * 300_000, "b", 'c"\n' * 70_000, "d"]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".jsonl.gz", ".json", ".parquet"])
@pytest.mark.parametrize("characters", [1, 200_000, 8 << 20])
def test_a_few_long_rows_are_read_at_once(
    tmp_path: Path, suffix: str, characters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "CHARACTERS", characters)
    path = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"text": LONG}), path)
    elif suffix in {".csv", ".tsv"}:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if suffix == ".tsv" else ",")
            writer.writerows([["text"], *([text] for text in LONG)])
    else:
        lines = [json.dumps({"text": text}) for text in LONG]
        data = (f"[{','.join(lines)}]" if suffix == ".json" else "\n".join(lines)).encode()
        path.write_bytes(gzip.compress(data) if suffix == ".jsonl.gz" else data)
    parts = [columns["text"] for columns in read_rows(path)]
    assert [text for part in parts for text in part] == LONG
    if suffix != ".json":  # an array is parsed as a whole
        at_once = {1: 4, 200_000: 4 if suffix == ".parquet" else 3, 8 << 20: 1}[characters]
        assert len([part for part in parts if part]) == at_once


@pytest.mark.parametrize("keep", [10, 60, -8, -1])
def test_a_compressed_file_that_is_cut_or_flipped(tmp_path: Path, keep: int) -> None:
    whole = gzip.compress(b'{"text": "the cat"}\n' * 5000, mtime=0)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(whole[:keep])
    with pytest.raises(FormatError, match="damaged or cut short"):
        list(read_rows(path))
    path.write_bytes(whole[:keep] + bytes([whole[keep] ^ 0xFF]) + whole[keep:][1:])
    with pytest.raises(FormatError, match=r"rows\.jsonl\.gz"):
        list(read_rows(path))
