from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.base.errors import UsageError
from offline_data.rows.derived import return_to_go

module = import_module("offline_data.rows.derived.returns")


@pytest.mark.parametrize(
    ("gamma", "chunk", "layout"),
    [(0.0, 1, "compact"), (0.5, 3, "ted"), (0.99, 1000, "compact"), (1.0, 3, "compact")],
)
def test_it_is_a_walk_back(
    sets: Any, monkeypatch: pytest.MonkeyPatch, gamma: float, chunk: int, layout: Any
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    of = sets.write(layout=layout)
    rows = of.shuffled()
    found = of.derive(return_to_go(gamma, "next.sum"), rows)["next", "sum"]
    assert found.shape == (len(rows), 1)
    assert found.dtype == torch.float32
    want = [0.0] * of.rows
    for row in range(of.rows - 1, -1, -1):
        episode, time = of.place[row]
        last = time == of.episodes[episode].length - 1
        want[row] = float(of.reward[row]) + (0.0 if last else gamma * want[row + 1])
    np.testing.assert_allclose(found[:, 0].numpy(), np.array(want)[rows], rtol=1e-6)


def test_a_storage_without_rewards(grown: Any, sets: Any, episode: Any) -> None:
    storage, rows = grown(sets.write([episode(3)])), torch.arange(3)
    del storage.content["next", "reward"]
    with pytest.raises(UsageError, match="needs the leaf 'next/reward'"):
        return_to_go()(storage.gather(rows), rows, storage)


def test_it_is_added_up_once_by_one_thread(grown: Any, sets: Any, episode: Any) -> None:
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
