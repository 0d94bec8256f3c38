"""Comparison of batches."""

from __future__ import annotations

from typing import Any

import torch


def assert_same(found: Any, expected: Any) -> None:
    """Batch sizes, leaves, their dtypes, shapes and values are the same."""
    assert found.batch_size == expected.batch_size
    assert set(found.keys(True, True)) == set(expected.keys(True, True))
    for key, leaf in expected.items(True, True):
        assert found.get(key).dtype == leaf.dtype, key
        assert torch.equal(found.get(key), leaf), (key, found.get(key), leaf)
