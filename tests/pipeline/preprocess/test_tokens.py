"""Datasets of tokens go through steps and functions as those of actions do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import offline_data
from offline_data.base.errors import StepError
from offline_data.episode import EpisodeBatch
from offline_data.episode.fields import REWARD, TERMINATED, TRUNCATED
from offline_data.testing.toy import write_tokens, write_toy

DOCUMENTS = [[3, 9, 1, 4], [5], [7, 7, 2]]


def halved(row: Any) -> Any:
    row["input_ids"] = row["input_ids"] // 2
    return row


def scored(row: Any) -> Any:
    return {("next", "reward"): row["next", "reward"] + 1}


def made(path: Path, folder: Path, fn: Any) -> Any:
    ds = offline_data.open_dataset(path)
    ds.preprocess(fn, name="made", root=folder, num_workers=1, progress=False)
    return offline_data.load_dataset("local:made", root=folder, download=False)


def documents(ds: Any) -> list[list[int]]:
    return [ds[ds.episodes.rows(n)]["input_ids"].tolist() for n in range(len(ds.episodes))]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return write_tokens(tmp_path / "packed", DOCUMENTS, prompts=[2, 0, 1])


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Three padded pairs of four tokens."""
    ended = np.ones((3, 1), bool)
    steps: dict[tuple[str, ...], Any] = {
        (side, leaf): np.arange(12).reshape(3, 4).astype(dtype) + n
        for n, side in enumerate(("chosen_data", "rejected_data"))
        for leaf, dtype in (("input_ids", "int32"), ("attention_mask", "int8"))
    }
    steps |= {REWARD: np.zeros((3, 1), np.float32), TERMINATED: ended, TRUNCATED: ~ended}
    lengths = np.ones(3, np.int64)
    write_toy(tmp_path / "pairs", [EpisodeBatch(lengths, steps, {}, np.ones(3, bool))])
    return tmp_path / "pairs"


def test_a_function_of_tokens(packed: Path, tmp_path: Path) -> None:
    ds = made(packed, tmp_path / "root", halved)
    assert documents(ds) == [[token // 2 for token in one] for one in DOCUMENTS]
    assert ds[:]["completion_mask"].tolist() == [False, False, True, True, True, False, True, True]


def test_steps_that_choose_and_drop(packed: Path, tmp_path: Path) -> None:
    ds = made(packed, tmp_path / "root", "filter:length >= 3")
    assert documents(ds) == [DOCUMENTS[0], DOCUMENTS[2]]
    ds = made(packed, tmp_path / "other", "select:input_ids")
    assert (documents(ds), ds[:].get("completion_mask", None)) == (DOCUMENTS, None)
    ds = made(packed, tmp_path / "flags", "select:next/reward")
    assert documents(ds) == DOCUMENTS
    with pytest.raises(StepError, match="would leave no action"):
        made(packed, tmp_path / "none", "exclude:input_ids")


def test_what_a_function_leaves_out_of_pairs_is_theirs(pairs: Path, tmp_path: Path) -> None:
    before = offline_data.open_dataset(pairs)[:]
    after = made(pairs, tmp_path / "root", scored)[:]
    for side in ("chosen_data", "rejected_data"):
        assert torch.equal(before[side, "input_ids"], after[side, "input_ids"])
    assert after["next", "reward"].tolist() == [[1.0]] * 3
