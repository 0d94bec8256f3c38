"""One process writes, the one that made the storage; nothing is lost silently in others."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from offline_data.base.errors import UsageError
from offline_data.torchrl.buffer import ReplayBuffer
from offline_data.torchrl.storages import LazyMemmapStorage, LazyTensorStorage, ListStorage

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


def elsewhere(method: str, target: Any, passed: Any, *, count: int = 1) -> Any:
    """Return what a function puts into a queue in another process: a list, if more than one."""
    context: Any = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    process = context.Process(target=target, args=(passed, answers))
    process.start()
    process.join(600)
    assert process.exitcode == 0
    found = [answers.get() for _ in range(count)]
    return found if count > 1 else found[0]


def check_refused(buffer: ReplayBuffer, count: int, answer: Any) -> None:
    """What another process wrote is not there, and this one goes on writing."""
    found, values = answer
    assert all("process that created the storage" in message for message in found), found
    assert values == list(range(count))
    assert buffer.extend(rows(count, 3)).tolist() == list(range(count, count + 3))
    assert numbers(buffer) == list(range(count + 3))


@pytest.mark.parametrize(
    ("kind", "count"), [*((kind, 4) for kind in KINDS), (LazyTensorStorage, 0)]
)
def test_another_process_reads_and_does_not_write(kind: Any, count: int) -> None:
    buffer = made(kind, count)
    check_refused(buffer, count, elsewhere("fork", attempt, buffer))


def assign(buffer: ReplayBuffer, answers: Any) -> None:
    try:
        buffer[torch.tensor([1, 2])] = rows(50, 2)
    except UsageError as error:
        answers.put(error.message)
    else:
        answers.put("assigned")


def seen_elsewhere() -> list[ReplayBuffer]:
    """Make buffers whose values are in files or in shared memory, before or after rows came."""
    shared, later = made(LazyTensorStorage), ReplayBuffer(LazyTensorStorage(10).share_memory_())
    shared.storage.share_memory_()  # type: ignore[attr-defined]
    later.extend(rows(0, 4))
    return [made(LazyMemmapStorage), shared, later]


def test_values_are_set_where_others_see_them() -> None:
    for buffer in seen_elsewhere():
        assert elsewhere("fork", assign, buffer) == "assigned"
        assert numbers(buffer) == [0, 50, 51, 3]
    private = made(LazyTensorStorage)
    for buffer in (private, made(ListStorage)):
        assert "would not reach" in elsewhere("fork", assign, buffer)
    assert numbers(private) == [0, 1, 2, 3]


def attempt_and_assign(buffers: Any, answers: Any) -> None:
    readers, writers, private = buffers
    for buffer in readers:
        attempt(buffer, answers)
    for buffer in (*writers, private):
        assign(buffer, answers)


@pytest.mark.slow
def test_a_spawned_process_is_like_a_forked_one() -> None:
    """But what is passed to it is shared: here all of it in one process, which takes long to start."""
    readers = [made(LazyTensorStorage), made(LazyMemmapStorage)]
    writers, private = seen_elsewhere(), made(ListStorage)
    answers = elsewhere("spawn", attempt_and_assign, (readers, writers, private), count=6)
    for buffer, answer in zip(readers, answers[:2], strict=True):
        check_refused(buffer, 4, answer)
    assert answers[2:5] == ["assigned"] * 3
    assert [numbers(buffer) for buffer in writers] == [[0, 50, 51, 3]] * 3
    assert "would not reach" in answers[5]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])  # noqa: S301
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_with_memory_of_its_own_is_a_buffer_of_its_own(kind: Any, copied: Any) -> None:
    buffer = made(kind)
    other = copied(buffer)
    if kind is LazyMemmapStorage:
        with pytest.raises(UsageError, match="a copy would be lost"):
            other.extend(rows(50, 2))
    else:
        other.extend(rows(50, 2))
    buffer.extend(rows(4, 1))
    assert numbers(buffer) == [0, 1, 2, 3, 4]
    assert numbers(other) == [0, 1, 2, 3] + [50, 51] * (kind is not LazyMemmapStorage)
