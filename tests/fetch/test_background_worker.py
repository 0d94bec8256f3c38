from __future__ import annotations

from threading import Event, Thread

import pytest

from offline_data.fetch.download import BackgroundWorker


def wait_for(event: Event) -> None:
    assert event.wait(5)


def test_calls_are_made_in_order_in_another_thread() -> None:
    seen: list[int] = []
    go = Event()
    worker = BackgroundWorker(limit=3)
    worker.put(lambda: wait_for(go))
    worker.put(lambda: seen.append(0))
    worker.put(lambda: seen.append(1))
    assert (seen, worker.idle) == ([], False)
    go.set()
    worker.wait()
    assert (seen, worker.idle) == ([0, 1], True)
    worker.put(lambda: seen.append(2))
    worker.close()
    assert seen == [0, 1, 2]


def test_nobody_gets_further_ahead_than_allowed() -> None:
    go = Event()
    worker = BackgroundWorker(limit=2)
    worker.put(lambda: wait_for(go))
    ahead: list[int] = []

    def put_many() -> None:
        for number in range(6):
            worker.put(lambda: None)
            ahead.append(number)

    caller = Thread(target=put_many, daemon=True)
    caller.start()
    caller.join(0.2)
    # one runs or is about to, two wait
    assert len(ahead) in {2, 3}
    go.set()
    caller.join(5)
    worker.close()
    assert ahead == list(range(6))


def test_a_failure_is_told_and_ends_the_calls_after_it() -> None:
    def fail() -> None:
        raise OSError(5, "the first failure")

    seen: list[int] = []
    worker = BackgroundWorker(limit=2)
    for call in (lambda: seen.append(1), fail, lambda: seen.append(2)):
        worker.put(call)
    with pytest.raises(OSError, match="the first failure"):
        worker.wait()
    worker.close()
    assert seen == [1]


def test_nothing_put_means_nothing_to_wait_for() -> None:
    worker = BackgroundWorker(limit=1)
    worker.wait()
    worker.close()
    assert worker.idle
