"""What people do with a batch: each must work, and reach nothing but what it is done to."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.store.layout import LAYOUTS

pytestmark = pytest.mark.usefixtures("gathering")

LENGTHS = (10, 1, 9, 4)


@pytest.fixture(params=LAYOUTS)
def toy(request: pytest.FixtureRequest, toys: Callable[..., Path]) -> Path:
    """24 transitions with images, in either layout."""
    return toys(LENGTHS, layout=request.param, images=True, width=17)


@pytest.fixture
def buffer(toy: Path) -> BaseDatasetExperienceReplay:
    return BaseDatasetExperienceReplay(toy, 24)


@pytest.fixture
def batch(buffer: BaseDatasetExperienceReplay) -> TensorDict:
    sampled: TensorDict = buffer.sample()
    return sampled


def leaves_of(batch: TensorDict) -> dict[Any, Tensor]:
    return dict(batch.items(include_nested=True, leaves_only=True))


def test_leaves_are_contiguous_and_of_their_own_memory(batch: TensorDict) -> None:
    seen: dict[int, Any] = {}
    for key, leaf in leaves_of(batch).items():
        assert leaf.is_contiguous(), key
        assert leaf.storage_offset() == 0, key
        assert leaf.untyped_storage().nbytes() == leaf.numel() * leaf.itemsize, key
        assert not leaf.requires_grad
        assert not leaf.is_shared()  # type: ignore[no-untyped-call]
        assert seen.setdefault(leaf.untyped_storage().data_ptr(), key) == key
        assert leaf.data_ptr() % leaf.itemsize == 0


def test_writing_to_rows_asked_for_leaves_the_index_alone(
    buffer: BaseDatasetExperienceReplay,
) -> None:
    rows = torch.tensor([3, 4])
    batch = buffer[rows]
    batch["index"].fill_(9)
    assert rows.tolist() == [3, 4]
    drawn, info = buffer.sample(return_info=True)
    drawn["action"].zero_()
    assert torch.equal(info["index"], drawn["index"])


@pytest.mark.slow
def test_a_leaf_kept_for_long_keeps_its_own_bytes_only(
    buffer: BaseDatasetExperienceReplay,
) -> None:
    """The image is most of a batch: 60 rewards kept may not keep 60 images."""
    kept = [buffer.sample()["next", "reward"] for _ in range(60)]
    gc.collect()
    storages = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage() for leaf in kept}
    assert len(storages) == 60
    assert sum(each.nbytes() for each in storages.values()) == 60 * 24 * kept[0].itemsize
    want = [leaf.clone() for leaf in kept]
    for _ in range(20):
        buffer.sample()
    assert all(map(torch.equal, kept, want))


@pytest.mark.slow
def test_batches_outlive_their_buffer(toy: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(toy, tmp_path / "toy")
    buffer = BaseDatasetExperienceReplay(copy, 24)
    batch = buffer.sample()
    want = {key: leaf.clone() for key, leaf in leaves_of(batch).items()}
    del buffer
    gc.collect()
    for file in copy.rglob("*.memmap"):
        file.write_bytes(b"")
    for key, leaf in leaves_of(batch).items():
        assert torch.equal(leaf, want[key]), key
