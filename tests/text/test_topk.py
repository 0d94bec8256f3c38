"""Selection of dialogs beside TorchRL's class on the same rows, and by hand."""

from __future__ import annotations

import inspect
import logging
import runpy
import sys
from itertools import chain
from typing import Any

import pytest
import torch
from tensordict import TensorDict, lazy_stack

import offline_data
from offline_data import LazyTensorStorage, ListStorage, ReplayBuffer, TopKRewardSelector
from offline_data.text import topk

GENERATOR = torch.Generator().manual_seed(0)


def dialog(prompt: str, score: float, tokens: int) -> TensorDict:
    rewards = score + torch.randn(tokens, 1, generator=GENERATOR)
    return TensorDict(
        {"text": prompt, "next": {"reward": rewards, "done": torch.ones(1, 1, dtype=torch.bool)}}
    )


def dialogs(tokens: int | None = None) -> list[TensorDict]:
    """Return dialogs of three prompts in turn; of one, all have equal rewards."""
    found = []
    for n in range(36):
        scores = torch.randint(10, (2,), generator=GENERATOR)
        found.append(dialog(f"prompt {n % 3}", float(scores[0]), tokens or 2 + int(scores[1])))
        if n % 3 == 2:
            found[-1]["next", "reward"].fill_(4)
    return found


def rewards_of(rows: Any) -> list[list[float]]:
    return [row["next", "reward"].flatten().tolist() for row in rows]


def torchrl_rewards(transform: Any, rows: list[TensorDict], at_once: int) -> list[list[float]]:
    """Write rows with TorchRL's buffer; returns the rewards of what it keeps."""
    data = pytest.importorskip("torchrl.data")
    buffer = data.ReplayBuffer(storage=data.LazyStackStorage(100), batch_size=2)
    buffer.append_transform(transform)
    for begin in range(0, len(rows), at_once):
        buffer.extend(lazy_stack(rows[begin : begin + at_once]))
    return rewards_of(buffer[:].unbind(0)) if len(buffer) else []


@pytest.mark.parametrize(
    "options",
    [
        {"total_dialog_turns": 5, "topk_size": 3},
        {"total_dialog_turns": 4, "topk_size": 1},
        {"total_dialog_turns": 1, "topk_size": 1},
        {"total_dialog_turns": 12, "topk_size": 12},
    ],
    ids=lambda o: "of".join(str(v) for v in reversed(o.values())),
)
@pytest.mark.parametrize("at_once", [1, 7])
def test_beside_torchrl(options: Any, at_once: int) -> None:
    theirs = pytest.importorskip("torchrl.data").TopKRewardSelector
    rows = dialogs()
    keys: Any = {"prompt_key": "text", "verbose": False}
    expected = torchrl_rewards(theirs(**options, **keys), rows, at_once)
    assert bool(expected) == (options["total_dialog_turns"] > 1)
    assert torchrl_rewards(TopKRewardSelector(**options, **keys), rows, at_once) == expected
    buffer = ReplayBuffer(storage=ListStorage(100), collate_fn=list)
    buffer.append_transform(TopKRewardSelector(**options, **keys))
    for begin in range(0, len(rows), at_once):
        buffer.extend(lazy_stack(rows[begin : begin + at_once]))
    assert rewards_of(buffer[:] if len(buffer) else []) == expected


def test_keys_and_a_storage_of_tensors() -> None:
    theirs = pytest.importorskip("torchrl.data").TopKRewardSelector
    data = TensorDict(
        {
            "reward": torch.randn(20, 6, 1, generator=GENERATOR),
            "ended": torch.ones(20, 1, dtype=torch.bool),
        },
        [20],
    )
    data["question", "words"] = "why?"
    keys: Any = ("question", "words"), "reward", "ended", False
    made = theirs(5, 2, *keys).inv(lazy_stack(list(data)))  # of a dense one it takes one dialog
    buffer = ReplayBuffer(storage=LazyTensorStorage(100))
    buffer.append_transform(TopKRewardSelector(5, 2, *keys))
    assert len(buffer.extend(data)) == len(made) > 4
    assert torch.equal(buffer[:]["reward"], made["reward"])
    assert len(TopKRewardSelector(5, 2, *keys).inv(data.reshape(4, 5))) == len(made)


def test_dialogs_of_several_rows() -> None:
    """The mean is over all rewards of a dialog, which stays whole; here computed by hand."""
    lengths, prompts = [3, 1, 4, 2, 2, 5], "abaaba"
    means = [2.0, 9.0, 1.0, 3.0, 8.0, 7.0]
    rows = TensorDict(
        {
            "step": torch.arange(sum(lengths)),
            "next": {
                "reward": torch.tensor(means).repeat_interleave(torch.tensor(lengths))[:, None],
                "done": torch.cat([torch.arange(n)[:, None] == n - 1 for n in lengths]),
            },
        },
        [sum(lengths)],
    )
    names = list(chain(*([name] * n for name, n in zip(prompts, lengths, strict=True))))
    stacked = lazy_stack(
        [row.set_non_tensor("text", n) for row, n in zip(rows, names, strict=True)]
    )
    found = TopKRewardSelector(4, 2, "text", verbose=False).inv(stacked)
    # Prompt a has the scores 2, 1, 3, 7, their median is 2 (the lower one): 7, then 3.
    assert found["step"].tolist() == [12, 13, 14, 15, 16, 8, 9]


def test_waiting_dialogs_are_not_written(caplog: pytest.LogCaptureFixture) -> None:
    selector = TopKRewardSelector(2, 1, "text")
    buffer = ReplayBuffer(storage=ListStorage(10), collate_fn=list)
    buffer.append_transform(selector)
    assert buffer.extend(lazy_stack([dialog("p", 1, 3)])).tolist() == []
    assert (len(buffer), len(selector.queues["p"])) == (0, 1)
    with caplog.at_level(logging.INFO, "offline_data"):
        buffer.extend(lazy_stack([dialog("p", 50, 3)]))
    assert len(buffer) == 1
    assert "1 of 2 dialogs are written; prompt: p" in caplog.text


def test_without_torchrl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrl", None)
    monkeypatch.delitem(sys.modules, "offline_data.buffers.bridges.torchrl", raising=False)
    kind = runpy.run_path(str(topk.__file__))["TopKRewardSelector"]
    assert not any("torchrl" in base.__module__ for base in kind.__mro__)
    buffer = ReplayBuffer(storage=ListStorage(10), collate_fn=list)
    buffer.append_transform(kind(2, 1, "text", verbose=False))
    rows = [dialog("p", 1, 3), dialog("p", 50, 3)]
    buffer.extend(lazy_stack(rows))
    assert rewards_of(buffer[:]) == rewards_of(rows[1:])
    assert len(buffer.sample(1)) == 1


def test_arguments_are_torchrls() -> None:
    theirs = inspect.signature(pytest.importorskip("torchrl.data").TopKRewardSelector)
    ours = inspect.signature(offline_data.TopKRewardSelector)
    assert list(ours.parameters) == list(theirs.parameters)
    assert [one.default for one in ours.parameters.values()] == [
        one.default for one in theirs.parameters.values()
    ]
