"""The same dataset, to the byte, from a real Ray of two nodes on which a worker is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import offline_data
from offline_data.preprocess.executors.ray import RayExecutor
from offline_data.progress import SilentProgress
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.preprocess.executors.ray_cluster import two_nodes

pytestmark = [pytest.mark.ray, pytest.mark.slow]

LENGTHS = [7, 3, 12, 1, 9, 5, 8, 4] * 3


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def doubling(home: Path, *, die: bool) -> Callable[[Any], Any]:
    """Make a function of a row that says where it ran, and ends its process once in the middle."""

    def fn(td: Any) -> Any:
        (home / f"ran-{os.getpid()}").touch()
        killed = home / "killed"
        if die and int(td["index"]) == 60 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        td["next", "reward"] = td["next", "reward"] * 2
        td["action"] = td["action"] + 1
        return td

    return fn


def digests(path: Path) -> Any:
    return open_reader(path).manifest.digests


def test_two_nodes_and_a_killed_worker_give_the_same_bytes(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    write_toy(parent, [toy_batch(LENGTHS, text=True, images=True, unknown_final=(1,))])
    dataset = offline_data.open_dataset(parent)
    here, there = tmp_path / "here", tmp_path / "there"
    for home in (here, there):
        home.mkdir()
    dataset.preprocess(doubling(here, die=False), dest=tmp_path / "a", root=tmp_path)
    notes = Notes()
    with two_nodes() as cluster:
        dataset.preprocess(
            doubling(there, die=True),
            dest=tmp_path / "b",
            root=tmp_path,
            vectorize=False,
            num_chunks=8,
            engine=RayExecutor(cluster.address),
            progress=notes,
        )
    assert (there / "killed").exists()
    assert any("SIGKILL" in note or "died" in note or "killed" in note for note in notes.notes)
    workers = {path.name for path in there.glob("ran-*")} - {f"ran-{os.getpid()}"}
    assert len(workers) >= 2  # the one that was killed, and others; not this process
    assert digests(tmp_path / "a") == digests(tmp_path / "b")
    assert verify(tmp_path / "b") == ()
    manifest = open_reader(tmp_path / "b").manifest
    assert manifest.counts["transitions"] == sum(LENGTHS)
