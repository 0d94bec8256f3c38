"""What tests of readers share: how much memory was taken."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest


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
