"""What was forced to the disk, as far as a program can ask for it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest


class Syncs:
    """Watches `os.fsync`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._sizes: dict[int, int] = {}
        sync = os.fsync

        def watched(handle: int) -> None:
            sync(handle)
            found = os.fstat(handle)
            self._sizes[found.st_ino] = found.st_size

        monkeypatch.setattr(os, "fsync", watched)

    def lacks(self, paths: Iterable[Path]) -> list[Path]:
        """List the files, of those that have content, that have grown since they were synced.

        And folders that were never synced.
        """
        states = {path: path.stat() for path in paths}
        return [
            path
            for path, state in states.items()
            if state.st_size
            and (
                state.st_ino not in self._sizes
                or (path.is_file() and self._sizes[state.st_ino] < state.st_size)
            )
        ]


def files_in(folder: Path) -> list[Path]:
    """List all files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]
