"""`OpenXExperienceReplay`: TorchRL's arguments over a converted dataset."""

from __future__ import annotations

import pickle
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from offline_data import OpenXExperienceReplay
from offline_data.testing.toy import toy_batch, write_toy

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")

LENGTHS = [3, 1, 4, 5]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, batch = tmp_path_factory.mktemp("root"), toy_batch(LENGTHS, text=True)
    for name in ("toy", "toy/train[:2]"):
        write_toy(root / "openx" / name / "0.1.0", [batch], dataset=f"openx:{name}@0.1.0")
    return root


def open_toy(root: Path, batch_size: int | None = None, **options: Any) -> Any:
    return OpenXExperienceReplay("toy", batch_size, root=root, streaming=False, **options)


def test_slices(root: Path) -> None:
    batch = open_toy(root, 8, num_slices=2).sample()
    episodes = batch["episode"].reshape(2, 4)
    assert (episodes == episodes[:, :1]).all()
    assert batch["next", "truncated"].reshape(2, 4)[:, -1].all()
    assert isinstance(batch["observation", "mission"][0], str)
    assert len(open_toy(root, 12, slice_len=6, strict_length=False).sample()) < 12


def test_an_epoch_of_slices_in_order(root: Path) -> None:
    ds = open_toy(root, 3, slice_len=3, replacement=False, shuffle=False)
    assert [int(batch["episode"][0]) for batch in ds] == [0, 2, 3]


def test_without_a_batch_size_whole_episodes_come(root: Path) -> None:
    batches = list(open_toy(root, shuffle=False))
    assert [len(batch) for batch in batches] == LENGTHS
    assert torch.cat([batch["index"] for batch in batches]).tolist() == list(range(13))
    pairs = list(open_toy(root, num_slices=2))
    assert sorted(int(e) for batch in pairs for e in batch["episode"].unique()) == [0, 1, 2, 3]
    assert [batch["episode"].unique().numel() for batch in pairs] == [2, 2]
    slices = list(open_toy(root, slice_len=3))
    assert sorted(int(batch["episode"][0]) for batch in slices) == [0, 2, 3]
    assert all(len(batch) == 3 for batch in slices)


def test_transitions(root: Path) -> None:
    assert len(open_toy(root, 5).sample()) == 5
    seen = [batch["index"] for batch in open_toy(root, 5, replacement=False)]
    assert sorted(torch.cat(seen).tolist()) == list(range(13))
    seen = [batch["index"] for batch in open_toy(root, 5, shuffle=False)]
    assert torch.cat(seen).tolist() == list(range(13))


def test_a_split_is_part_of_the_id(root: Path) -> None:
    ds = open_toy(root, 5, split="train[:2]")
    assert ds.manifest.id == "openx:toy/train[:2]@0.1.0"
    assert (ds.dataset_id, ds.root) == ("toy", root)


@pytest.mark.parametrize(
    ("options", "streams"),
    [
        ({}, True),
        ({"download": False}, True),
        ({"download": True}, False),
        ({"streaming": False}, False),
    ],
)
def test_it_streams_where_torchrl_does(
    root: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], streams: bool
) -> None:
    asked: list[Any] = []

    def stream(*positional: Any, **named: Any) -> str:
        asked.append((positional, named))
        return "stream"

    module = SimpleNamespace(StreamingDataset=stream)
    monkeypatch.setitem(sys.modules, "offline_data.buffers.streaming", module)
    found: Any = OpenXExperienceReplay("toy", 8, num_slices=2, root=root, **options)
    if streams:
        ((positional, named),) = asked
        assert (found, positional) == ("stream", ("openx:toy",))
        assert (named["batch_size"], named["num_slices"], named["root"]) == (8, 2, root)
    else:
        assert isinstance(found, OpenXExperienceReplay)
        copy = pickle.loads(pickle.dumps(found))  # noqa: S301 -- our own bytes
        assert len(copy.sample()) == 8
