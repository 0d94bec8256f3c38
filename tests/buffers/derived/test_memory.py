from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import pickle
import threading
import time
import weakref
from typing import Any

import pytest

from offline_data.buffers.derived.memory import Memory, _lock, once


def test_it_is_made_once_for_a_storage(grown: Any, sets: Any, episode: Any) -> None:
    of, memory, number = sets.write([episode(2)]), Memory(), itertools.count(1)
    one, other = grown(of), grown(of)
    made = [memory.recall(s, "name", lambda: next(number)) for s in (one, one, other, one)]
    assert made == [1, 1, 2, 1]
    assert memory.recall(one, "another name", lambda: 7) == 7


def test_what_is_narrowed_is_narrowed_once(sets: Any, episode: Any) -> None:
    storage, memory = sets.write([episode(2)]).storage, Memory()
    one = memory.only(storage, (("action",),))
    assert memory.only(storage, (("action",),)) is one
    assert memory.only(storage, (("image",),)) is not one


def test_it_is_made_again_after_a_write(grown: Any, sets: Any, episode: Any) -> None:
    storage, memory = grown(sets.write([episode(2)])), Memory()

    def rows() -> int:
        return memory.recall_written(storage, "rows", lambda: len(storage))

    assert [rows(), rows()] == [2, 2]
    storage.extend(storage.content)
    assert rows() == 4


def test_it_goes_with_the_storage(sets: Any, episode: Any) -> None:
    storage, memory = sets.write([episode(2)]).storage, Memory()
    kept = memory.only(storage, (("action",),))
    gone = weakref.ref(storage)
    del storage
    gc.collect()
    assert kept is not None
    assert gone() is None


def test_it_stays_behind(grown: Any, sets: Any, episode: Any) -> None:
    storage, memory = grown(sets.write([episode(2)])), Memory()
    memory.recall(storage, "name", lambda: 1)
    for other in (pickle.loads(pickle.dumps(memory)), copy.deepcopy(memory)):  # noqa: S301
        assert other.recall(storage, "name", lambda: 2) == 2


def test_making_may_make_something_else() -> None:
    known: dict[str, int] = {}
    assert once(known, "outer", lambda: once(known, "inner", lambda: 1) + 1) == 2


def test_one_thread_makes_it() -> None:
    known: dict[str, int] = {}
    number, gate = itertools.count(1), threading.Barrier(4)

    def make() -> int:
        time.sleep(0.05)
        return next(number)

    def work() -> None:
        gate.wait()
        once(known, "name", make)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert known == {"name": 1}


def test_what_cannot_be_made_is_tried_again() -> None:
    known: dict[str, int] = {}
    with pytest.raises(ZeroDivisionError):
        once(known, "name", lambda: 1 // 0)
    assert once(known, "name", lambda: 3) == 3


def in_child(queue: Any) -> None:
    queue.put(once({}, "name", lambda: 5))


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_while_a_thread_makes_something() -> None:
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with _lock():
            begun.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait(60)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_child, args=(queue,))
    child.start()
    try:
        assert queue.get(timeout=30) == 5
    finally:
        done.set()
        thread.join()
        child.join(5)
        child.kill()
