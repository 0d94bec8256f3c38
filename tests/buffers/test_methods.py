"""What a dataset says of itself, and what its methods share with functions and commands."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import offline_data
from offline_data import Dataset
from offline_data.episode.fields import Key
from offline_data.testing.toy import toy_batch, write_toy


@pytest.fixture
def ds(toys: Callable[..., Path]) -> Dataset:
    return Dataset(toys([3, 1, 2]), 4)


def test_it_shows_id_steps_and_features(ds: Dataset) -> None:
    assert repr(ds).splitlines() == [
        f"Dataset local:toy@1 in {ds.data_path}",
        "6 steps in 3 episodes",
        "features: observation/state, info/code, action, next/reward and 2 more",
    ]
    view = ds.subset([0, 1, 5])
    assert repr(view).splitlines()[:2] == [
        f"DatasetView local:toy@1 in {ds.data_path}",
        "3 steps in 2 episodes",
    ]
    some = Dataset(ds.data_path, keys=["action"], split_trajs=True)
    assert repr(some).splitlines()[1:] == ["6 steps in 3 episodes", "features: action"]


def test_a_line_of_features_has_80_columns(tmp_path: Path) -> None:
    batch = toy_batch([2])
    more: dict[Key, Any] = {("info", f"feature {n}"): batch.steps["action",] for n in range(99)}
    write_toy(
        tmp_path / "toy", [replace(batch, steps={**batch.steps, **more})], dataset="minari:toy@1"
    )
    first, _, last = repr(Dataset(tmp_path / "toy")).splitlines()
    assert first == "Dataset minari:toy@1"
    assert len(last) <= 80
    assert last.endswith(" more")
    shown, others = last.removeprefix("features: ").removesuffix(" more").rsplit(" and ", 1)
    assert len(shown.split(", ")) + int(others) == 99 + 6


def test_torchrls_name_is_the_same_class(ds: Dataset) -> None:
    assert offline_data.BaseDatasetExperienceReplay is Dataset

    class Mine(offline_data.BaseDatasetExperienceReplay):
        pass

    mine = Mine(ds.data_path, 2)
    assert isinstance(mine, Dataset)
    assert repr(mine).startswith("Mine local:toy@1")
    copied = pickle.loads(pickle.dumps(ds))  # noqa: S301
    assert type(copied) is Dataset
    assert b"BaseDatasetExperienceReplay" not in pickle.dumps(ds)
    assert (copied["action"] == ds["action"]).all()
