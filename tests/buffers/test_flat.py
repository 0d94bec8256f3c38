"""The flat form of TED: nothing is lost, TorchRL writes the same, and each reads the other's."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from offline_data.buffers.dataset import Dataset
from offline_data.torchrl.ted_flat import Flat2TED, TED2Flat
from tests.refusals import Refusals
from tests.same import assert_same

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs

REFUSALS = Refusals(Path(__file__).with_name("flat.json"))


def ted(lengths: Sequence[int], first: int = 1) -> TensorDict:
    """Transitions whose observation at time `t` of episode `e` is `1000·e + t + 1`."""
    codes = [1000.0 * (first + e) + torch.arange(n + 1) + 1 for e, n in enumerate(lengths)]
    before = torch.cat([code[:-1] for code in codes])[:, None]
    after = torch.cat([code[1:] for code in codes])[:, None]
    done = torch.cat([torch.arange(n) == n - 1 for n in lengths])[:, None]
    flags = {"done": done, "terminated": done.clone(), "truncated": torch.zeros_like(done)}
    return TensorDict(
        {
            "observation": {"state": before * torch.ones(2), "code": after.long() - 1},
            "action": -before,
            "index": torch.arange(len(done)),
            **{name: torch.zeros_like(done) for name in flags},
            "next": {
                "observation": {"state": after * torch.ones(2), "code": after.long()},
                "reward": after / 10,
                **flags,
            },
        },
        [len(done)],
    )


def test_a_dataset_goes_there_and_back(ds: Dataset, tmp_path: Path) -> None:
    data = ds[:]
    keys: dict[str, Any] = {"reward_keys": ("reward", "bonus")}
    flat = TED2Flat(**keys)(data, tmp_path / "flat")
    assert len(flat["observation", "state"]) == len(data) + 5
    assert len(flat["reward"]) == len(data)
    for one in (flat, TensorDict.load_memmap(tmp_path / "flat")):
        assert_same(Flat2TED(**keys)(one), data)
    out = data.clone().zero_()
    assert Flat2TED(**keys)(flat, out=out) is out
    assert_same(out, data)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    cursor=st.integers(0, 25),
    is_full=st.booleans(),
)
def test_any_ring(lengths: list[int], cursor: int, is_full: bool) -> None:
    data = ted(lengths)
    shift = cursor % (len(data) + 1) if is_full else len(data)
    hook = TED2Flat()
    if is_full:  # rows in time: shift … N-1, 0 … shift-1
        data = torch.cat([data[len(data) - shift :], data[: len(data) - shift]])
        hook.shift, hook.is_full = shift, True
    flat = hook(data)
    states = flat["observation", "state"][:, 0].tolist()
    assert states == [1000 * (e + 1) + t + 1 for e, n in enumerate(lengths) for t in range(n + 1)]
    assert_same(Flat2TED()(flat), data)


def test_rows_behind_the_cursor_need_not_fit() -> None:
    data = ted([3, 2, 4])
    data["next", "observation", "state"][5:] = 7
    back = Flat2TED()(flatten(TED2Flat, data, 5, is_full=False))
    assert_same(back[:5], data[:5])
    assert (back["next", "observation", "state"][5:8] == 0).all()


def test_the_check_can_be_left_out_and_nan_is_nan() -> None:
    data = ted([3, 2])
    data["observation", "state"][1] = torch.nan
    data["next", "observation", "state"][0] = torch.nan
    TED2Flat()(data)
    data["next", "observation", "state"][0] = 5
    assert TED2Flat(check=False)(data)["observation", "state"][1].isnan().all()
    hook = pickle.loads(pickle.dumps(TED2Flat(reward_keys=("reward", "cost"))))  # noqa: S301
    assert vars(hook) == vars(TED2Flat(reward_keys=("reward", "cost")))


def changed(data: TensorDict, key: Any, rows: Any, value: Any) -> TensorDict:
    data[key][rows] = value
    return data


@REFUSALS.cases
def test_refusals(kind: str, text: str) -> None:
    names = {"ted": ted, "flatten": flatten, "changed": changed, "nan": torch.nan}
    hooks = {"TED2Flat": TED2Flat, "Flat2TED": Flat2TED}
    REFUSALS.check(kind, text, lambda: eval(text, {**names, **hooks}))  # noqa: S307


def flatten(kind: Any, data: TensorDict, shift: int, *, is_full: bool, **keys: Any) -> Any:
    hook = kind(**keys)
    hook.shift, hook.is_full = shift, is_full
    return hook(data)


def filled_in_part() -> TensorDict:
    """The newest row, 6, is in the middle of an episode; what is behind it was never written."""
    data = ted([3, 2, 4])
    data[7:] = data[7:].apply(torch.zeros_like)
    return data


def columns(*shape: int) -> Any:
    some: Any = torch.stack([ted([2, 4], 1), ted([5, 1], 3), ted([6], 5), ted([1, 5], 6)], 1)
    return some.reshape(*shape)


FLAGS = ("done", "terminated", "truncated")
NAMES: dict[str, Any] = {
    "done_keys": (*FLAGS, *[("agents", name) for name in FLAGS]),
    "reward_keys": ("reward", ("agents", "reward")),
    "shift_key": "cursor",
    "is_full_key": "full",
}


def two_agents() -> TensorDict:
    data = ted([3, 2])
    both: Any = torch.stack([data, data], 1)  # [5, 2]
    data["agents"] = both.select("action", *FLAGS)
    data["agents", "observation"] = both["observation", "state"]
    data["next", "agents"] = both["next"].select("reward", *FLAGS)
    data["next", "agents", "observation"] = both["next", "observation", "state"]
    return data


RINGS: dict[str, tuple[Callable[[], TensorDict], int, bool]] = {
    "not full": (lambda: ted([3, 2, 4]), 9, False),
    "full": (lambda: ted([3, 2, 4]), 9, True),
    "cut between episodes": (lambda: ted([3, 2, 4]), 4, True),
    "cut in an episode": (lambda: ted([3, 2, 4]), 1, True),
    "filled in part": (filled_in_part, 7, False),
    "columns": (lambda: columns(6, 2, 2), 6, True),
    "columns, not full": (lambda: columns(6, 4), 6, False),
    "columns, cut": (lambda: columns(6, 2, 2), 2, True),
    "two agents": (two_agents, 2, True),
}


@pytest.mark.parametrize("name", RINGS)
def test_the_flat_form_is_torchrls(name: str) -> None:
    make, shift, is_full = RINGS[name]
    data, keys = make(), NAMES if name == "two agents" else {}
    mine = flatten(TED2Flat, data, shift, is_full=is_full, **keys)
    other = flatten(theirs.TED2Flat, data, shift, is_full=is_full, **keys)
    assert_same(mine, other)
    for key in (keys.get("shift_key", "shift"), keys.get("is_full_key", "is_full")):
        assert mine.get_non_tensor(key) == other.get_non_tensor(key)
    assert mine.get_non_tensor("_storage_shape") == other.get_non_tensor("_storage_shape")
    assert_same(Flat2TED(**keys)(other), data)
    if name == "cut between episodes":
        assert_same(theirs.Flat2TED()(mine), data)


def test_rewards_of_agents_are_not_made_up_as_torchrl_makes_them_up() -> None:
    flat = flatten(theirs.TED2Flat, two_agents(), 2, is_full=True, **NAMES)
    assert (theirs.Flat2TED(**NAMES)(flat)["agents", "reward"] == 0).all()  # nor were there any


def test_the_last_next_is_kept_where_torchrl_zeroes_it() -> None:
    data = ted([3, 2, 4])
    flat = flatten(theirs.TED2Flat, data, 9, is_full=False)
    lost = theirs.Flat2TED()(flat)["next", "observation", "state"]
    assert lost[-1].tolist() == [0, 0]
    assert Flat2TED()(flat)["next", "observation", "state"][-1].tolist() == [3005, 3005]


def test_a_cursor_at_zero_works_where_torchrl_fails() -> None:
    data = ted([3, 2, 4])
    with pytest.raises(RuntimeError, match=r"mismatch|must match"):
        flatten(theirs.TED2Flat, data, 0, is_full=True)
    flat = flatten(TED2Flat, data, 0, is_full=True)
    assert flat["observation", "code"].tolist()[:5] == [[1001], [1002], [1003], [1004], [2001]]
    assert_same(Flat2TED()(flat), data)


def test_as_hooks_of_torchrls_buffer(tmp_path: Path) -> None:
    data = ted([3, 2, 4]).exclude("index")
    rb = theirs.ReplayBuffer(storage=theirs.LazyTensorStorage(9), batch_size=4)
    rb.register_save_hook(TED2Flat())
    rb.extend(ted([5]).exclude("index"))
    rb.extend(data)  # rows 5 to 8, then 0 to 4: a full ring
    rb.dumps(tmp_path)
    stored = TensorDict.load_memmap(tmp_path / "storage")
    assert stored["observation", "code"].flatten().tolist() == [
        *[1001, 1002, 1003, 1004, 2001, 2002, 2003],
        *[3001, 3002, 3003, 3004, 3005],
    ]
    again = theirs.ReplayBuffer(storage=theirs.LazyTensorStorage(9), batch_size=4)
    again.register_load_hook(Flat2TED())
    again.loads(tmp_path)
    assert_same(again[:], rb[:])
