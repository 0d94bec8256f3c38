"""Values made ahead: in order, not too many, errors where they are due, and an end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from offline_data.base.ahead import Ahead
from offline_data.base.errors import UsageError


@pytest.mark.parametrize("count", [1, 4])
def test_so_many_wait_and_no_more(count: int) -> None:
    """Of the values, those that are asked for and `count` more are begun."""
    begun: list[int] = []
    more = threading.Semaphore(0)

    def values() -> Iterator[int]:
        for value in range(9):
            begun.append(value)
            more.release()
            yield value

    with closing(Ahead(values(), count)) as ahead:
        for used in range(3):
            for _ in range(count if not used else 1):
                more.acquire()
            assert len(begun) == used + count
            assert next(ahead) == used


def test_an_error_is_raised_where_it_is_due() -> None:
    def values() -> Iterator[int]:
        yield 1
        yield 2
        raise OSError("damaged")

    with closing(Ahead(values(), 4)) as ahead:
        assert [next(ahead), next(ahead)] == [1, 2]
        for _ in range(2):
            with pytest.raises(OSError, match="damaged"):
                next(ahead)


def test_the_end_is_the_end() -> None:
    ahead = Ahead(iter([1]))
    assert list(ahead) == [1]
    assert list(ahead) == []
    ahead.close()


def test_closing_waits_and_closes_the_generator() -> None:
    go, closed = threading.Event(), threading.Event()

    def values() -> Iterator[int]:
        try:
            yield 1
            go.wait()
            yield 2
        finally:
            closed.set()

    ahead = Ahead(values(), 3, "a name of the test")
    assert next(ahead) == 1
    go.set()
    ahead.close()
    assert closed.is_set()
    assert not [one for one in threading.enumerate() if one.name == "a name of the test"]
    with pytest.raises(UsageError, match="closed"):
        next(ahead)
    ahead.close()
