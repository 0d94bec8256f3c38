"""The flat form of TED: what TorchRL writes is what we write, and each reads the other's."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.bridges.ted_flat import Flat2TED, TED2Flat

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs


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


def assert_same(found: Any, want: Any) -> None:
    assert set(found.keys(True, True)) == set(want.keys(True, True))
    for key in want.keys(True, True):
        assert found[key].dtype == want[key].dtype, key
        assert found[key].shape == want[key].shape, key
        assert (found[key] == want[key]).all(), (key, found[key], want[key])


def flatten(kind: Any, data: TensorDict, *, shift: int, is_full: bool, **keys: Any) -> Any:
    hook = kind(**keys)
    hook.shift, hook.is_full = shift, is_full
    return hook(data)


RINGS = [(9, False), (9, True), (4, True), (1, True)]


@pytest.mark.parametrize(("shift", "is_full"), RINGS)
def test_the_flat_form_is_torchrls(shift: int, is_full: bool) -> None:
    data = ted([3, 2, 4])
    mine = flatten(TED2Flat, data, shift=shift, is_full=is_full)
    other = flatten(theirs.TED2Flat, data, shift=shift, is_full=is_full)
    assert_same(mine, other)
    for key in ("shift", "is_full", "_storage_shape"):
        assert mine.get_non_tensor(key) == other.get_non_tensor(key)
    assert_same(Flat2TED()(other), data)
    if shift == 4:
        assert_same(theirs.Flat2TED()(mine), data)


def test_a_ring_that_is_filled_in_part() -> None:
    """The newest row, 6, is in the middle of an episode; what is behind it was never written."""
    data = ted([3, 2, 4])
    data[7:] = data[7:].apply(torch.zeros_like)
    flat = flatten(TED2Flat, data, shift=7, is_full=False)
    assert_same(flat, flatten(theirs.TED2Flat, data, shift=7, is_full=False))
    back = Flat2TED()(flat)
    assert_same(back, data)
    assert back["next", "observation", "code"][6] == 3003


def test_the_last_next_is_kept_where_torchrl_zeroes_it() -> None:
    data = ted([3, 2, 4])
    flat = flatten(theirs.TED2Flat, data, shift=9, is_full=False)
    lost = theirs.Flat2TED()(flat)["next", "observation", "state"]
    assert lost[-1].tolist() == [0, 0]
    assert Flat2TED()(flat)["next", "observation", "state"][-1].tolist() == [3005, 3005]


def test_a_cursor_at_zero_works_where_torchrl_fails() -> None:
    data = ted([3, 2, 4])
    with pytest.raises(RuntimeError, match=r"mismatch|must match"):
        flatten(theirs.TED2Flat, data, shift=0, is_full=True)
    flat = flatten(TED2Flat, data, shift=0, is_full=True)
    assert flat["observation", "code"].tolist()[:5] == [[1001], [1002], [1003], [1004], [2001]]
    assert_same(Flat2TED()(flat), data)


@pytest.mark.parametrize(("shift", "is_full"), [(6, True), (6, False), (2, True)])
def test_several_columns(shift: int, is_full: bool) -> None:
    columns = [ted([2, 4], 1), ted([5, 1], 3), ted([6], 5), ted([1, 5], 6)]
    data: Any = torch.stack(columns, 1)
    if is_full:
        data = data.reshape(6, 2, 2)
    mine = flatten(TED2Flat, data, shift=shift, is_full=is_full)
    assert_same(mine, flatten(theirs.TED2Flat, data, shift=shift, is_full=is_full))
    assert_same(Flat2TED()(mine), data)


def test_names_of_nested_environments() -> None:
    data, names = ted([3, 2]), ("done", "terminated", "truncated")
    both: Any = torch.stack([data, data], 1)  # [5, 2]: two agents
    data["agents"] = both.select("action", *names)
    data["agents", "observation"] = both["observation", "state"]
    data["next", "agents"] = both["next"].select("reward", *names)
    data["next", "agents", "observation"] = both["next", "observation", "state"]
    keys: dict[str, Any] = {
        "done_keys": (*names, *[("agents", name) for name in names]),
        "reward_keys": ("reward", ("agents", "reward")),
        "shift_key": "cursor",
        "is_full_key": "full",
    }
    mine = flatten(TED2Flat, data, shift=2, is_full=True, **keys)
    other = flatten(theirs.TED2Flat, data, shift=2, is_full=True, **keys)
    assert_same(mine, other)
    assert_same(Flat2TED(**keys)(other), data)
    theirs_back = theirs.Flat2TED(**keys)(other)
    assert ("agents", "reward") in theirs_back.keys(True)  # zeros that were never there
    assert (theirs_back["agents", "reward"] == 0).all()


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
