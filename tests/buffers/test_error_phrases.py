"""Programs written for TorchRL look for its phrases in errors: where they are true, ours contain them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from offline_data import (
    LazyTensorStorage,
    ListStorage,
    OfflineToOnlineReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    SliceSampler,
    TensorDictMaxValueWriter,
    TensorStorage,
)


def _ranked(**options: Any) -> ReplayBuffer:
    return ReplayBuffer(writer=TensorDictMaxValueWriter(), **options)


def _both(**options: Any) -> Any:
    return OfflineToOnlineReplayBuffer(ReplayBuffer(), **options)


_NO_TENSORDICT = "TensorDictMaxValueWriter expects data to be a tensor collection"
_CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: _ranked().add(torch.ones(3)), RuntimeError, _NO_TENSORDICT),
    (lambda: _ranked().extend(torch.ones(3, 2)), RuntimeError, _NO_TENSORDICT),
    (lambda: _ranked().extend({"a": torch.ones(3)}), RuntimeError, _NO_TENSORDICT),
    (lambda: _ranked().extend([(torch.ones(1),)]), RuntimeError, _NO_TENSORDICT),
    (
        lambda: _ranked(storage=LazyTensorStorage(4, ndim=2)),
        ValueError,
        "TensorDictMaxValueWriter is not compatible with storages with more than one dimension",
    ),
    (
        lambda: ReplayBuffer().sample(2),
        RuntimeError,
        "Cannot sample from an empty storage",
    ),
    (
        lambda: ReplayBuffer(sampler=SamplerWithoutReplacement(drop_last=True)),
        ValueError,
        "Samplers with drop_last=True must work with a predictable batch-size",
    ),
    (lambda: ReplayBuffer().sample(), RuntimeError, "batch_size not specified"),
    (
        lambda: next(iter(ReplayBuffer())),
        RuntimeError,
        "Cannot iterate over the replay buffer. Batch_size was not specified",
    ),
    (
        lambda: PrioritizedSampler(3, alpha=-1.0, beta=1.0),
        ValueError,
        "alpha must be greater or equal",
    ),
    (
        lambda: SliceSampler(slice_len=2, pad_output=True),
        ValueError,
        "pad_output=True is incompatible",
    ),
    (
        lambda: ReplayBuffer(LazyTensorStorage(9)).extend([torch.ones(4), torch.ones(1)]),
        RuntimeError,
        "Stacking the elements of the list resulted in an error",
    ),
    (lambda: TensorStorage(None), ValueError, "Expected storage to be non-null"),
    (
        lambda: TensorStorage(torch.ones(3), max_size=4),
        ValueError,
        "The max-size and the storage shape mismatch",
    ),
    (lambda: _both(), ValueError, "one of"),
    (
        lambda: _both(online_capacity=3, online_storage=ListStorage(3)),
        ValueError,
        "not both",
    ),
    (lambda: _both(online_capacity=3, split_trajs=True), ValueError, "only forwarded when"),
    (lambda: _both(online_capacity=3).sample(), ValueError, "batch_size must be provided"),
    (
        lambda: OfflineToOnlineReplayBuffer("d4rl:pen-human-v1", online_capacity=3),
        ValueError,
        "batch_size must be provided",
    ),
]


@pytest.mark.parametrize(
    ("call", "kind", "phrase"), _CASES, ids=[phrase for _, _, phrase in _CASES]
)
def test_the_phrase_is_in_the_error(
    call: Callable[[], Any], kind: type[Exception], phrase: str
) -> None:
    with pytest.raises(kind, match=phrase):
        call()
