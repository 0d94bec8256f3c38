"""Devices that a thread means by a name without a number."""

from __future__ import annotations

import pytest
import torch

from offline_data.base.errors import UsageError
from offline_data.rows.devices import as_device


def test_cuda_is_the_current_device_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert as_device("cuda") == torch.device("cuda", 1)
    assert as_device("cuda:0") == torch.device("cuda", 0)
    assert as_device(None) == as_device("cpu") == torch.device("cpu")
    with pytest.raises(UsageError, match="device is 'cuda:2'"):
        as_device("cuda:2")
