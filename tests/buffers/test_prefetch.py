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
        self.threads: set[str] = set()

    def draw(self) -> Draw:
        self.drawn += 1
        return Draw(torch.tensor([self.drawn - 1]), {}, self.drawn % 3 == 0)

    def make(self, draw: Draw) -> Any:
        self.threads.add(threading.current_thread().name)
        time.sleep(0.02 if int(draw.rows) % 2 else 0.0)  # later ones are ready earlier
        return int(draw.rows)


def test_batches_come_in_the_order_drawn_from_threads() -> None:
    source = Counting()
    ahead = Prefetcher(source.draw, source.make, 3)
    taken = [ahead.take() for _ in range(9)]
    assert [batch for _, batch in taken] == list(range(9))
    assert [draw.last for draw, _ in taken] == [False, False, True] * 3
    assert threading.current_thread().name not in source.threads
    assert source.drawn == 9 + 3
    ahead.close()


def test_an_error_comes_with_its_batch() -> None:
    source = Counting()

    def make(draw: Draw) -> int:
        return 10 // (int(draw.rows) - 1)

    ahead = Prefetcher(source.draw, make, 2)
    assert ahead.take()[1] == -10
    with pytest.raises(ZeroDivisionError):
        ahead.take()
    assert ahead.take()[1] == 10
    ahead.close()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_process_goes_on() -> None:
    source = Counting()
    ahead = Prefetcher(source.draw, source.make, 2)
    ahead.take()
    with multiprocessing.get_context("fork").Pool(1, _keep, (ahead,)) as pool:
        assert pool.apply_async(_take_in_child).get(30) == [1, 2, 3]
    assert ahead.take()[1] == 1
    ahead.close()


_kept: list[Prefetcher] = []


def _keep(ahead: Prefetcher) -> None:
    _kept.append(ahead)


def _take_in_child() -> list[int]:
    return [_kept[0].take()[1] for _ in range(3)]
