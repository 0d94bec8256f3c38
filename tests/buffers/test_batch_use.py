"""What people do with a batch: each must work, and reach nothing but what it is done to."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.usefixtures("gathering")

LENGTHS = (30, 1, 40, 29)
ROWS = sum(LENGTHS)


@pytest.fixture(params=LAYOUTS)
def toy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """100 transitions with images, in either layout."""
    layout: LayoutName = request.param
    batch = toy_batch(LENGTHS, images=True, width=17)
    write_toy(tmp_path / "toy", [batch], layout=layout, audit="none")
    return tmp_path / "toy"


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


def test_writing_to_a_leaf_reaches_nothing_else(
    buffer: BaseDatasetExperienceReplay, toy: Path
) -> None:
    files = {file: file.read_bytes() for file in toy.rglob("*.memmap")}
    want = {key: leaf.clone() for key, leaf in leaves_of(buffer[:]).items()}
    for victim in want:
        rows = buffer[:]
        rows[victim].view(torch.uint8).fill_(0xA5)
        for key, leaf in leaves_of(rows).items():
            assert key == victim or torch.equal(leaf, want[key]), (victim, key)
        del rows
        for key, leaf in leaves_of(buffer[:]).items():  # in memory of the batch before, perhaps
            assert torch.equal(leaf, want[key]), (victim, key)
    assert all(file.read_bytes() == content for file, content in files.items())


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


def test_a_leaf_kept_for_long_keeps_its_own_bytes_only(
    buffer: BaseDatasetExperienceReplay,
) -> None:
    """The image is most of a batch: 200 rewards kept may not keep 200 images."""
    kept = [buffer.sample()["next", "reward"] for _ in range(200)]
    gc.collect()
    storages = {leaf.untyped_storage().data_ptr(): leaf.untyped_storage() for leaf in kept}
    assert len(storages) == 200
    assert sum(each.nbytes() for each in storages.values()) == 200 * 24 * kept[0].itemsize
    want = [leaf.clone() for leaf in kept]
    for _ in range(50):
        buffer.sample()
    assert all(map(torch.equal, kept, want))


def test_batches_outlive_their_buffer(toy: Path) -> None:
    buffer = BaseDatasetExperienceReplay(toy, 24)
    batch = buffer.sample()
    want = {key: leaf.clone() for key, leaf in leaves_of(batch).items()}
    del buffer
    gc.collect()
    for file in toy.rglob("*.memmap"):
        file.write_bytes(b"")
    for key, leaf in leaves_of(batch).items():
        assert torch.equal(leaf, want[key]), key
