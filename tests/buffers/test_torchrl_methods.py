"""Methods and arguments of TorchRL's buffers, by the names that programs call them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data import (
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorStorage,
)


def rows(**leaves: Any) -> TensorDict:
    return TensorDict({"value": torch.arange(8), **leaves}, [8])


@pytest.mark.parametrize("storage", [LazyTensorStorage, ListStorage])
@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"collector": {"traj_ids": torch.arange(8) // 4}}, ("collector", "traj_ids")),
        ({"episode": torch.arange(8) // 4}, "episode"),
        ({"next": {"done": torch.tensor([[0, 0, 0, 1]] * 2).bool().reshape(8)}}, None),
    ],
)
def test_a_slice_sampler_says_which_leaf_separates_trajectories(
    storage: Any, leaves: dict[str, Any], expected: Any
) -> None:
    sampler = SliceSampler(slice_len=4)
    buffer = TensorDictReplayBuffer(storage=storage(8), sampler=sampler, batch_size=8)
    assert sampler.traj_key is None
    buffer.extend(rows(**leaves))
    assert buffer.sample()["value"].reshape(2, 4)[:, 0].remainder(4).tolist() == [0, 0]
    assert sampler.traj_key == expected
    assert SliceSampler(slice_len=4, traj_key="own").traj_key == "own"


def test_arguments_have_torchrls_names(tmp_path: Path) -> None:
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(8), batch_size=4
    )
    buffer.extend(tensordicts=rows())
    buffer.sampler.update_priority(index=torch.tensor([1]), priority=5.0, storage=buffer.storage)
    buffer.mark_update(torch.tensor([2]))
    other = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(8), batch_size=4
    )
    other.load_state_dict(state_dict=buffer.state_dict())
    for name in ("sampler", "writer", "storage"):
        one, two = (getattr(part, name) for part in (buffer, other))
        two.load_state_dict(state_dict=one.state_dict())
    priorities = other.sampler.state_dict()["priorities"]
    assert priorities[:4].tolist() == [1.0, 5.0, 5.0, 1.0]


def test_all_rows_are_read_and_written_in_order() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(10))
    buffer.extend(rows())
    assert buffer.read_all_in_order()["value"].tolist() == [*range(8)]
    assert buffer.read_all_in_order(3)["value"].tolist() == [0, 1, 2]
    buffer.write_all(rows() + 10)
    buffer.write_all((rows() + 20)[:2], end=2)
    assert buffer[:]["value"].tolist() == [20, 21, *range(12, 18)]


def test_the_transforms_of_a_buffer() -> None:
    buffer = ReplayBuffer(LazyTensorStorage(8))
    assert not buffer.transform
    first, second = (lambda batch: batch), (lambda batch: batch + 1)
    buffer.append_transform(second).insert_transform(0, first)
    assert buffer.transform == (first, second)


@pytest.mark.parametrize("of_buffer", [True, False])
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_hooks_are_the_storages(kind: Any, of_buffer: bool, tmp_path: Path) -> None:
    """Registered on the buffer or on the storage, `dumps` and `loads` of both call them."""
    called: list[Any] = []

    class Hook:
        shift = is_full = None

        def __call__(self, data: Any, path: Any) -> Any:  # TorchRL passes it by name
            called.append((self.shift, self.is_full, data.tolist(), path))
            return data + 1

    storage, empty = kind(4), kind(4)
    buffer, other = ReplayBuffer(storage), ReplayBuffer(empty)
    saving: Any = buffer if of_buffer else storage
    loading: Any = other if of_buffer else empty
    saving.register_save_hook(Hook())
    saving.register_save_hook(lambda data: data * 2)
    loading.register_load_hook(lambda data, out: data // 2 if out is None else None)
    loading.register_load_hook(lambda data: data - 1)
    buffer.extend(torch.arange(3))
    buffer.dumps(tmp_path / "buffer")
    buffer.extend(torch.arange(3, 5))
    storage.dumps(tmp_path / "storage")
    assert called == [(3, False, [0, 1, 2], None), (1, True, [4, 1, 2, 3], None)]
    other.loads(tmp_path / "buffer")
    assert other[:].tolist() == [0, 1, 2]
    empty.loads(tmp_path / "storage")
    assert other[:].tolist() == [4, 1, 2, 3]
    assert buffer[:].tolist() == [4, 1, 2, 3]


def test_hooks_of_a_list(tmp_path: Path) -> None:
    storage, other = ListStorage(4), ListStorage(4)
    storage.register_save_hook(lambda rows: rows[::-1])
    other.register_load_hook(lambda rows: rows[::-1])
    storage.set([0, 1], ["a", "b"])
    storage.dumps(tmp_path / "state")
    other.loads(tmp_path / "state")
    assert other[:] == ["a", "b"]


def test_a_storage_has_no_checkpointer() -> None:
    storage = LazyTensorStorage(8)
    storage.checkpointer = None
    assert storage.checkpointer is None


def test_rows_stay_on_their_device() -> None:
    for device in (None, "auto"):
        assert TensorStorage(torch.ones(3), device=device).device == torch.device("cpu")


def test_replacement_of_samplers_without() -> None:
    assert SamplerWithoutReplacement(replacement=False, drop_last=True).drop_last
    sampler = SliceSamplerWithoutReplacement(replacement=False, slice_len=5)
    assert type(sampler) is SliceSamplerWithoutReplacement
    with pytest.raises(TypeError, match="replacement"):
        PrioritizedSampler(10, 1.0, 1.0, replacement=False)  # type: ignore[call-arg]
