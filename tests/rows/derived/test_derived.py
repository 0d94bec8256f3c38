"""What all derived leaves have in common, whatever they derive and from which storage."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import pickle
import threading
import weakref
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.base.errors import UsageError
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
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
    ds = BaseDatasetExperienceReplay(of.path, 8, derived=[make()])
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
    split = BaseDatasetExperienceReplay(of.path, 1, derived=[make()], split_trajs=True)
    with pytest.raises(UsageError, match=r"needs batches .* whole episodes") as caught:
        split.sample()
    assert "split_trajs" in str(caught.value.hint)


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


def test_a_view_of_a_dataset(sets: Any, episode: Any) -> None:
    of = sets.write([episode(3), episode(2), episode(3, "truncated", False)])
    ds = BaseDatasetExperienceReplay(of.path, 4, derived=EVERYTHING)
    view = ds.filter(lambda episodes: episodes["length"] == 3)
    found = view[:]
    assert found["dataset_index"].tolist() == [0, 1, 2, 5, 6, 7]
    assert found["steps_to_next_obs"].tolist() == [2, 2, 1, 2, 1, 1]
    assert found[STATE][:, 0, 0].tolist() == [1001, 1001, 1002, 3001, 3001, 3002]
    goals = derive(view.storage, [0, 3, 5], [relabel("final", 1, seed=0)])
    assert goals["observation", "desired_goal"][:, 0].tolist() == [1004, 3003, 7_000_002]


leaf: Any = import_module("offline_data.rows.derived")  # wrong arguments are not for mypy
GIVEN = normalize([STATE], {STATE: (0.0, 1.0)}).statistics
SHAPES: list[Any] = [([1, 2], [1, 2]), ([[1], [1], [1]], 1), (1, [[1], [1], [1]])]
ARGUMENTS: list[tuple[Callable[[], Any], str]] = [
    (lambda: leaf.n_step(0), "n is 0"),
    (lambda: leaf.n_step(2, 1.1), r"gamma is 1\.1"),
    (lambda: leaf.n_step(2, float("nan")), "gamma is nan"),
    (lambda: leaf.return_to_go(1.5), r"gamma is 1\.5"),
    *[(lambda make=make: make(0), "k is 0") for make in (frame_stack, action_chunk)],
    *[(lambda make=make: make(2, pad="edge"), "pad is 'edge'") for make in (leaf.frame_stack, leaf.action_chunk)],
    (lambda: leaf.frame_stack(2, ["observations"]), "no leaf 'observations'"),
    (lambda: leaf.frame_stack(2, ["next.observation"]), "no leaf 'next/observation'"),
    (lambda: leaf.frame_stack(2, ["image"], cat_dim=3), "cat_dim is 3"),
    (lambda: leaf.frame_stack(2, ["image"], cat_dim=-4), "cat_dim is -4"),
    (lambda: leaf.action_chunk(2, ["actions"]), "no leaf 'actions'"),
    (lambda: leaf.relabel("futur"), "strategy is 'futur'; expected one of current, final"),
    (lambda: leaf.relabel({"current": 0.2, "random": 0.7}), r"add up to 0\.9"),
    (lambda: leaf.relabel({"final": 1.5, "random": -0.5}), r"probability of 'final' is 1\.5"),
    (lambda: leaf.relabel(p=1.2), r"p is 1\.2"),
    (lambda: leaf.relabel(threshold=-1), "threshold is -1"),
    (lambda: leaf.relabel(gamma=1), "expected less than 1"),
    (lambda: leaf.relabel(gamma=2), "gamma is 2"),
    (lambda: leaf.relabel(seed=2**63), "seed is"),
    (lambda: leaf.relabel(achieved_key="achieved", seed=0), "needs the leaf 'achieved'"),
    (lambda: leaf.relabel(goal_key="goal", seed=0), "needs the leaf 'goal'"),
    (lambda: leaf.relabel(goal_key=STATE, seed=0), r"'observation/state' is torch\.flo"),
    (lambda: leaf.normalize(eps=-1), "eps is -1"),
    (lambda: leaf.normalize(by="mean"), "by is \"'mean'\"; expected 'std' or 'quantile'"),
    (lambda: leaf.normalize("observation", {"action": (0, 1)}), "no leaf 'observation'"),
    *[(lambda it=it: leaf.normalize("action", {"action": it}), r"of 'action' are .*expected \(mean, std\)") for it in (3, (1, 2, 3), ("a", "b"))],
    (lambda: leaf.normalize([STATE], GIVEN, by="quantile"), r"expected \(q01, q99\): of another by="),
    (lambda: leaf.normalize().fit((1, 2)), "A tuple has no rows"),
    (lambda: leaf.normalize().fit(), "fit needs a buffer"),
    (lambda: leaf.normalize(["observatio"]), "no leaf 'observatio'"),
    *[(lambda it=it: leaf.normalize([STATE], {STATE: it}), r"have shape \[.*\], which does not match \[3\]") for it in SHAPES],
    (lambda: leaf.normalize(["observation"], {STATE: (0, 1)}), "No statistics of 'observation/achieved_goal'"),
    (lambda: [frame_stack(2, ["image"], cat_dim=0), normalize(["image"])], r"\[2, 3, 4\], which does not match \[4, 3, 4\]"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ARGUMENTS)))
def test_arguments_and_batches_that_are_refused(sets: Any, episode: Any, number: int) -> None:
    make, message = ARGUMENTS[number]
    of = sets.write([episode(3)])
    with pytest.raises(UsageError, match=message):
        BaseDatasetExperienceReplay(of.path, 2, derived=make())[:]


@pytest.mark.parametrize(
    ("derived", "message"),
    [
        ([normalize(), n_step(2)], "n_step reads the leaf 'next/"),
        ([return_to_go(key="next.sum"), n_step(2)], "n_step reads the leaf 'next/sum'"),
        ([normalize(), frame_stack(2)], "reads the leaf 'observation/state'"),
        ([normalize("action"), action_chunk(2)], "reads the leaf 'action'"),
        ([normalize(), relabel(seed=0)], "relabel reads the leaf 'observation/achieved_goal'"),
        ([frame_stack(2), relabel(seed=0)], "relabel reads the leaf 'observation/achieved_goal'"),
        ([n_step(2), relabel(seed=0)], "cannot be combined"),
    ],
)
def test_what_was_changed_before_is_not_taken_back(
    sets: Any, episode: Any, derived: Any, message: str
) -> None:
    of = sets.write([episode(4), episode(4)])
    with pytest.raises(UsageError, match=message) as caught:
        BaseDatasetExperienceReplay(of.path, 8, derived=derived)[:]
    assert "cannot be combined" in message or "n_step or relabel, frame_stack" in str(
        caught.value.hint
    )


def test_the_cache_goes_with_the_storage(sets: Any, episode: Any) -> None:
    of = sets.write([episode(2)])
    derive(of.storage, [0], [EVERYTHING[1]])
    gone = weakref.ref(of.storage)
    del of
    gc.collect()
    assert gone() is None


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_fork_while_a_thread_computes(sets: Any, episode: Any) -> None:
    ds = BaseDatasetExperienceReplay(sets.write([episode(2)]).path, derived=[return_to_go()])
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
