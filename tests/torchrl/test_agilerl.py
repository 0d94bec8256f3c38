from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from offline_data.agilerl import (
    Transition,
    to_tensordict,
    to_torch_tensor,
    to_transition,
)
from offline_data.base.errors import UsageError
from offline_data.buffers.dataset import Dataset


@pytest.mark.parametrize(
    "data",
    [
        True,
        np.float64(3),
        [3, 4],
        np.array([3.0, 4.0])[::-1],
        np.broadcast_to(np.float32(3), (2, 2)),
        torch.tensor([3, 4], dtype=torch.uint8),
    ],
)
def test_anything_becomes_a_float32_tensor(data: Any) -> None:
    tensor = to_torch_tensor(data)
    assert tensor.dtype == torch.float32
    np.testing.assert_array_equal(tensor.numpy(), np.asarray(data).astype(np.float32))
    assert to_torch_tensor(data, torch.int16).dtype == torch.int16


def test_without_a_dtype_only_float64_changes() -> None:
    for kind in (np.uint8, np.int64, np.float32, np.bool_):
        assert to_torch_tensor(np.ones(2, kind), None).numpy().dtype == kind
    assert to_torch_tensor(np.ones(2), None).dtype == torch.float32


def test_dicts_and_tuples_become_tensordicts() -> None:
    data = {"a": np.ones((2, 3)), "b": ({"c": 4}, np.array([5], np.uint8))}
    made = to_tensordict(data)
    assert made.batch_size == ()
    assert made["a"].shape == (2, 3)
    assert made["b", "tuple_obs_0", "c"] == 4
    assert made["b", "tuple_obs_1"].dtype == torch.float32
    assert to_tensordict(data, None)["b", "tuple_obs_1"].dtype == torch.uint8
    batch = TensorDict({"a": torch.ones(2, dtype=torch.float64)}, [2])
    cast = to_tensordict(batch)
    assert (cast.batch_size, cast["a"].dtype) == ((2,), torch.float32)

    with pytest.raises(UsageError, match="is not a tensor"):
        to_torch_tensor("text")
    with pytest.raises(UsageError, match="expected a dict or a tuple"):
        to_tensordict([1, 2])


def test_a_step_of_one_environment() -> None:
    step = Transition(
        obs={"image": np.full((4, 4), 7, np.uint8), "speed": 2.5},
        action=np.int64(3),
        next_obs=(np.array([1.5]), 4),
        reward=-1,
        done=np.bool_(True),
    )
    assert step.batch_size == ()
    assert step.obs["image"].dtype == torch.uint8
    assert step.obs["speed"] == 2.5
    assert step.next_obs["tuple_obs_0"].dtype == torch.float32
    assert step.next_obs["tuple_obs_1"] == 4
    assert (step.action.shape, step.action.dtype) == ((), torch.float32)
    for leaf, value in ((step.reward, -1.0), (step.done, 1.0)):
        assert (leaf.tolist(), leaf.dtype) == ([value], torch.float32)


def test_steps_of_several_environments() -> None:
    steps = Transition(
        obs=np.arange(6.0).reshape(3, 2),
        action=np.array([0, 1, 2]),
        next_obs=np.arange(6.0).reshape(3, 2) + 1,
        reward=np.array([1.0, 2.0, 3.0]),
        done=[False, True, False],
        batch_size=[3],
    )
    assert steps.obs.dtype == torch.float32
    second = steps[1]
    assert isinstance(second, Transition)
    assert second.obs.tolist() == [2, 3]
    assert (float(second.action), float(second.reward), float(second.done)) == (1, 2, 1)
    data = steps.to_tensordict()
    assert set(data.keys()) == {"obs", "action", "next_obs", "reward", "done"}


def test_a_batch_as_a_transition(ds: Dataset) -> None:
    batch = ds[[1, 7, 9]]
    step = to_transition(batch, observation_key="observation.state")
    assert step.batch_size == (3,)
    assert torch.equal(step.obs, batch["observation", "state"])
    assert torch.equal(step.next_obs, batch["next", "observation", "state"])
    assert torch.equal(step.action, batch["action"])
    assert torch.equal(step.reward, batch["next", "reward"].float())
    assert step.done.tolist() == [[0], [1], [0]]  # row 9 is truncated, and so not done
    assert to_transition(batch, done_key="next.done").done.tolist() == [[0], [1], [1]]
    whole = to_transition(batch)
    assert whole.obs["image"].dtype == torch.uint8
    with pytest.raises(UsageError, match="no feature goal"):
        to_transition(batch, observation_key="goal")
