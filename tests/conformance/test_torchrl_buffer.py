"""A dataset in layout `ted` inside TorchRL's own buffer gives what this package's buffer gives."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data import open_dataset
from offline_data.testing.toy import toy_batch, write_toy

with warnings.catch_warnings():  # torchrl deprecates classes of its own while it is imported
    warnings.simplefilter("ignore")
    import torchrl.data as theirs

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = [30, 1, 44, 25]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset of numbers and images in layout `ted`."""
    write_toy(tmp_path / "toy", [toy_batch(LENGTHS, images=True)], layout="ted")
    return tmp_path / "toy"


@pytest.fixture
def torchrl(folder: Path) -> Any:
    """TorchRL's buffer over the same files."""
    storage = theirs.TensorStorage(TensorDict.load_memmap(folder / "ted"))
    writer = theirs.ImmutableDatasetWriter()
    return theirs.TensorDictReplayBuffer(storage=storage, writer=writer, batch_size=16)


def assert_same(mine: Any, other: Any) -> None:
    keys = set(mine.keys(include_nested=True, leaves_only=True))
    assert keys == set(other.keys(include_nested=True, leaves_only=True))
    for key in keys - {"index"}:
        assert mine[key].dtype == other[key].dtype, key
        np.testing.assert_array_equal(mine[key].numpy(), other[key].numpy(), str(key))
    assert mine["index"].tolist() == other["index"].tolist()


def test_the_same_torch_seed_draws_the_same_rows(folder: Path, torchrl: Any) -> None:
    ds = open_dataset(folder, 16)
    torch.manual_seed(3)
    other = [torchrl.sample() for _ in range(3)]
    torch.manual_seed(3)
    for batch in other:
        assert_same(ds.sample(), batch)
