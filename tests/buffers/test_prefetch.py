from __future__ import annotations

import multiprocessing
import pickle
import threading
import time
from typing import Any

import pytest
import torch

from offline_data.buffers.prefetch import Draw, Prefetcher


class Counting:
    """Draws 0, 1, 2, …; every third is the last of an epoch."""

    def __init__(self) -> None:
        self.drawn = 0
        self.made: list[int] = []
        self.threads: set[str] = set()

    def draw(self) -> Draw:
        self.drawn += 1
        return Draw(torch.tensor([self.drawn - 1]), {}, self.drawn % 3 == 0)

    def make(self, draw: Draw) -> Any:
        self.threads.add(threading.current_thread().name)
        time.sleep(0.02 if int(draw.rows) % 2 else 0.0)  # later ones are ready earlier
        self.made.append(int(draw.rows))
        return int(draw.rows)

    def take(self, ahead: Prefetcher) -> tuple[Draw, Any]:
        draw, future = ahead.take(self.draw, self.make)
        assert future is not None
        return draw, future.result()


def test_batches_come_in_the_order_drawn_from_threads() -> None:
    source, ahead = Counting(), Prefetcher(3)
    taken = [source.take(ahead) for _ in range(9)]
    assert [batch for _, batch in taken] == list(range(9))
    assert [draw.last for draw, _ in taken] == [False, False, True] * 3
    assert threading.current_thread().name not in source.threads
    assert source.drawn == 9 + 3
    ahead.close()


def test_without_depth_nothing_is_drawn_ahead() -> None:
    source, ahead = Counting(), Prefetcher(0)
    for number in range(3):
        draw, future = ahead.take(source.draw, source.make)
        assert (int(draw.rows), future, source.drawn) == (number, None, number + 1)
    assert source.made == []


def test_an_error_comes_with_its_batch() -> None:
    source = Counting()

    def make(draw: Draw) -> int:
        return 10 // (int(draw.rows) - 1)

    ahead = Prefetcher(2)
    futures = [ahead.take(source.draw, make)[1] for _ in range(3)]
    first, second, third = (future for future in futures if future is not None)
    assert first.result() == -10
    with pytest.raises(ZeroDivisionError):
        second.result()
    assert third.result() == 10
    ahead.close()


@pytest.mark.parametrize("depth", [0, 2])
def test_draws_that_were_not_handed_out_come_first_elsewhere(depth: int) -> None:
    source, ahead = Counting(), Prefetcher(2)
    assert source.take(ahead)[1] == 0
    assert [int(draw.rows) for draw in ahead.drawn()] == [1, 2]
    other, later = Prefetcher(depth), Counting()
    later.drawn = 3
    other.restore(ahead.drawn(), later.make)
    taken = [int(other.take(later.draw, later.make)[0].rows) for _ in range(4)]
    assert taken == [1, 2, 3, 4]
    copy = pickle.loads(pickle.dumps(ahead))  # noqa: S301
    again = Counting()
    again.drawn = 3
    assert [again.take(copy)[1] for _ in range(4)] == [1, 2, 3, 4]
    for one in (ahead, other, copy):
        one.close()


def test_stale_batches_are_made_again_in_their_places() -> None:
    source, ahead = Counting(), Prefetcher(3)
    source.take(ahead)
    ahead.settle()
    assert sorted(source.made) == [0, 1, 2, 3]
    ahead.remake(lambda draw: int(draw.rows) == 2, source.make, lambda draw: draw)
    ahead.settle()
    assert sorted(source.made) == [0, 1, 2, 2, 3]
    assert [source.take(ahead)[1] for _ in range(4)] == [1, 2, 3, 4]
    ahead.close()


def test_settling_waits_also_for_what_was_handed_out() -> None:
    gate, made = threading.Event(), threading.Event()

    def make(draw: Draw) -> None:
        gate.wait(30)
        made.set()

    source, ahead = Counting(), Prefetcher(1)
    ahead.take(source.draw, make)
    ahead._queue.clear()
    waiting = threading.Thread(target=ahead.settle)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    gate.set()
    waiting.join(30)
    assert made.is_set()
    ahead.close()


def test_threads_end_with_the_prefetcher() -> None:
    def alive() -> set[int]:
        threads = [one for one in threading.enumerate() if one.name.startswith("offline-data")]
        return {thread.ident or 0 for thread in threads}

    source, ahead = Counting(), Prefetcher(2)
    before = alive()
    source.take(ahead)
    assert alive() - before
    del ahead
    deadline = time.monotonic() + 30
    while alive() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive() - before


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_goes_on() -> None:
    source, ahead = Counting(), Prefetcher(2)
    source.take(ahead)
    with multiprocessing.get_context("fork").Pool(1, _keep, (source, ahead)) as pool:
        assert pool.apply_async(_take_in_child).get(30) == [1, 2, 3]
    assert source.take(ahead)[1] == 1
    ahead.close()


_kept: list[Any] = []


def _keep(source: Counting, ahead: Prefetcher) -> None:
    _kept.extend((source, ahead))


def _take_in_child() -> list[int]:
    source, ahead = _kept
    return [source.take(ahead)[1] for _ in range(3)]
