"""What tests of readers share: what a folder holds, and how much memory was taken."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


@pytest.fixture(scope="session")
def snapshot() -> Callable[[Path], dict[str, bytes | None]]:
    """Return what is below a folder, by path: a file's bytes, None for a folder."""

    def take(folder: Path) -> dict[str, bytes | None]:
        found = sorted(folder.rglob("*"))
        return {str(path): None if path.is_dir() else path.read_bytes() for path in found}

    return take


@pytest.fixture(scope="session")
def memory_below() -> Callable[[int], AbstractContextManager[None]]:
    """Assert that Python's memory grew by less than so many bytes at any time within."""

    @contextmanager
    def below(most: int) -> Iterator[None]:
        tracemalloc.start()
        try:
            yield
            assert tracemalloc.get_traced_memory()[1] < most
        finally:
            tracemalloc.stop()

    return below
