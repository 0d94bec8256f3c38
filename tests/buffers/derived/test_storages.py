"""Every kind of storage gives what is derived from it: a ring that wrapped, a view of a dataset."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.buffers.derived import (
    Derived,
    action_chunk,
    frame_stack,
    n_step,
    normalize,
    relabel,
    return_to_go,
)
from offline_data.buffers.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage

STATE, ACHIEVED = ("observation", "state"), ("observation", "achieved_goal")

EVERYTHING: list[Derived] = [
    n_step(2, 0.5),
    frame_stack(2, [STATE]),
    action_chunk(2),
    return_to_go(),
    normalize([STATE], {STATE: (0.0, 1.0)}, eps=0),
]


def make(of: Any, rows: slice) -> Any:
    content, _ = of.gather()
    return TensorDict(content.exclude("index", "episode").to_dict(), [of.rows])[rows]


def derive(storage: Any, rows: list[int], derived: list[Derived]) -> Any:
    index = torch.tensor(rows)
    batch = storage.gather(index.clone())
    for one in derived:
        batch = one(batch, index, storage)
    return batch


@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage, ListStorage])
def test_a_ring_that_wrapped(sets: Any, episode: Any, kind: Any) -> None:
    """Rows 0 and 1 are the newest, 2 and 3 the rest of what they were written over."""
    of, storage = sets.write([episode(4), episode(2)]), kind(4)
    storage.set(range(4), make(of, slice(0, 4)))
    found = derive(storage, [0, 2, 3], EVERYTHING)
    assert found["steps_to_next_obs"].tolist() == [2, 2, 1]
    assert found[STATE][..., 0].tolist() == [[1001, 1001], [1002, 1003], [1003, 1004]]
    storage.set(range(2), make(of, slice(4, 6)))
    found = derive(storage, [0, 1, 2, 3], EVERYTHING)
    assert found["steps_to_next_obs"].tolist() == [2, 1, 2, 1]
    assert found[STATE][..., 0].tolist() == [
        [2001, 2001],
        [2001, 2002],
        [1003, 1003],
        [1003, 1004],
    ]
    assert found["next", "observation", "state"][:, 1, 0].tolist() == [2003, 2003, 1005, 1005]
    assert found["action"][..., 0].tolist() == [
        [-2001, -2002],
        [-2002, -2002],
        [-1003, -1004],
        [-1004, -1004],
    ]
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
