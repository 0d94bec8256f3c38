"""What is decided before any of the work, what steps may not do, and what is noticed meanwhile."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from offline_data.base.config import Settings
from offline_data.base.errors import (
    AccessError,
    AuditError,
    IntegrityError,
    NoSpaceError,
)
from offline_data.pipeline.jobs.workdir import RangeWriter, WorkDir
from offline_data.pipeline.preprocess import plan as planning
from offline_data.pipeline.preprocess import tasks
from offline_data.pipeline.preprocess.job import Stage
from offline_data.pipeline.preprocess.steps.base import Revision
from offline_data.pipeline.preprocess.tasks import parent_reader
from offline_data.store.chunk import read_chunk, read_transitions
from offline_data.store.reader import open_reader
from offline_data.store.tables import LayoutWriter
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.preprocess.oracle import check, cut, digests, episodes_of
from tests.pipeline.preprocess.runs import (
    LENGTHS,
    Shuffled,
    make,
    small_groups,
    write_plain,
    write_rich,
)

CLIP = "clip:action,low=-5000"


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_groups(monkeypatch, rows=4, width=45)
    return write_plain(tmp_path / "toy")


def test_first_passes_are_taken_where_they_are_needed(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=4, width=5200)
    rich = write_rich(tmp_path / "rich")
    long = [number for number, length in enumerate(LENGTHS) if length > 1]
    returns = [sum(float(r["next", "reward"][0]) for r in one.rows) for one in episodes_of(rich)]
    small = [number for number, total in enumerate(returns) if -total > -800]
    assert 0 < len(small) < len(LENGTHS)
    cases: list[tuple[list[Stage], dict[str, Any], list[int], int]] = [
        (["filter:length > 1", "subsample:every=2"], {}, long[::2], 0),
        (["filter:length > 1", "filter:number >= 4"], {}, [n for n in long if n >= 4], 0),
        (["reward_scale:-1", "filter:return > -800"], {}, small, 1),
        (["filter:length == 1"], {"num_frames": 9}, [1, 3], 1),
        (["reward_scale:2", "filter:label == 'label 1'"], {}, [1, 4], 0),
    ]
    for number, (stages, options, wanted, passes) in enumerate(cases):
        dest, executor = tmp_path / str(number), Shuffled()
        make(rich, stages, dest, settings, executor=executor, **options)
        assert [int(one.extras["file",]) - 7000 for one in episodes_of(dest)] == wanted
        assert executor.passes == passes + 1


def test_figures_are_of_what_is_left_and_as_it_is_then(tmp_path: Path, settings: Settings) -> None:
    rich = write_rich(tmp_path / "rich")
    stages: list[Stage] = [
        "reward_scale:2", "filter:length > 1", "normalize:next.reward", "reward_shift:7",
    ]  # fmt: skip
    found = make(rich, stages, tmp_path / "out", settings, num_frames=20)
    kept = [one for one in cut(episodes_of(rich), 20) if len(one.rows) > 1]
    values = [2 * float(row["next", "reward"][0]) for one in kept for row in one.rows]
    learnt = found.manifest.converter["options"]["recipe"][2]["leaves"]["next/reward"]
    assert learnt["mean"][0] == pytest.approx(np.mean(values), rel=1e-12)
    assert learnt["std"][0] == pytest.approx(np.std(values), rel=1e-12)


def test_a_finding_travels_between_processes() -> None:
    found = pickle.loads(pickle.dumps(Revision({"told": True}, "found late", 2)))  # noqa: S301
    assert (found.number, found.state, found.reason) == (2, {"told": True}, "found late")


def test_an_episode_cut_where_it_is_terminated_is_not_truncated(
    tmp_path: Path, settings: Settings
) -> None:
    batch = toy_batch([4, 3])
    batch.steps["next", "terminated"][1] = True
    write_toy(tmp_path / "toy", [batch])
    make(tmp_path / "toy", ["clip:action,low=-9000"], tmp_path / "out", settings, num_frames=2)
    (one,) = episodes_of(tmp_path / "out")
    assert one.rows[-1]["next", "terminated"].all()
    assert not one.rows[-1]["next", "truncated"].any()


def test_a_lost_write_is_noticed(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RangeWriter.append

    def losing(self: RangeWriter, name: str, data: Any) -> None:
        append(self, name, data * 0 if name.startswith("steps") else data)

    monkeypatch.setattr(RangeWriter, "append", losing)
    with pytest.raises(AuditError, match="differs"):
        make(parent, [CLIP], tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()


def test_a_lost_write_of_one_task_is_noticed_while_the_next_is_computed(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RangeWriter.append
    make(parent, [CLIP], tmp_path / "whole" / "out", settings)

    def losing(self: RangeWriter, name: str, data: Any) -> None:
        is_first = not any(self._begin.values())
        append(self, name, data * 0 if is_first and name.startswith("steps") else data)

    before = psutil.Process().num_fds()
    monkeypatch.setattr(RangeWriter, "append", losing)
    with pytest.raises(AuditError, match="differs"):
        make(parent, [CLIP], tmp_path / "out", settings)
    monkeypatch.setattr(RangeWriter, "append", append)
    assert not (tmp_path / "out").exists()
    gc.collect()  # maps that the error's frames hold
    assert psutil.Process().num_fds() <= before
    make(parent, [CLIP], tmp_path / "out", settings, resume=True)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole" / "out")


def test_a_slow_disk_holds_the_function_back(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where every task is a single group."""
    monkeypatch.setattr(planning, "TASK_BYTES", 1)
    counts, lead = {"read": 0, "written": 0}, list[int]()
    write = LayoutWriter.append

    def reading(*args: Any) -> Any:
        counts["read"] += 1
        lead.append(counts["read"] - counts["written"])
        return read_chunk(*args)

    def writing(self: LayoutWriter, *args: Any) -> None:
        time.sleep(0.01)
        write(self, *args)
        counts["written"] += 1

    monkeypatch.setattr(tasks, "read_chunk", reading)
    monkeypatch.setattr(LayoutWriter, "append", writing)
    make(parent, [CLIP], tmp_path / "out", settings)
    assert len(lead) == 6
    assert max(lead) <= 3


