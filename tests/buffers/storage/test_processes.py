"""One process writes, the one that made the storage; nothing is lost silently in others."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.buffers.buffer import ReplayBuffer
from offline_data.buffers.storage import LazyMemmapStorage, LazyTensorStorage, ListStorage
from offline_data.errors import UsageError

KINDS = [LazyTensorStorage, LazyMemmapStorage, ListStorage]

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")


def rows(first: int, count: int) -> TensorDict:
    return TensorDict({"number": torch.arange(first, first + count)}, batch_size=[count])


def made(kind: Any, count: int = 4) -> ReplayBuffer:
    buffer = ReplayBuffer(kind(10), batch_size=2)
    if count:
        buffer.extend(rows(0, count))
    return buffer


def numbers(buffer: ReplayBuffer) -> list[int]:
    found: list[int] = buffer[:]["number"].tolist() if len(buffer) else []
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
    answers.put((found, numbers(buffer)))


def elsewhere(method: str, target: Any, buffer: ReplayBuffer) -> Any:
    """Return what a function puts into a queue in another process."""
    context: Any = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=target, args=(buffer, answers))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    return answers.get()


@pytest.mark.parametrize(
    ("kind", "method", "count"),
    [
        *((kind, "fork", 4) for kind in KINDS),
        (LazyTensorStorage, "fork", 0),
        (LazyTensorStorage, "spawn", 4),
        (LazyMemmapStorage, "spawn", 4),
    ],
)
def test_another_process_reads_and_does_not_write(kind: Any, method: str, count: int) -> None:
    buffer = made(kind, count)
    found, values = elsewhere(method, attempt, buffer)
    assert all("process that made it" in message for message in found), found
    assert values == list(range(count))
    assert buffer.extend(rows(count, 3)).tolist() == list(range(count, count + 3))
    assert numbers(buffer) == list(range(count + 3))


def assign(buffer: ReplayBuffer, answers: Any) -> None:
    try:
        buffer[torch.tensor([1, 2])] = rows(50, 2)
    except UsageError as error:
        answers.put(error.message)
    else:
        answers.put("assigned")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_values_are_set_where_others_see_them(method: str) -> None:
    shared, later = made(LazyTensorStorage), ReplayBuffer(LazyTensorStorage(10).share_memory_())
    shared.storage.share_memory_()  # type: ignore[attr-defined]
    later.extend(rows(0, 4))
    for buffer in (made(LazyMemmapStorage), shared, later):
        assert elsewhere(method, assign, buffer) == "assigned"
        assert numbers(buffer) == [0, 50, 51, 3]
    private = made(LazyTensorStorage)
    if method == "fork":  # what is passed to a spawned process is shared
        assert "would not be seen" in elsewhere(method, assign, private)
        assert numbers(private) == [0, 1, 2, 3]
    assert "would not be seen" in elsewhere(method, assign, made(ListStorage))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_with_memory_of_its_own_is_a_buffer_of_its_own(kind: Any, copied: Any) -> None:
    buffer = made(kind)
    other = copied(buffer)
    if kind is LazyMemmapStorage:
        with pytest.raises(UsageError, match="a copy writes"):
            other.extend(rows(50, 2))
    else:
        other.extend(rows(50, 2))
    buffer.extend(rows(4, 1))
    assert numbers(buffer) == [0, 1, 2, 3, 4]
    assert numbers(other) == [0, 1, 2, 3] + [50, 51] * (kind is not LazyMemmapStorage)
