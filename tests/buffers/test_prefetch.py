from __future__ import annotations

import multiprocessing
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


def test_settling_waits_also_for_what_was_handed_out() -> None:
    gate, made = threading.Event(), threading.Event()

    def make(draw: Draw) -> None:
        gate.wait(120)
        made.set()

    source, ahead = Counting(), Prefetcher(1)
    ahead.take(source.draw, make)
    ahead._queue.clear()
    waiting = threading.Thread(target=ahead.settle)
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    gate.set()
    waiting.join(120)
    assert made.is_set()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_goes_on() -> None:
    source, ahead = Counting(), Prefetcher(2)
    source.take(ahead)
    with multiprocessing.get_context("fork").Pool(1, _keep, (source, ahead)) as pool:
        assert pool.apply_async(_take_in_child).get(120) == [1, 2, 3]
    assert source.take(ahead)[1] == 1


_kept: list[Any] = []


def _keep(source: Counting, ahead: Prefetcher) -> None:
    _kept.extend((source, ahead))


def _take_in_child() -> list[int]:
    source, ahead = _kept
    return [source.take(ahead)[1] for _ in range(3)]
