"""What all derived leaves have in common, whatever they derive and from which storage."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.dataset import Dataset
from offline_data.rows.derived import (
    Derived,
    action_chunk,
    frame_stack,
    n_step,
    normalize,
    relabel,
    return_to_go,
)
from offline_data.torchrl.storages import LazyTensorStorage, ListStorage

STATE = ("observation", "state")

EVERYTHING: list[Derived] = [
    n_step(2, 0.5),
    frame_stack(2, [STATE]),
    action_chunk(2),
    return_to_go(),
    normalize([STATE], {STATE: (0.0, 1.0)}, eps=0),
]


def reward_fn(achieved: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
    return -(achieved - goals).abs().sum(-1)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "n_step": (lambda: n_step(3), lambda: n_step(4)),
    "frame_stack": (lambda: frame_stack(4), lambda: frame_stack(4, pad="zero")),
    "action_chunk": (lambda: action_chunk(4, "action"), lambda: action_chunk(5)),
    "return_to_go": (return_to_go, lambda: return_to_go(0.9)),
    "normalize": (lambda: normalize("observation"), lambda: normalize(eps=1)),
    "statistics": (
        lambda: normalize("observation", {"observation": ([0.0], [1.0])}),
        lambda: normalize("observation", {"observation": ([0.0], [2.0])}),
    ),
    "relabel": (
        lambda: relabel("final", 1, terminate=True, seed=1),
        lambda: relabel("final", 1, reward_fn=reward_fn, terminate=True, seed=1),
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_an_instance_is_a_value(name: str) -> None:
    make, other = KINDS[name]
    one = make()
    assert repr(one) == repr(make()) != repr(other())
    assert one == make() == pickle.loads(pickle.dumps(one))  # noqa: S301
    assert len({one, make(), other()}) == 2


@pytest.mark.parametrize("name", [name for name in KINDS if name != "statistics"])
def test_through_a_buffer(sets: Any, episode: Any, name: str) -> None:
    """Batches are those of the storage, also in another process; leaves are contiguous and apart."""
    make, _ = KINDS[name]
    of = sets.write([episode(4), episode(2)])
    want = of.derive(make())
    ds = Dataset(of.path, 8, derived=[make()])
    before = len(pickle.dumps(ds))
    for buffer in (ds, pickle.loads(pickle.dumps(ds))):  # noqa: S301
        found = buffer[:]
        keys = list(found.keys(include_nested=True, leaves_only=True))
        assert set(keys) == set(want.keys(include_nested=True, leaves_only=True))
        assert all(found[key].equal(want[key]) for key in keys)
        assert all(found[key].is_contiguous() for key in keys)
        places = {found[key].untyped_storage().data_ptr() for key in keys}
        assert len(places) == len(keys)
    assert len(pickle.dumps(ds)) < before + 5000


def derive(storage: Any, rows: list[int], derived: list[Derived]) -> Any:
    index = torch.tensor(rows)
    batch = storage.gather(index.clone())
    for one in derived:
        batch = one(batch, index, storage)
    return batch


@pytest.mark.parametrize("kind", [LazyTensorStorage, ListStorage])
def test_a_ring_that_wrapped(sets: Any, episode: Any, kind: Any) -> None:
    """Rows 0 and 1 are the newest, 2 and 3 the rest of what they were written over."""
    of, storage = sets.write([episode(4), episode(2)]), kind(4)
    content, _ = of.gather()
    rows = TensorDict(content.exclude("index", "episode").to_dict(), [of.rows])
    storage.set(range(4), rows[:4])
    found = derive(storage, [0, 2, 3], EVERYTHING)
    assert found["steps_to_next_obs"].tolist() == [2, 2, 1]
    assert found[STATE][..., 0].tolist() == [[1001, 1001], [1002, 1003], [1003, 1004]]
    storage.set(range(2), rows[4:])
    found = derive(storage, [0, 1, 2, 3], EVERYTHING)
    assert found["steps_to_next_obs"].tolist() == [2, 1, 2, 1]
    assert found[STATE][:, 0, 0].tolist() == [2001, 2001, 1003, 1003]
    assert found[STATE][:, 1, 0].tolist() == [2001, 2002, 1003, 1004]
    assert found["next", "observation", "state"][:, 1, 0].tolist() == [2003, 2003, 1005, 1005]
    assert found["action"][:, 0, 0].tolist() == [-2001, -2002, -1003, -1004]
    assert found["action"][:, 1, 0].tolist() == [-2002, -2002, -1004, -1004]
    want = [200.2 + 200.3, 200.3, 100.4 + 100.5, 100.5]
    assert found["return_to_go"][:, 0].tolist() == pytest.approx(want)
    goals = derive(storage, [0, 2], [relabel("final", 1, seed=0)])
    assert goals["observation", "desired_goal"][:, 0].tolist() == [2003, 1005]


def test_the_cache_goes_with_the_storage(sets: Any, episode: Any) -> None:
    of = sets.write([episode(2)])
    derive(of.storage, [0], [EVERYTHING[1]])
    gone = weakref.ref(of.storage)
    del of
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_while_a_thread_computes(sets: Any, episode: Any) -> None:
    ds = Dataset(sets.write([episode(2)]).path, derived=[return_to_go()])
    begun, done = threading.Event(), threading.Event()

    class Slow:
        def __len__(self) -> int:
            return 1

        def gather(self, _rows: object) -> None:
            begun.set()
            done.wait(60)
            raise EOFError

    def hold() -> None:
        with contextlib.suppress(EOFError):
            normalize().fit(Slow())

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(60)
    child = multiprocessing.get_context("fork").Process(target=lambda: ds[:])
    child.start()
    child.join(30)
    try:
        assert child.exitcode == 0
    finally:
        done.set()
        thread.join()
        child.kill()
