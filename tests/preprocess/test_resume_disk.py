"""Disks that are too small, or become full: an error, nothing lost, nothing left."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.errors import NoSpaceError
from tests.preprocess.oracle import digests
from tests.preprocess.runs import Notes, Shuffled, make
from tests.preprocess.stopping import (
    STAGES,
    goes_on,
    whole,
    work_of,
    write_parent,
)


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_parent(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return whole(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("after", [1, 7, 29])
@pytest.mark.parametrize("shards", [False, True])
def test_a_disk_that_becomes_full(
    parent: Path,
    wanted: dict[str, str],
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
    shards: bool,
) -> None:
    write, written = os.pwrite, [0]

    def full(handle: int, data: memoryview, at: int) -> int:
        written[0] += 1
        if written[0] > after:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data, at)

    notes = Notes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(NoSpaceError, match="became full"):
            make(
                parent, STAGES, tmp_path / "out", settings,
                executor=Shuffled(shards=shards), progress=notes,
            )  # fmt: skip
    assert not (tmp_path / "out").exists()
    assert notes.notes[-1].endswith("kept: add --resume to go on")
    assert len(goes_on(parent, tmp_path, settings, shards=shards)) <= 15
    assert digests(tmp_path / "out") == wanted


@pytest.mark.parametrize("shards", [False, True])
def test_a_disk_that_is_too_small(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch, shards: bool
) -> None:
    usage = type("Usage", (), {"free": (1 << 20) + 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(NoSpaceError, match=r"has 1\.0 MiB free"):
        make(parent, STAGES, tmp_path / "out", settings, executor=Shuffled(shards=shards))
    assert not work_of(tmp_path).path.exists()


def test_room_that_cannot_be_taken(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = [0]

    def full(*_: int) -> None:
        taken[0] += 1
        if taken[0] == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoSpaceError):
        make(parent, STAGES, tmp_path / "out", settings)
    assert not [path for path in work_of(tmp_path).path.rglob("*") if path.is_file()]
