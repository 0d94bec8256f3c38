from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from offline_data.buffers.derived.statistics import Scale, scales_of
from offline_data.errors import UsageError
from offline_data.store.statistics import moments_of

module = import_module("offline_data.buffers.derived.statistics")


@pytest.mark.parametrize("items", [1, 30, 10_000])
def test_chunks_add_up_to_the_whole(
    grown: Any, sets: Any, episode: Any, monkeypatch: pytest.MonkeyPatch, items: int
) -> None:
    monkeypatch.setattr(module, "CHUNK_ITEMS", items)
    storage = grown(sets.write([episode(40)]))
    values = torch.randn(40, 2, 3, dtype=torch.float64) * 5 + 1e6
    values[3, 1, 2], values[7, 1, 2], values[39, 0, 0] = np.nan, np.inf, -np.inf
    storage.content["x"] = values
    found = scales_of(storage, [("x",), ("action",)])
    finite = np.where(np.isfinite(values.numpy()), values.numpy(), np.nan)
    np.testing.assert_allclose(found["x",].mean, np.nanmean(finite, 0), rtol=1e-12)
    np.testing.assert_allclose(found["x",].std, np.nanstd(finite, 0), rtol=1e-7)
    whole = moments_of(storage.content["action"].numpy())
    assert float(found["action",].mean) == pytest.approx(whole.mean)
    assert float(found["action",].std) == pytest.approx(whole.std)


def test_nothing_to_take_a_mean_of(grown: Any, sets: Any, episode: Any) -> None:
    storage = grown(sets.write([episode(3)]))
    storage.content["x"] = torch.tensor([[1, np.nan], [2, np.inf], [3, np.nan]])
    with pytest.raises(UsageError, match="'x' has no finite value"):
        scales_of(storage, [("x",)])
    storage.content = storage.content[:0]
    with pytest.raises(UsageError, match="'action' has no finite value"):
        scales_of(storage, [("action",)])


def test_scales_are_values() -> None:
    values = np.array([1.0, 2.0])
    one = Scale(values, 3)
    values[0] = 7
    assert one.mean.tolist() == [1, 2]
    assert one == Scale([1, 2], 3)
    assert hash(one) == hash(Scale([1, 2], 3))
    assert one not in {Scale([1, 3], 3), Scale([1, 2], 4), "scale"}
