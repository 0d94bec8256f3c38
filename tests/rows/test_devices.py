"""Devices of batches; `meta`, on every machine, stands for another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import offline_data
from offline_data.base.errors import UsageError
from offline_data.rows.samplers import RandomSampler
from offline_data.testing.toy import toy_batch, write_toy
from offline_data.torchrl.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from offline_data.torchrl.storages import TensorStorage as Tensors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_toy(tmp_path / "toy", [toy_batch([3, 4, 2])])
    return tmp_path / "toy"


@pytest.mark.parametrize("device", ["cuda:99", "no such", 99])
def test_a_device_that_is_not_there_is_named_at_once(path: Path, device: Any) -> None:
    with pytest.raises(UsageError, match=rf"device is .*{device}'?, which torch .* does not have"):
        offline_data.open_dataset(path, device=device)
    ds = offline_data.open_dataset(path)
    for make in (
        ds.to,
        lambda device: LazyTensorStorage(3, device=device),
        lambda device: LazyMemmapStorage(3, device=device),
        lambda device: ListStorage(3, device=device),
        lambda device: Tensors(torch.zeros(3), device=device),
    ):
        with pytest.raises(UsageError, match="which torch"):
            make(device)
    assert ds.sample(2).device == torch.device("cpu")


@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"split_trajs": True}])
def test_a_dataset_moves_and_its_views_stay(path: Path, options: Any) -> None:
    def opened() -> Any:
        sampler = RandomSampler(seed=0)
        return offline_data.open_dataset(path, batch_size=2, sampler=sampler, **options)

    alone, ds = opened(), opened()
    view = ds.filter(lambda episodes: episodes["length"] > 2)
    for buffer in (alone, ds):
        buffer.sample()
    assert ds.to("meta") is ds
    batch = ds.sample()
    assert {batch.device, batch["action"].device} == {torch.device("meta")}
    assert {view.sample().device, alone.sample().device} == {torch.device("cpu")}
    assert ds.to("cpu").sample()["index"].equal(alone.sample()["index"])
    assert view.to("meta").sample().device == torch.device("meta")
    assert ds.sample().device == torch.device("cpu")