def test_bytes_that_the_system_takes_piecemeal(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(parent, [CLIP], tmp_path / "whole" / "out", settings)
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: write(handle, data[:3], at))
    make(parent, [CLIP], tmp_path / "out", settings)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole" / "out")
    check(tmp_path / "out", episodes_of(tmp_path / "whole" / "out"))


def test_a_parent_that_becomes_another_dataset_meanwhile(
    parent: Path, tmp_path: Path, settings: Settings
) -> None:
    class Replacing(Shuffled):
        def run(self, job: Any, tasks: Any, progress: Any) -> Any:
            for answer in super().run(job, tasks, progress):
                yield answer
                shutil.rmtree(parent)
                write_plain(parent, [*LENGTHS[:-1], 9])
                parent_reader.cache_clear()

    with pytest.raises(IntegrityError, match="was replaced while another one was made of it"):
        make(parent, [CLIP], tmp_path / "out", settings, executor=Replacing())


def test_where_a_plan_cannot_be_saved_nothing_is_left(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpaceError):
        make(parent, [CLIP], tmp_path / "out", settings)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "root") == ["toy"]


def test_records_that_cannot_be_deleted_do_not_count_for_the_next_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = WorkDir(tmp_path / "work")
    work.write_record(0, {}, {}, {}, durable=True)
    unlink = os.unlink

    def guarded(path: str, **more: int) -> None:
        if str(path).endswith(work.record(0).name):
            raise PermissionError(13, "not yours", str(path))
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", guarded)
    with pytest.raises(AccessError, match="not yours"):
        work.clear()


def test_single_transitions_are_as_the_dataset_has_them(parent: Path) -> None:
    """Those that a function is tried on are not truncated because they are read alone."""
    reader = open_reader(parent)
    rows = np.array([0, 1, 4])
    chunk = read_transitions(reader, rows)
    for key, column in chunk.batch.steps.items():
        np.testing.assert_array_equal(column, reader.step(key)[rows])
    assert chunk.step_numbers.tolist() == (rows - reader.starts[chunk.episodes]).tolist()
