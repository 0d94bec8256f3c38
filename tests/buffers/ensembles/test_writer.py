from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.ensembles import StorageEnsemble, WriterEnsemble
from offline_data.buffers.storages import LazyTensorStorage
from offline_data.buffers.writers import ImmutableDatasetWriter, RoundRobinWriter
from offline_data.errors import ImmutableError, UsageError

ROWS = TensorDict({"action": torch.arange(3)}, [3])


def test_each_writer_writes_to_its_own_storage() -> None:
    writers = WriterEnsemble(RoundRobinWriter(), RoundRobinWriter())
    storages = StorageEnsemble(LazyTensorStorage(9), LazyTensorStorage(9))
    writers.register_storage(storages)
    writers[1].extend(ROWS)
    assert [len(storage) for storage in storages.storages] == [0, 3]
    assert writers.write_count == 3
    with pytest.raises(UsageError, match="2 writers for 1 storages"):
        writers.register_storage(storages[:1])


def test_it_refuses_to_write_itself() -> None:
    writers = WriterEnsemble(RoundRobinWriter())
    attempts: list[Any] = [lambda: writers.add(ROWS[0]), lambda: writers.extend(ROWS)]
    for attempt in attempts:
        with pytest.raises(ImmutableError, match="which member is meant") as caught:
            attempt()
        assert "ensemble[0].extend" in str(caught.value.hint)


def test_indexing_and_state() -> None:
    writers = WriterEnsemble(RoundRobinWriter(), RoundRobinWriter(), ImmutableDatasetWriter())
    assert writers[0] is writers.writers[0]
    assert writers[:] is writers
    assert writers[1:].writers == writers.writers[1:]
    with pytest.raises(UsageError, match="2 indices"):
        writers[0, 1]
    other = WriterEnsemble(RoundRobinWriter(), RoundRobinWriter(), ImmutableDatasetWriter())
    writers.writers[1].register_storage(LazyTensorStorage(2))
    writers[1].extend(ROWS)
    other.load_state_dict(writers.state_dict())
    assert (other[1].cursor, other.write_count) == (1, 3)
    other[:2].empty()
    assert (other[1].cursor, other.write_count) == (0, 0)


def test_something_else_is_refused() -> None:
    for wrong in ((), (3,), (RoundRobinWriter,)):
        with pytest.raises(UsageError, match="one writer or more"):
            WriterEnsemble(*wrong)
