"""Devices of batches; `meta`, on every machine, stands for another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import offline_data
from offline_data.base.errors import UsageError
from offline_data.rows.devices import as_device
from offline_data.rows.samplers import RandomSampler
from offline_data.testing.toy import toy_batch, write_toy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_toy(tmp_path / "toy", [toy_batch([3, 4, 2])])
    return tmp_path / "toy"


@pytest.mark.parametrize("options", [{}, {"prefetch": 2}, {"split_trajs": True}])
def test_a_dataset_moves_and_its_views_stay(path: Path, options: Any) -> None:
    def opened() -> Any:
        sampler = RandomSampler(seed=0)
        return offline_data.open_dataset(path, batch_size=2, sampler=sampler, **options)

    alone, ds = opened(), opened()
    view = ds.filter(lambda episodes: episodes["length"] > 2)
    for _ in range(2):
        alone.sample()
    ds.sample()
    with pytest.raises(UsageError, match="which torch"):
        ds.to("no such")
    assert ds.sample().device == torch.device("cpu")
    assert ds.to("meta") is ds
    batch = ds.sample()
    assert {batch.device, batch["action"].device} == {torch.device("meta")}
    assert {view.sample().device, alone.sample().device} == {torch.device("cpu")}
    assert ds.to("cpu").sample()["index"].equal(alone.sample()["index"])
    assert view.to("meta").sample().device == torch.device("meta")
    assert ds.sample().device == torch.device("cpu")


def test_cuda_is_the_current_device_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert as_device("cuda") == torch.device("cuda", 1)
    assert as_device("cuda:0") == torch.device("cuda", 0)
    assert as_device(None) == as_device("cpu") == torch.device("cpu")
    with pytest.raises(UsageError, match="device is 'cuda:2'"):
        as_device("cuda:2")
