"""A file of a view may come from a stranger: it is read, or refused in words, and nothing else."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.base.errors import IntegrityError, NewerFormatError
from offline_data.rows.saved import read_view

ABOUT = {"format_version": 1, "dataset": "local:toy@1", "path": "/", "identity": ""}


def file_of(about: Any, **arrays: Any) -> bytes:
    memory = io.BytesIO()
    text = about if isinstance(about, bytes) else json.dumps(about).encode()
    np.savez(memory, about=np.frombuffer(text, np.uint8), **arrays)
    return memory.getvalue()


def zipped(header: dict[str, Any]) -> bytes:
    """An array whose header says more than there is."""
    array = io.BytesIO()
    np.lib.format.write_array_header_1_0(array, header)
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as file:
        file.writestr("rows.npy", array.getvalue() + bytes(8))
        file.writestr("about.npy", b"")
    return memory.getvalue()


def bomb() -> bytes:
    memory = io.BytesIO()
    np.savez_compressed(memory, about=np.zeros(1, np.uint8), rows=np.zeros(3_000_000, np.int64))
    return memory.getvalue()


ROWS = np.arange(3)
WHOLE = file_of(ABOUT, rows=ROWS)
FILES: dict[str, bytes] = {
    "cut short": WHOLE[: len(WHOLE) // 2],
    "another name": WHOLE.replace(b'"dataset"', b'"datamet"'),
    "a lone array": b"\x93NUMPY\x01\x00v\x00{",
    "text": b"no view",
    "a deep text": file_of(b"[" * 100_000, rows=ROWS),
    "numbers for text": file_of({**ABOUT, "dataset": 7}, rows=ROWS),
    "a number for a recipe": file_of({**ABOUT, "recipe": 7}, rows=ROWS),
    "numbers for steps": file_of({**ABOUT, "recipe": [7]}, rows=ROWS),
    "a step without a name": file_of({**ABOUT, "recipe": [{}]}, rows=ROWS),
    "a list for a path": file_of({**ABOUT, "path": []}, rows=ROWS),
    "nothing said": file_of({}, rows=ROWS),
    "a list": file_of([], rows=ROWS),
    "a huge array": zipped({"descr": "<i8", "fortran_order": False, "shape": (10**15,)}),
    "negative": zipped({"descr": "<i8", "fortran_order": False, "shape": (-1,)}),
    "objects": zipped({"descr": "|O", "fortran_order": False, "shape": (1,)}),
    "a bomb": bomb(),
    "floats": file_of(ABOUT, rows=ROWS.astype(float)),
    "two kinds": file_of(ABOUT, rows=ROWS, episodes=ROWS),
}


@pytest.mark.parametrize("name", FILES)
def test_refused_in_words(tmp_path: Path, name: str) -> None:
    path = tmp_path / "view.npz"
    path.write_bytes(FILES[name])
    with pytest.raises(
        IntegrityError, match=r"is not a view, or is damaged|cannot be read as JSON"
    ):
        read_view(path)


def test_a_newer_version(tmp_path: Path) -> None:
    (tmp_path / "view.npz").write_bytes(file_of({**ABOUT, "format_version": 2}, rows=ROWS))
    with pytest.raises(NewerFormatError, match="reads up to 1"):
        read_view(tmp_path / "view.npz")


def test_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.npz")
    (tmp_path / "folder.npz").mkdir()
    for name in ("fifo.npz", "folder.npz"):
        with pytest.raises(IntegrityError, match="it is not a file"):
            read_view(tmp_path / name)
