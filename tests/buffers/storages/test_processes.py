"""Who writes: the process that made the storage. Others are told, and nothing is lost silently."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.buffer import ReplayBuffer
from offline_data.buffers.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage
from offline_data.errors import UsageError

KINDS = [LazyTensorStorage, LazyMemmapStorage, ListStorage]
METHODS = ["fork", "spawn"]
SIZE = 10

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def rows(first: int, count: int) -> TensorDict:
    return TensorDict({"number": torch.arange(first, first + count)}, batch_size=[count])


def made(kind: Any, count: int = 4, **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(kind(SIZE), batch_size=2, **options)
    if count:
        buffer.extend(rows(0, count))
    return buffer


def numbers(buffer: ReplayBuffer) -> list[int]:
    found: list[int] = buffer[:]["number"].tolist()
    return found


def attempt(buffer: ReplayBuffer, answers: Any) -> None:
    """Try every way to write, in another process."""
    found = []
    for write in (
        lambda: buffer.extend(rows(100, 2)),
        lambda: buffer.add(rows(100, 1)[0]),
        lambda: buffer.storage.set(0, rows(100, 1)[0]),  # type: ignore[attr-defined]
    ):
        try:
            write()
        except UsageError as error:
            found.append(error.message)
        else:
            found.append("written")
    answers.put((found, len(buffer), numbers(buffer) if len(buffer) else []))


def elsewhere(method: str, target: Any, *arguments: Any) -> Any:
    """Return what a function puts into a queue in another process."""
    context: Any = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=target, args=(*arguments, answers))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    return answers.get()


@pytest.mark.parametrize(
    ("kind", "method", "count"),
    [
        *((kind, "fork", count) for kind in KINDS for count in (0, 4)),
        *((kind, "spawn", 4) for kind in KINDS),
        (LazyMemmapStorage, "spawn", 0),
    ],
)
def test_another_process_reads_and_does_not_write(kind: Any, method: str, count: int) -> None:
    buffer = made(kind, count)
    found, length, values = elsewhere(method, attempt, buffer)
    assert all("process that made it" in message for message in found), found
    assert (length, values) == (count, list(range(count)))
    assert buffer.extend(rows(count, 3)).tolist() == list(range(count, count + 3))
    assert numbers(buffer) == list(range(count + 3))


class Reads(torch.utils.data.IterableDataset[Any]):
    """Yields what a worker sees, and what it is told when it writes."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    def __iter__(self) -> Any:
        try:
            self.buffer.extend(rows(100, 1))
        except UsageError:
            yield numbers(self.buffer)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_of_a_loader_read(kind: Any) -> None:
    loader = torch.utils.data.DataLoader(
        Reads(made(kind)), batch_size=None, num_workers=1, multiprocessing_context="fork"
    )
    assert list(loader) == [[0, 1, 2, 3]]


def assign(buffer: ReplayBuffer, answers: Any) -> None:
    try:
        buffer[torch.tensor([1, 2])] = rows(50, 2)
    except UsageError as error:
        answers.put(error.message)
    else:
        answers.put("assigned")


@pytest.mark.parametrize("method", METHODS)
def test_values_are_set_where_others_see_them(method: str) -> None:
    private, mapped, shared = (
        made(LazyTensorStorage),
        made(LazyMemmapStorage),
        made(LazyTensorStorage),
    )
    shared.storage.share_memory_()  # type: ignore[attr-defined]
    for buffer in (mapped, shared):
        assert elsewhere(method, assign, buffer) == "assigned"
        assert numbers(buffer) == [0, 50, 51, 3]
    if method == "fork":  # what is passed to a spawned process is shared
        assert "would not be seen" in elsewhere(method, assign, private)
        assert numbers(private) == [0, 1, 2, 3]
    assert "would not be seen" in elsewhere(method, assign, made(ListStorage))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301
def test_a_copy_with_memory_of_its_own_is_a_buffer_of_its_own(copied: Any) -> None:
    for kind in (LazyTensorStorage, ListStorage):
        buffer = made(kind)
        other = copied(buffer)
        other.extend(rows(50, 2))
        buffer.extend(rows(4, 1))
        assert numbers(other) == [0, 1, 2, 3, 50, 51]
        assert numbers(buffer) == [0, 1, 2, 3, 4]
    buffer = made(LazyMemmapStorage)
    other = copied(buffer)
    with pytest.raises(UsageError, match="a copy writes"):
        other.extend(rows(50, 2))
    buffer.extend(rows(4, 1))
    assert numbers(buffer) == [0, 1, 2, 3, 4]
    assert numbers(other) == [0, 1, 2, 3]
