"""What people do with a batch: each must work, and reach nothing but what it is done to."""

from __future__ import annotations

import gc
import io
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.dataset import BaseDatasetExperienceReplay
from offline_data.store.layout import LAYOUTS, LayoutName
from offline_data.testing.toy import toy_batch, write_toy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.usefixtures("gathering")

LENGTHS = (30, 1, 40, 29)
ROWS = sum(LENGTHS)
STATE, NEXT_STATE = ("observation", "state"), ("next", "observation", "state")
OVERHEAD = 4096
"""Bytes of a pickle or archive that are not values."""


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


def test_pinned_where_there_is_an_accelerator(batch: TensorDict) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no accelerator")
    pinned = batch.pin_memory()
    assert all(leaf.is_pinned() for leaf in leaves_of(pinned).values())
    assert torch.equal(pinned[STATE], batch[STATE])


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


def saved(value: Any) -> int:
    file = io.BytesIO()
    torch.save(value, file)
    return len(file.getvalue())


@pytest.mark.parametrize("size", [saved, lambda value: len(pickle.dumps(value))])
def test_saving_takes_what_the_values_take(batch: TensorDict, size: Callable[[Any], int]) -> None:
    for key, leaf in leaves_of(batch).items():
        assert size(leaf) <= leaf.numel() * leaf.itemsize + OVERHEAD, key
    leaves = leaves_of(batch)
    total = sum(leaf.numel() * leaf.itemsize for leaf in leaves.values())
    assert size(batch) <= total + OVERHEAD * len(leaves)


def test_pickled_and_saved_values_come_back(batch: TensorDict) -> None:
    file = io.BytesIO()
    torch.save(batch[STATE], file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=True), batch[STATE])
    again = pickle.loads(pickle.dumps(batch))  # noqa: S301 - it was made here
    for key, leaf in leaves_of(batch).items():
        assert torch.equal(again[key], leaf), key
        assert again[key].dtype == leaf.dtype


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


def test_sharing_memory(batch: TensorDict) -> None:
    want = {key: leaf.clone() for key, leaf in leaves_of(batch).items()}
    shared = batch.share_memory_()
    assert shared.is_shared()
    for key, leaf in leaves_of(shared).items():
        assert leaf.is_shared()  # type: ignore[no-untyped-call]
        assert torch.equal(leaf, want[key]), key


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


def test_tensordict_operations(batch: TensorDict) -> None:
    assert torch.equal(batch.clone()[STATE], batch[STATE])
    assert batch.clone()[STATE].data_ptr() != batch[STATE].data_ptr()
    assert batch.apply(lambda leaf: leaf.float()).select(STATE)[STATE].dtype == torch.float32
    assert TensorDict.cat([batch, batch]).batch_size == (48,)
    assert batch[batch["next", "done"][:, 0]]["next", "done"].all()
    assert batch.exclude("next").to_dict()["action"].shape == (24, 1)
    batch["weight"] = torch.ones(24)
    assert batch.flatten_keys(".")["next.observation.state"] is batch[NEXT_STATE]
    memory = batch.select("action").contiguous()
    assert np.shares_memory(memory["action"].numpy(), batch["action"].numpy())
