"""What tests of archives share: contents that identify themselves, and what a folder holds."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


def content_of(name: str, size: int) -> bytes:
    """Bytes that say whose they are and how far in, so that none can stand for another."""
    lines = (f"{name}:{at};".encode() for at in range(size))
    out = b""
    while len(out) < size:
        out += next(lines)
    return out[:size]


@pytest.fixture(scope="session")
def content() -> Callable[[str, int], bytes]:
    return content_of


@pytest.fixture(scope="session")
def trees() -> st.SearchStrategy[dict[str, bytes]]:
    """Files by name, where no file is also a folder; also long, deep and not ASCII."""
    part = st.text("abcÄ日 .-0", min_size=1, max_size=80).filter(lambda p: p not in {".", ".."})
    name = st.lists(part, min_size=1, max_size=4).map("/".join)
    sizes = st.sampled_from([0, 1, 511, 512, 513, 3000])
    return st.dictionaries(name, sizes, max_size=5).filter(_no_file_is_a_folder).map(_filled)


def _no_file_is_a_folder(sizes: dict[str, int]) -> bool:
    return not any(other.startswith(f"{name}/") for name in sizes for other in sizes)


def _filled(sizes: dict[str, int]) -> dict[str, bytes]:
    return {name: content_of(name, size) for name, size in sizes.items()}


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
