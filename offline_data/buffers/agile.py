"""AgileRL's view of a transition: five fields, made of whatever an environment gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from tensordict import TensorClass, TensorDict, TensorDictBase

from offline_data.buffers.keys import KeyLike, as_key
from offline_data.episodes.fields import join_key
from offline_data.errors import UsageError


def to_torch_tensor(data: Any, dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
    """Turn an array, a tensor, a number or a sequence of numbers into a tensor, as AgileRL does.

    Args:
        data: It is not copied where its dtype is right and its memory can be written to.
        dtype: Dtype that it is cast to; None: float64 becomes float32, anything else stays.

    Raises:
        UsageError: It is nothing that tensors are made of.

    Example:
        >>> to_torch_tensor(True), to_torch_tensor(np.array([1, 2]), dtype=None)
        (tensor(1.), tensor([1, 2]))
    """
    try:
        tensor = data if isinstance(data, torch.Tensor) else _from_numpy(np.asarray(data))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{data!r} is not a tensor: {error}", hint="to_tensordict takes dicts and tuples"
        ) from error
    if dtype is None:
        dtype = torch.float32 if tensor.dtype == torch.float64 else tensor.dtype
    return tensor.to(dtype)


def to_tensordict(data: Any, dtype: torch.dtype | None = torch.float32) -> TensorDictBase:
    """Turn a dict or a tuple, nested or not, into a TensorDict of batch size `[]`.

    Args:
        data: Items of a tuple are called `tuple_obs_0`, `tuple_obs_1`, …, as in AgileRL. A
            TensorDict keeps its batch size.
        dtype: See `to_torch_tensor`.

    Raises:
        UsageError: It is neither, or has something in it that is no tensor.

    Example:
        >>> to_tensordict((np.zeros(2), 1))["tuple_obs_1"]
        tensor(1.)
    """
    if isinstance(data, TensorDictBase):
        cast: TensorDictBase = data.apply(lambda leaf: to_torch_tensor(leaf, dtype))
        return cast
    if isinstance(data, tuple):
        data = {f"tuple_obs_{place}": item for place, item in enumerate(data)}
    if not isinstance(data, Mapping):
        raise UsageError(
            f"A {type(data).__name__} cannot become a TensorDict; expected a dict or a tuple"
        )
    return TensorDict({name: _either(item, dtype) for name, item in data.items()}, batch_size=[])


class Transition(TensorClass):  # type: ignore[misc]
    """One step of an environment, or of several at once, as AgileRL's buffers take it.

    Fields are what an environment gives: arrays, dicts, tuples, numbers, bools. `action`, `reward`
    and `done` become float32, and a single number of the last two becomes `[1]`. Observations that
    are dicts or tuples become TensorDicts; in observations float64 becomes float32, and integers
    stay (AgileRL casts the images of a dict to float32, and leaves a float64 array as it is).

    The batch size is `[]` unless `batch_size=[…]` is given: then all fields begin with it.

    Example:
        >>> step = Transition(obs=np.ones(3), action=0, next_obs=np.ones(3), reward=1, done=False)
        >>> step.obs.dtype, step.reward, step.done
        (torch.float32, tensor([1.]), tensor([0.]))
    """

    obs: Any
    """Observation before the action."""
    action: Any
    next_obs: Any
    """Observation after it."""
    reward: Any
    done: Any
    """Whether the episode ended, so that nothing bootstraps from `next_obs`."""

    def __post_init__(self) -> None:
        self.obs = _either(self.obs, None)
        self.next_obs = _either(self.next_obs, None)
        self.action = to_torch_tensor(self.action)
        self.reward = _one(to_torch_tensor(self.reward))
        self.done = _one(to_torch_tensor(self.done))


def to_transition(
    batch: TensorDictBase,
    *,
    observation_key: KeyLike = "observation",
    done_key: KeyLike = ("next", "terminated"),
) -> Any:
    """Return the `Transition` `[B]` that a batch in TED is.

    Args:
        batch: `[B]`, as `ds.sample()` gives it.
        observation_key: Leaf, or parent of leaves, that is the observation.
        done_key: Leaf that `done` is; by default truncated episodes are not done, for what follows
            them is known, and bootstrapping goes on from there.

    Raises:
        UsageError: A leaf that is not there.

    Example:
        ```python
        dataset = ReplayDataset(ds, 256)
        loader = DataLoader(dataset, batch_size=None, collate_fn=to_transition)
        ```
    """
    key = as_key(observation_key)
    return Transition(
        obs=_leaf(batch, key),
        action=_leaf(batch, ("action",)),
        next_obs=_leaf(batch, ("next", *key)),
        reward=_leaf(batch, ("next", "reward")),
        done=_leaf(batch, as_key(done_key)),
        batch_size=batch.batch_size,
    )


def _leaf(batch: TensorDictBase, key: tuple[str, ...]) -> Any:
    found = batch.get(key, None)
    if found is None:
        names = ", ".join(map(str, batch.keys()))
        raise UsageError(f"The batch has no leaf {join_key(key)}; it has {names}")
    return found


def _either(data: Any, dtype: torch.dtype | None) -> Any:
    """Turn one observation into a tensor, or a TensorDict where it has parts."""
    if isinstance(data, (TensorDictBase, Mapping, tuple)):
        return to_tensordict(data, dtype)
    return to_torch_tensor(data, dtype)


def _one(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(1) if tensor.ndim == 0 else tensor


def _from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    # Memory that may not be written to, or runs backwards, torch does not take as it is.
    fit = array.flags.writeable and all(step >= 0 for step in array.strides)
    return torch.from_numpy(array if fit else array.copy())
