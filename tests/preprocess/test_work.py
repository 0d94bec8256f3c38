"""What counts as finished: recorded, of this start of the machine or durable, and still there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.episodes import Key
from offline_data.errors import AccessError
from offline_data.preprocess import work as module
from offline_data.preprocess.placed import PlacedFiles, Range
from offline_data.preprocess.work import Record, Work


def record(number: int, written: Mapping[str, Range] | None = None) -> Record:
    columns: dict[Key, Any] = {("start",): np.array([0, 3]), ("file",): np.array([number, 7])}
    return Record(columns, {"counts": {"episodes": 2}, "audit": [1, 2]}, written or {})


def test_records_come_back(tmp_path: Path) -> None:
    work = Work(tmp_path / "work")
    assert work.finished(3) == []
    work.write_record(2, record(5), durable=True)
    work.write_record(0, record(4), durable=False)
    assert (work.finished(3), work.recorded()) == ([0, 2], 2)
    found = work.read_record(2)
    assert found is not None
    assert found.counts == record(5).counts
    assert {key: values.tolist() for key, values in found.columns.items()} == {
        ("start",): [0, 3],
        ("file",): [5, 7],
    }


def test_what_may_not_have_outlived_a_crash_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path)
    work.write_record(0, record(0), durable=False)
    work.write_record(1, record(1), durable=True)
    monkeypatch.setattr(module, "boot_id", lambda: "another start")
    assert work.finished(2) == [1]
    monkeypatch.setattr(module, "boot_id", lambda: None)
    work.write_record(0, record(0), durable=False)
    assert work.finished(2) == [1]


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    work = Work(tmp_path)
    work.write_record(0, record(0), durable=True)
    path = work.record(0)
    whole = path.read_bytes()
    for damaged in (b"", whole[:-1], whole[:200], whole.replace(b"episodes", b"episodeS")):
        path.write_bytes(damaged)
        assert work.finished(1) == []
    path.write_bytes(whole)
    assert work.finished(1) == [0]


@pytest.mark.parametrize("in_place", [False, True])
def test_rows_that_were_lost_are_not_sound(tmp_path: Path, in_place: bool) -> None:
    work = Work(tmp_path)
    for task in range(3):
        folder = work.dataset if in_place else work.shard(task)
        with PlacedFiles(folder, {"rows": 10 * task if in_place else 0}) as files:
            files.append("rows", bytes([task + 1] * 10))
            files.append("empty", b"")
        work.write_record(task, record(task, written=files.written), durable=True)
    assert work.sound(3, in_place=in_place) == [0, 1, 2]
    path = (work.dataset if in_place else work.shard(1)) / "rows"
    content = bytearray(path.read_bytes())
    content[13 if in_place else 3] = 0
    path.write_bytes(content)
    assert work.sound(3, in_place=in_place) == [0, 2]
    assert work.finished(3) == [0, 1, 2]
    path.unlink()
    assert work.sound(3, in_place=in_place) == ([] if in_place else [0, 2])


def test_what_a_try_to_finish_left_goes(tmp_path: Path) -> None:
    work = Work(tmp_path)
    for name in ("steps/rows", "steps/meta.json", "episodes/rows", "manifest.json"):
        (work.dataset / name).parent.mkdir(parents=True, exist_ok=True)
        (work.dataset / name).write_text(name)
    work.keep_only({"steps/rows"})
    assert [path for path in work.dataset.rglob("*") if path.is_file()] == [
        work.dataset / "steps/rows"
    ]


def test_clearing(tmp_path: Path) -> None:
    work = Work(tmp_path / "work")
    work.clear()
    work.write_plan({"a": 1}, {("x",): np.arange(3)})
    work.write_record(0, record(0), durable=True)
    assert work.read_plan() == {"a": 1}
    work.clear()
    assert work.read_plan() is None
    assert not work.path.exists()


def test_records_that_cannot_be_deleted_do_not_count_for_the_next_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path / "work")
    work.write_record(0, record(0), durable=True)
    unlink = os.unlink

    def guarded(path: str, **more: int) -> None:
        if str(path).endswith(work.record(0).name):
            raise PermissionError(13, "not yours", str(path))
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", guarded)
    with pytest.raises(AccessError, match="not yours"):
        work.clear()


def test_a_work_folder_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AccessError):
        Work(tmp_path / "file" / "work").clear()
