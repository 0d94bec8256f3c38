"""Files of views from strangers: refused with one sentence, without much memory and at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.buffers.views.files import read_view
from offline_data.errors import IntegrityError

ABOUT: dict[str, Any] = {"format_version": 1, "dataset": "local:a@1", "path": "/x", "identity": "i"}


def text_of(about: Any) -> Any:
    return np.frombuffer(json.dumps(about).encode(), np.uint8)


def _huge_header(path: Path) -> None:
    np.savez(path, about=text_of(ABOUT), rows=np.arange(3))
    data = path.read_bytes()
    path.write_bytes(
        data.replace(b"'shape': (3,), }           ", b"'shape': (3000000000000,), }"[:27])
    )


def _deep(path: Path) -> None:
    deep = np.frombuffer(b"[" * 100_000 + b"]" * 100_000, np.uint8)
    np.savez(path, about=deep, rows=np.arange(3))


HOSTILE: dict[str, Callable[[Path], object]] = {
    "compressed": lambda path: np.savez_compressed(
        path, about=text_of(ABOUT), rows=np.zeros(10_000_000, np.int64)
    ),
    "objects": lambda path: np.savez(
        path, about=text_of(ABOUT), rows=np.array([print], dtype=object)
    ),
    "dataset is no text": lambda path: np.savez(
        path, about=text_of({**ABOUT, "dataset": 3}), rows=np.arange(3)
    ),
    "path is no text": lambda path: np.savez(
        path, about=text_of({**ABOUT, "path": ["x"]}), rows=np.arange(3)
    ),
    "version is no number": lambda path: np.savez(
        path, about=text_of({**ABOUT, "format_version": "9"}), rows=np.arange(3)
    ),
    "about is a list": lambda path: np.savez(path, about=text_of([1]), rows=np.arange(3)),
    "deep": _deep,
    "huge header": _huge_header,
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "text": lambda path: path.write_text("a view"),
    "empty": Path.touch,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_refused(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    HOSTILE[kind](path)
    with pytest.raises(IntegrityError, match=r"a\.npz"):
        read_view(path)
