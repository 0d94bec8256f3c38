from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.rows.gather import assemble as module
from offline_data.rows.gather.assemble import assemble, tree_of

SLOTS = {("a",): 2, ("n", "b"): 0, ("n", "m", "c"): 1, ("z",): 3}
LEAVES = [torch.arange(4) + 10 * slot for slot in range(4)]


@pytest.mark.parametrize("way", [module._with_checks, module._without_checks])
def test_leaves_land_under_their_names(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.level is module._without_checks  # the fast way works with this tensordict
    monkeypatch.setattr(module, "level", way)
    found = assemble(tree_of(SLOTS), LEAVES, torch.Size((4,)), torch.device("cpu"))
    assert type(found) is TensorDict
    assert found["n", "m"].batch_size == (4,)
    assert all(found[key] is LEAVES[slot] for key, slot in SLOTS.items())
    assert found[1:3]["n", "b"].tolist() == [1, 2]
    assert found.clone().set("new", torch.ones(4))["new"].sum() == 4
    assert TensorDict.stack([found, found]).batch_size == (2, 4)
    assert found.select("a", ("n", "b")).to_dict()["n"]["b"].tolist() == [0, 1, 2, 3]
    assert not found.is_locked
    assert found.names is None or set(found.names) == {None}


def _raise(*_: Any) -> Any:
    raise AttributeError("gone")


@pytest.mark.parametrize("broken", [_raise, lambda *_: None, lambda *_: TensorDict({}, [])])
def test_private_names_that_changed_are_not_used(
    broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_without_checks", broken)
    assert module._fastest() is module._with_checks
