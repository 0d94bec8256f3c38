"""AgileRL's names: transitions, and batches of a buffer for a `DataLoader`.

All but `to_transition` can be imported from `offline_data`, too.
"""

from __future__ import annotations

from offline_data import rows  # noqa: F401 - raises where torch is missing

# isort: split
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np
import torch
from tensordict import TensorClass, TensorDict, TensorDictBase
from torch.utils.data import IterableDataset, get_worker_info

from offline_data.base.errors import UsageError
from offline_data.base.pickles import pickled_by_name
from offline_data.buffers.bridges.epochs import WorkerEpochs
from offline_data.buffers.buffer import Buffer
from offline_data.episode.fields import Key, join_key
from offline_data.rows.indexing import positive
from offline_data.rows.keys import KeyLike, as_key

__all__ = ["ReplayDataset", "Transition", "to_tensordict", "to_torch_tensor", "to_transition"]


def to_torch_tensor(data: Any, dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
    """Convert an array, a tensor, a number or a sequence of numbers to a tensor, as AgileRL does.

    Copies only if necessary. `dtype=None`: float64 becomes float32, others are unchanged. Raises
    `UsageError` if the data cannot be converted.

    Example:
        >>> to_torch_tensor(True), to_torch_tensor(np.array([1, 2]), dtype=None)
        (tensor(1.), tensor([1, 2]))
    """
    if isinstance(data, torch.Tensor):
        tensor = data
    else:
        try:
            array = np.asarray(data)
            if not array.flags.writeable or min(array.strides, default=0) < 0:
                array = array.copy()  # torch supports neither
            tensor = torch.from_numpy(array)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{data!r} is not a tensor: {error}", hint="to_tensordict converts dicts and tuples"
            ) from error
    if dtype is None:
        dtype = torch.float32 if tensor.dtype == torch.float64 else tensor.dtype
    return tensor.to(dtype)


