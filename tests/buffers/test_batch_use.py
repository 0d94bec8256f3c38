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
from torch import nn

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


def test_linear_layers_losses_and_backward(batch: TensorDict) -> None:
    torch.manual_seed(0)
    policy = nn.Linear(17, 1)
    value = nn.Sequential(nn.Linear(17, 8), nn.ReLU(), nn.Linear(8, 1))
    state = batch[STATE] / 1000
    target = batch["next", "reward"].float() + 0.9 * value(batch[NEXT_STATE] / 1000).detach() * (
        ~batch["next", "terminated"]
    )
    loss = nn.functional.mse_loss(policy(state), batch["action"]) + nn.functional.smooth_l1_loss(
        value(state), target
    )
    loss.backward()  # type: ignore[no-untyped-call]
    naive = 2 * ((policy(state) - batch["action"]) * state).mean(0)
    assert policy.weight.grad is not None
    torch.testing.assert_close(policy.weight.grad[0], naive.detach())


def test_a_leaf_can_be_learned(batch: TensorDict) -> None:
    action = batch["action"].requires_grad_()
    (action * 3).sum().backward()
    assert action.grad is not None
    assert (action.grad == 3).all()


def test_images_through_a_convolution(batch: TensorDict) -> None:
    image = batch["observation", "image"]
    flat = image.flatten(1)
    assert flat.data_ptr() == image.data_ptr()
    out = nn.Conv2d(image.shape[-1], 2, 3)(image.movedim(-1, 1).float())
    assert out.shape[:2] == (24, 2)


def test_views_over_the_batch_dimension(batch: TensorDict) -> None:
    for key, leaf in leaves_of(batch).items():
        flat = leaf.view(-1)
        assert flat.data_ptr() == leaf.data_ptr(), key
        assert leaf.view(6, 4, *leaf.shape[1:]).shape[:2] == (6, 4)
        assert leaf.reshape(4, 6, -1).flatten(0, 1).shape[0] == 24
        assert torch.equal(leaf.view(6, 4, *leaf.shape[1:])[2, 1], leaf[9])
    split = batch.view(6, 4)
    assert torch.equal(split[STATE][2, 1], batch[STATE][9])
    assert batch.reshape(-1).batch_size == (24,)
    assert [part.batch_size[0] for part in batch.split(10)] == [10, 10, 4]
    assert TensorDict.stack([batch, batch]).batch_size == (2, 24)


def test_numpy_shares_memory_and_may_be_written(batch: TensorDict) -> None:
    array = batch["action"].numpy()
    array[0] = 77
    assert batch["action"][0] == 77


def test_to_a_device_and_another_type(batch: TensorDict) -> None:
    there = batch.to("meta")
    assert there.device == torch.device("meta")
    assert there[STATE].shape == (24, 17)
    assert batch.device == torch.device("cpu")
    assert batch.to("cpu")[STATE].data_ptr() == batch[STATE].data_ptr()
    assert batch[STATE].double().dtype == torch.float64
    assert batch[STATE].half().dtype == torch.float16


def test_batches_for_a_device(toy: Path) -> None:
    """The meta device stands for one that is not the CPU: all leaves are moved there."""
    moved = BaseDatasetExperienceReplay(toy, 24, device="meta").sample()
    assert moved.device == torch.device("meta")
    assert {leaf.device.type for leaf in leaves_of(moved).values()} == {"meta"}


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


def test_memory_of_other_leaves_is_given_back_while_one_is_kept(
    buffer: BaseDatasetExperienceReplay,
) -> None:
    first = buffer.sample()
    reward, image = first["next", "reward"], first["observation", "image"].data_ptr()
    del first
    later = {buffer.sample()["observation", "image"].data_ptr() for _ in range(20)}
    assert image in later or len(later) < 20
    assert reward.data_ptr() not in later


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
