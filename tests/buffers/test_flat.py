from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from offline_data.buffers.bridges.ted_flat import Flat2TED, TED2Flat
from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.errors import UsageError


def assert_same(found: Any, want: Any) -> None:
    assert set(found.keys(True, True)) == set(want.keys(True, True))
    for key in want.keys(True, True):
        assert found[key].dtype == want[key].dtype, key
        assert torch.equal(found[key], want[key]), key


def with_root_flags(data: TensorDict) -> TensorDict:
    for name in ("done", "terminated", "truncated"):
        data[name] = torch.zeros_like(data["next", name])
    return data


def test_a_dataset_goes_there_and_back(ds: BaseDatasetExperienceReplay, tmp_path: Path) -> None:
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


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    cursor=st.integers(0, 25),
    is_full=st.booleans(),
)
def test_any_ring(
    steps: Callable[..., TensorDict], lengths: list[int], cursor: int, is_full: bool
) -> None:
    data = with_root_flags(steps(lengths))
    shift = cursor % (len(data) + 1) if is_full else len(data)
    hook = TED2Flat()
    if is_full:  # rows in time: shift … N-1, 0 … shift-1
        data = torch.cat([data[len(data) - shift :], data[: len(data) - shift]])
        hook.shift, hook.is_full = shift, True
    flat = hook(data)
    states = flat["observation", "state"][:, 0].tolist()
    assert states == [1000 * (e + 1) + t + 1 for e, n in enumerate(lengths) for t in range(n + 1)]
    assert_same(Flat2TED()(flat), data)


def test_rows_behind_the_cursor_need_not_fit(steps: Callable[..., TensorDict]) -> None:
    data = with_root_flags(steps([3, 2, 4]))
    data["next", "observation", "state"][5:] = 7
    hook = TED2Flat()
    hook.shift, hook.is_full = 5, False
    back = Flat2TED()(hook(data))
    assert_same(back[:5], data[:5])
    assert (back["next", "observation", "state"][5:8] == 0).all()
    hook.is_full = True
    with pytest.raises(UsageError, match="Row 5 of next/observation/state"):
        hook(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data["next", "done"][2].fill_(False), "Row 2 of next/.* of the row after it"),
        (lambda data: data["next", "observation", "state"][0].add_(1), "Row 0 of next/observation"),
        (lambda data: data["truncated"][1].fill_(True), "root leaf truncated is not all zero"),
        (lambda data: data.set(("next", "bonus"), data["action"]), "no counterpart bonus"),
        (lambda data: data.del_(("next", "done")), "no leaf next/done"),
    ],
)
def test_what_would_be_lost_is_refused(
    steps: Callable[..., TensorDict], change: Callable[[TensorDict], Any], words: str
) -> None:
    data = with_root_flags(steps([3, 2]))
    change(data)
    with pytest.raises(UsageError, match=words):
        TED2Flat()(data)


def test_the_check_can_be_left_out_and_nan_is_nan(steps: Callable[..., TensorDict]) -> None:
    data = with_root_flags(steps([3, 2]))
    data["observation", "state"][1] = torch.nan
    data["next", "observation", "state"][0] = torch.nan
    TED2Flat()(data)
    data["next", "observation", "state"][0] = 5
    with pytest.raises(UsageError):
        TED2Flat()(data)
    assert TED2Flat(check=False)(data)["observation", "state"][1].isnan().all()


def test_what_does_not_fit_is_refused(steps: Callable[..., TensorDict]) -> None:
    hook = pickle.loads(pickle.dumps(TED2Flat(reward_keys=("reward", "cost"))))  # noqa: S301
    assert vars(hook) == vars(TED2Flat(reward_keys=("reward", "cost")))
    hook.shift = 9
    with pytest.raises(UsageError, match="shift is 9; expected 0 to 5"):
        hook(with_root_flags(steps([3, 2])))
    flat = TED2Flat()(with_root_flags(steps([3, 2])))
    flat["action"] = flat["action"][:4]
    with pytest.raises(UsageError, match="action has 4 rows; expected 5, or 7"):
        Flat2TED()(flat)
