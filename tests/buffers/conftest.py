"""The dataset of the tests of rows, of which buffers give batches, and what tests of loaders share."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch

import offline_data
from tests.pipeline.ingest.here import conversions_start_no_process, processes
from tests.rows.conftest import (
    _one_thread,
    batch,
    compact,
    ds,
    folder,
    folders_of_batch,
    gathering,
    growing,
    new_sampler,
    own_folder,
    recording,
    steps,
    truth,
)
from tests.toys.sharded import install

__all__ = [
    "_one_thread",
    "batch",
    "compact",
    "conversions_start_no_process",
    "ds",
    "folder",
    "folders_of_batch",
    "gathering",
    "growing",
    "new_sampler",
    "own_folder",
    "processes",
    "recording",
    "steps",
    "truth",
]

ROWS = 40
PUBLIC = {name: getattr(offline_data, name) for name in vars(offline_data)["_names"]}
"""Names of expressions in tables."""


@pytest.fixture
def forty(toys: Callable[..., Path]) -> Path:
    """Forty transitions in five episodes."""
    return toys([9, 1, 13, 12, 5])


def rows(batches: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [*chain(*batches)]


@pytest.fixture
def shardtoy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the source of shards of text, for this process and those that it starts."""
    folder = install(tmp_path / "plugin")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path.cwd())]))


def assert_goes_on(
    make: Callable[[], Any], read: Callable[[Any], list[Any]], *taken: int, count: int = 2
) -> tuple[Any, Any]:
    """Check that others, with states saved after so many batches of an epoch, give the rest.

    As many as an epoch has: the iteration has not ended yet, and the rest is empty. Returns one that
    read all of `count` epochs, and the last other.
    """
    whole = make()
    epochs = [read(whole) for _ in range(count)]
    for number in taken:
        first, other = make(), make()
        batches = iter(first)
        assert read(islice(batches, number)) == epochs[0][:number]
        other.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))  # noqa: S301 - our own
        following = [epochs[0][number:], *epochs[1:]] if number <= len(epochs[0]) else epochs[1:]
        assert [read(other) for _ in following] == following
    return whole, other


def answer(answers: Any, work: Callable[[int], Any], rank: int) -> None:
    faulthandler.dump_traceback_later(100)  # before the one that waits gives up
    torch.set_num_threads(1)
    answers.put((rank, work(rank)))


def in_processes(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Call a function with a rank in new processes; return what they returned.

    Not forked: another thread of this process may hold a lock that its copy would wait for.
    """
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    started = [context.Process(target=answer, args=(answers, work, rank)) for rank in range(count)]
    for one in started:
        one.start()
    found = dict(answers.get(timeout=120) for _ in started)
    for one in started:
        one.join()
        assert one.exitcode == 0
    return [found[rank] for rank in range(count)]
