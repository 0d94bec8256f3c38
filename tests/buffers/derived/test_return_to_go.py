from __future__ import annotations

import pickle
import threading
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.derived import return_to_go
from offline_data.buffers.derived.return_to_go import _pieces, discounted
from offline_data.buffers.samplers import Runs
from offline_data.errors import UsageError

module = import_module("offline_data.buffers.derived.return_to_go")


def returns_of(of: Any, gamma: float) -> list[float]:
    """Walk back through each episode."""
    found = [0.0] * of.rows
    for row in range(of.rows - 1, -1, -1):
        episode, time = of.place[row]
        last = time == of.episodes[episode].length - 1
        found[row] = float(of.reward[row]) + (0.0 if last else gamma * found[row + 1])
    return found


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    data=st.data(),
    gamma=st.sampled_from((0.0, 0.5, 0.99, 1.0)),
    chunk=st.sampled_from((1, 3, 1000)),
)
def test_it_is_a_walk_back(
    sets: Any, gathering: None, monkeypatch: pytest.MonkeyPatch, data: Any, gamma: Any, chunk: int
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    of = sets.write(*data.draw(sets.strategy))
    rows = data.draw(st.permutations([*range(of.rows), 0]))
    batch, index = of.gather(rows)
    found = return_to_go(gamma)(batch, index, of.storage)["return_to_go"]
    assert found.shape == (len(rows), 1)
    assert found.dtype == torch.float32
    want = np.array(returns_of(of, gamma))[rows]
    np.testing.assert_allclose(found[:, 0].numpy(), want, rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    gamma=st.sampled_from((0.0, 0.9, 1.0)),
    width=st.sampled_from(((), (1,), (2,))),
)
def test_doubling_is_recursion(lengths: list[int], gamma: float, width: tuple[int, ...]) -> None:
    rewards = torch.rand(sum(lengths), *width, dtype=torch.float64)
    want, end = rewards.clone(), 0
    for length in lengths:
        end += length
        for row in range(end - 2, end - length - 1, -1):
            want[row] += gamma * want[row + 1]
    torch.testing.assert_close(discounted(rewards, torch.tensor(lengths), gamma), want)


def test_sums_do_not_lose_what_is_small_behind_what_is_large() -> None:
    rewards = torch.tensor([1e17, 1.0, 1e-3, 5.0], dtype=torch.float64)
    found = discounted(rewards, torch.tensor([1, 2, 1]), 1.0)
    assert found.tolist() == [1e17, 1.001, 1e-3, 5.0]


def test_nan_stays_in_its_episode() -> None:
    rewards = torch.tensor([1.0, 2.0, float("nan"), 4.0, 5.0], dtype=torch.float64)
    found = discounted(rewards, torch.tensor([2, 2, 1]), 1.0)
    assert found.isnan().tolist() == [False, False, True, False, False]
    assert found[:2].tolist() == [3, 2]


def test_pieces_are_whole_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 4)
    lengths = torch.tensor([3, 1, 9, 1, 1, 2, 1])
    pieces = _pieces(Runs(lengths.cumsum(0) - lengths, lengths))
    assert pieces == [(0, 2), (2, 3), (3, 6), (6, 7)]


def test_it_is_added_up_once_and_again_after_a_write(grown: Any, sets: Any, episode: Any) -> None:
    storage, derived = grown(sets.write([episode(2)])), return_to_go()
    rows = torch.tensor([0])

    def found() -> float:
        return float(derived(storage.gather(rows), rows, storage)["return_to_go"])

    assert found() == pytest.approx(100.2 + 100.3)
    read = storage.gathered
    assert found() == pytest.approx(100.2 + 100.3)
    assert storage.gathered == read + 1
    storage.extend(grown(sets.write([episode(2), episode(2)])).content[2:])
    rows = torch.tensor([2])
    assert found() == pytest.approx(200.2 + 200.3)


def test_threads_add_up_once(grown: Any, sets: Any, episode: Any) -> None:
    storage, derived = grown(sets.write([episode(50)])), return_to_go()
    rows, gate = torch.tensor([0]), threading.Barrier(4)
    batches = [storage.gather(rows) for _ in range(4)]
    read = storage.gathered

    def work(batch: Any) -> None:
        gate.wait()
        derived(batch, rows, storage)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert storage.gathered == read + 1 + 50  # a row to see what there is, then all rows
    assert all(batch["return_to_go"].equal(batches[0]["return_to_go"]) for batch in batches)


def test_through_a_buffer(sets: Any, episode: Any) -> None:
    of = sets.write([episode(4), episode(2, "truncated", False)])
    ds = BaseDatasetExperienceReplay(of.path, 8, derived=[return_to_go(0.9, ("next", "sum"))])
    before = len(pickle.dumps(ds))
    for buffer in (ds, pickle.loads(pickle.dumps(ds))):  # noqa: S301
        batch = buffer.sample()
        want = np.array(returns_of(of, 0.9))[batch["index"].numpy()]
        np.testing.assert_allclose(batch["next", "sum"][:, 0], want, rtol=1e-6)
    assert len(pickle.dumps(ds)) < before + 5000


def test_it_is_a_value() -> None:
    one = return_to_go()
    assert one == return_to_go(1.0) == pickle.loads(pickle.dumps(one))  # noqa: S301
    assert len({one, return_to_go(), return_to_go(0.9)}) == 2
    assert repr(one) == "return_to_go(1.0, 'return_to_go')"


def test_what_cannot_be_meant(grown: Any, sets: Any, episode: Any) -> None:
    with pytest.raises(UsageError, match=r"gamma is 1\.5"):
        return_to_go(1.5)
    of = sets.write([episode(3)])
    ds = BaseDatasetExperienceReplay(of.path, 2, derived=[return_to_go()], split_trajs=True)
    with pytest.raises(UsageError, match="return_to_go is for batches") as caught:
        ds.sample()
    assert "split_trajs" in str(caught.value.hint)
    storage, rows = grown(of), torch.arange(3)
    del storage.content["next", "reward"]
    with pytest.raises(UsageError, match="needs the leaf 'next/reward'"):
        return_to_go()(storage.gather(rows), rows, storage)
