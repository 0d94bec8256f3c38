from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest
import torch

from offline_data.buffers.samplers import (
    Sampler,
)


def actions(batch: Any) -> list[float]:
    found: list[float] = batch["action"][..., 0].tolist()
    return found


def test_a_batch_has_its_rows_as_they_are_when_it_is_handed_out(
    steps: Any, recording: Any, growing: Any
) -> None:
    buffer = growing(8, sampler=recording(), batch_size=2, prefetch=2)
    buffer.extend(steps([8]))
    assert actions(buffer.sample()) == [-1001, -1002]
    buffer.extend(steps([4], first_episode=6))  # rows 0 to 3, of which 2 and 3 are under way
    assert actions(buffer.sample()) == [-7003, -7004]
    buffer[4] = steps([1], first_episode=8)[0]
    assert actions(buffer.sample()) == [-9001, -1006]


def test_rows_written_are_in_batches_drawn_later(steps: Any, growing: Any) -> None:
    class All(Sampler):
        def sample(
            self,
            storage: Any,
            batch_size: int,  # noqa: ARG002
        ) -> tuple[torch.Tensor, dict[Any, Any]]:
            return torch.arange(len(storage)), {}

    buffer = growing(8, sampler=All(), batch_size=1, prefetch=2)
    buffer.extend(steps([2]))
    sizes = [len(buffer.sample())]
    buffer.extend(steps([1], first_episode=6))
    sizes += [len(buffer.sample()) for _ in range(4)]
    assert sizes == [2, 2, 2, 3, 3]


def test_what_is_derived_follows_what_is_written(steps: Any, recording: Any, growing: Any) -> None:
    def neighbour(batch: Any, rows: torch.Tensor, storage: Any) -> Any:
        after = (rows + 1).clamp(max=len(storage) - 1)
        return batch.set("after", storage.only(["action"]).gather(after)["action"][:, 0])

    buffer = growing(8, sampler=recording(), batch_size=1, prefetch=2, derived=[neighbour])
    buffer.extend(steps([3]))
    assert buffer.sample()["after"].tolist() == [-1002]
    buffer[2] = steps([1], first_episode=8)[0]
    assert buffer.sample()["after"].tolist() == [-9001]


@pytest.mark.parametrize("prefetch", [None, 2])
def test_writing_while_other_threads_sample(steps: Any, growing: Any, prefetch: int | None) -> None:
    """Each row's leaves are written together, and no batch has a half of one and one of another."""
    buffer = growing(16, batch_size=16, prefetch=prefetch)
    buffer.extend(steps([16]))
    stop, torn, seen = threading.Event(), list[Any](), set[int]()

    def read() -> None:
        while not stop.is_set():
            batch = buffer.sample()
            seen.update(batch["info", "code"].tolist())
            if not torch.equal(-batch["action"][:, 0].long(), batch["info", "code"]):
                torn.append(batch)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for episode in range(150):
        buffer.extend(steps([16], first_episode=episode))
    stop.set()
    for reader in readers:
        reader.join(60)
    assert torn == []
    assert len(seen) > 16


def test_no_thread_is_left_behind(steps: Any, growing: Any) -> None:
    def alive() -> set[int]:
        gc.collect()
        threads = [one for one in threading.enumerate() if one.name.startswith("offline-data")]
        return {thread.ident or 0 for thread in threads}

    before = alive()
    buffer = growing(batch_size=2, prefetch=3)
    buffer.extend(steps([3]))
    buffer.sample()
    assert alive() - before
    del buffer
    deadline = time.monotonic() + 30
    while alive() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive() - before