def to_tensordict(data: Any, dtype: torch.dtype | None = torch.float32) -> TensorDictBase:
    """Convert a dict or tuple, nested or not, to a TensorDict of batch size `[]`.

    Items of a tuple are named `tuple_obs_0`, `tuple_obs_1`, …, as in AgileRL. A TensorDict keeps
    its batch size. For features, `dtype` and `UsageError` see `to_torch_tensor`.

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


def _either(data: Any, dtype: torch.dtype | None) -> Any:
    parts = isinstance(data, (TensorDictBase, Mapping, tuple))
    return to_tensordict(data, dtype) if parts else to_torch_tensor(data, dtype)


@pickled_by_name
class Transition(TensorClass):  # type: ignore[misc]
    """One step of an environment, or of several at once, as AgileRL's buffers expect it.

    Fields are outputs of an environment: arrays, dicts, tuples, numbers, bools. `action`, `reward`
    and `done` (no bootstrapping from `next_obs`) become float32, scalars of the last two `[1]`.
    Dicts and tuples of observations become TensorDicts; float64 observations become float32, and
    integers stay (AgileRL casts the images of a dict to float32, and keeps float64 arrays).

    The batch size is `[]` unless `batch_size=[…]` is given; then all fields start with it.

    Example:
        >>> step = Transition(obs=np.ones(3), action=0, next_obs=np.ones(3), reward=1, done=False)
        >>> step.obs.dtype, step.reward, step.done
        (torch.float32, tensor([1.]), tensor([0.]))
    """

    obs: Any
    action: Any
    next_obs: Any
    reward: Any
    done: Any

    def __post_init__(self) -> None:
        self.obs = _either(self.obs, None)
        self.next_obs = _either(self.next_obs, None)
        self.action = to_torch_tensor(self.action)
        reward, done = to_torch_tensor(self.reward), to_torch_tensor(self.done)
        self.reward = reward.reshape(1) if reward.ndim == 0 else reward
        self.done = done.reshape(1) if done.ndim == 0 else done


def to_transition(
    batch: TensorDictBase,
    *,
    observation_key: KeyLike = "observation",
    done_key: KeyLike = ("next", "terminated"),
) -> Any:
    """Return a batch in TED as a `Transition` `[B]`; a `collate_fn` for `ReplayDataset`.

    Args:
        batch: `[B]`, from `ds.sample()`.
        observation_key: Feature, or parent of features, of the observation.
        done_key: Feature to use as `done`; by default truncated episodes are not done, so targets
            bootstrap from their next observation.

    Raises:
        UsageError: A missing feature.
    """

    def leaf(key: Key) -> Any:
        found = batch.get(key, None)
        if found is None:
            names = ", ".join(map(str, batch.keys()))
            raise UsageError(f"The batch has no feature {join_key(key)}; it has {names}")
        return found

    key = as_key(observation_key)
    return Transition(
        obs=leaf(key),
        action=leaf(("action",)),
        next_obs=leaf(("next", *key)),
        reward=leaf(("next", "reward")),
        done=leaf(as_key(done_key)),
        batch_size=batch.batch_size,
    )


@pickled_by_name
class ReplayDataset(IterableDataset[Any]):
    """Batches of a buffer until its sampler ends an epoch, which a `RandomSampler` never does.

    All `W` workers draw the same sequence, and worker `w` gathers batches `w`, `w + W`, …, so a
    `DataLoader` gives the same batches as the buffer alone, whatever `W`, and a sampler without
    replacement every row once per epoch. AgileRL's class of that name yields one batch and stops.

    ```python
    DataLoader(ReplayDataset(ds, 256), batch_size=None, collate_fn=Identity(), num_workers=2)
    ```

    Without workers and `seed`, the buffer's sampler is used as is. In workers, samplers with an
    integer seed, such as `SamplerWithoutReplacement(seed=0)`, keep their orders; others use `seed`,
    None: the loader's base seed of each iteration (`torch.manual_seed`, `DataLoader(generator=…)`).

    Workers have copies of the buffer; their draws do not affect this process. Every iteration is
    the next epoch, also in new workers; the first is that of `set_epoch`, else the buffer's.

    Args:
        buffer: A dataset, a view, or any other buffer; picklable if there are workers.
        batch_size: Number of rows in a batch; None: the buffer's, or 256.
        seed: Non-negative seed of all draws.

    Raises:
        UsageError: Invalid argument.
    """

    def __init__(
        self, buffer: Buffer, batch_size: int | None = None, *, seed: int | None = None
    ) -> None:
        if not hasattr(buffer, "sampler"):
            raise UsageError(f"{buffer!r} is not a buffer of this package")
        if seed is not None and seed < 0:
            raise UsageError(f"A seed must not be negative; found {seed}")
        size = batch_size if batch_size is not None else buffer.batch_size or 256
        self.buffer = buffer
        self.batch_size = positive(size, "batch_size")
        self.seed = seed
        self._epochs = WorkerEpochs()
        self._first: int | None = None
        self._begun = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration; optional, since epochs advance by themselves."""
        self._first = epoch
        self._begun = 0
        self._epochs.restart(epoch)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None:
            return self._all_batches()
        _, epoch = self._epochs.begin(info, self._first_epoch())
        self._begin(info.seed - info.id if self.seed is None else self.seed, epoch)
        return self._own_batches(info.id, info.num_workers)

    def _all_batches(self) -> Iterator[Any]:
        if self.seed is not None or self._first is not None:
            self._begin(self.seed, self._first_epoch() + self._begun)
            self._begun += 1
        last = False
        while not last:
            draw, batch = self.buffer._take(self.batch_size)
            last = draw.last
            yield batch

    def _own_batches(self, worker: int, workers: int) -> Iterator[Any]:
        for number in count():
            draw = self.buffer._draw(self.batch_size)
            if number % workers == worker:
                yield self.buffer._make(draw)
            if draw.last:
                return

    def _first_epoch(self) -> int:
        if self._first is None:
            self._first = int(self.buffer.sampler.state_dict().get("epoch", 0))
        return self._first

    def _begin(self, seed: int | None, epoch: int) -> None:
        sampler = self.buffer.sampler
        by_epoch = {"epoch", "position"} <= sampler.state_dict().keys()  # orders of one seed
        if seed is not None:
            entropy = (seed, 0 if by_epoch else epoch)
            words = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
            sampler.set_rng(torch.Generator().manual_seed(int(words[0])))
        if by_epoch:
            sampler.load_state_dict({**sampler.state_dict(), "epoch": epoch, "position": 0})
        self.buffer._drop_drawn()
