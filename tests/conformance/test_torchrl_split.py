"""`split_trajs` gives what TorchRL's `split_trajectories` gives, where that is right."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.torchrl.trajectories import split_trajs
from tests.same import assert_same

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    from torchrl.collectors.utils import split_trajectories


def row(lengths: list[int], *, total: int | None = None) -> TensorDict:
    """Rows numbered from 1 on; the last trajectory may go on behind them."""
    done = torch.cat([torch.arange(n) == n - 1 for n in lengths])[:total, None]
    ids = torch.cat([torch.full((n,), 10 + 3 * e) for e, n in enumerate(lengths)])[:total]
    count = len(done)
    number = torch.arange(1.0, count + 1)
    return TensorDict(
        {
            "observation": number[:, None] * torch.ones(2),
            "episode": ids,
            "next": {"reward": number / 10, "done": done, "info": {"ended": done.clone()}},
        },
        [count],
    )


DATA = {
    "three": row([3, 1, 4]),
    "one": row([5]),
    "one, unfinished": row([5], total=4),
    "last unfinished": row([3, 4], total=5),
    "all of one row": row([1, 1, 1]),
    "environments": torch.stack([row([3, 2]), row([5]), row([1, 6], total=5)]),
    "environments, unfinished": torch.stack([row([2, 4], total=5), row([4, 3], total=5)]),
}


@pytest.mark.parametrize("name", DATA)
def test_by_flags(name: str) -> None:
    data = DATA[name]
    before = data.clone()
    assert_same(split_trajs(data), split_trajectories(data))
    assert_same(split_trajs(data, done_key="done"), split_trajectories(data, done_key="done"))
    assert_same(data, before)
    nested = ("info", "ended")
    assert_same(split_trajs(data, done_key=nested), split_trajs(data))


@pytest.mark.parametrize("name", ["three", "one", "last unfinished"])
def test_by_numbers(name: str) -> None:
    data = DATA[name]
    want = split_trajectories(data, trajectory_key="episode")
    assert_same(split_trajs(data, trajectory_key="episode"), want)


def test_where_numbers_and_mask_are() -> None:
    data = DATA["three"].clone()
    assert_same(split_trajs(data, prefix="made"), split_trajectories(data, prefix="made"))
    data["collector", "traj_ids"] = data["episode"]
    data["next", "done"].zero_()
    found = split_trajs(data)
    assert_same(found, split_trajectories(data))
    assert found["collector", "mask"].sum(1).tolist() == [3, 1, 4]
    key = ("collector", "traj_ids")
    want = split_trajectories(data, trajectory_key=key)
    assert_same(split_trajs(data, trajectory_key=key), want)


def test_a_number_that_comes_back_is_another_trajectory() -> None:
    data = TensorDict({"of": torch.tensor([1, 1, 2, 1]), "t": torch.arange(1, 5)}, [4])
    with pytest.raises(RuntimeError):
        split_trajectories(data, trajectory_key="of")
    found = split_trajs(data, trajectory_key="of")
    assert found["t"].tolist() == [[1, 2], [3, 0], [4, 0]]


@pytest.mark.parametrize("layout", [True, torch.strided, torch.jagged])
def test_nested(layout: Any) -> None:
    data = DATA["three"]
    found = split_trajs(data, as_nested=layout)
    want = split_trajectories(data, as_nested=True)
    assert (found.batch_size, want.batch_size) == ((3,), (3, -1))
    for key in want.keys(True, True):
        assert found[key].layout == (torch.strided if layout is True else layout)
        pairs = zip(found[key].unbind(), want[key].unbind(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs), key
    assert split_trajs(DATA["one"], as_nested=layout)["episode"].is_nested  # not in TorchRL
