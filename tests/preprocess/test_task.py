"""Tasks write their rows, record that they have, and notice what was lost."""

from __future__ import annotations

import json
import os
import pickle
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from offline_data.config import Settings
from offline_data.episodes import Key
from offline_data.errors import AccessError, AuditError, FormatError, IntegrityError, StepError
from offline_data.ids import parse_id
from offline_data.preprocess import workdir as module
from offline_data.preprocess.finish import header_of, recipe_json
from offline_data.preprocess.job import RunOptions
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.plan import Plan, prepare
from offline_data.preprocess.recipe import Stage, recipe_of
from offline_data.preprocess.steps.base import Revised, Selection, Step
from offline_data.preprocess.task import WriteJob, measure_task, parent_reader
from offline_data.preprocess.workdir import (
    Range,
    RangeWriter,
    Record,
    WorkDir,
    allocate,
    holds,
    write_checked,
)
from offline_data.store.layout import LayoutName
from offline_data.store.manifest import Manifest
from offline_data.store.reader import DatasetReader, open_reader
from tests.preprocess.oracle import digests
from tests.preprocess.runs import LENGTHS, make, small_groups, write_plain, write_rich

CLIP = "clip:action,low=-5000"


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_groups(monkeypatch, rows=4, width=45)
    return write_plain(tmp_path / "toy")


def job_of(
    parent: Path,
    work: WorkDir,
    stage: Stage,
    *,
    in_place: bool = True,
    layout: LayoutName = "compact",
) -> WriteJob:
    reader = open_reader(parent)
    options = RunOptions(layout=layout, chunksize=1)
    plan = prepare(reader, recipe_of([stage]), options, lambda *_: [], in_place=in_place)
    assert plan.count > 4
    header = header_of(parse_id("local:new@1"), plan, reader, "", RunOptions())
    if plan.in_place:
        allocate(work.dataset, plan.sizes)
    return WriteJob(plan, work, header, "all", durable=not plan.in_place)


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_rows_of_others_are_left_alone(parent: Path, tmp_path: Path, layout: LayoutName) -> None:
    """Every file is filled with a pattern; after one task the rest of it is as it was."""
    work = WorkDir(tmp_path / "work")
    job = job_of(parent, work, CLIP, layout=layout)
    files = {name: work.dataset / name for name in job.plan.sizes}
    seen = {name: np.zeros(path.stat().st_size, int) for name, path in files.items()}
    for task in range(job.plan.count):
        for path in files.values():
            path.write_bytes(b"\xa5" * path.stat().st_size)
        assert job(task) == job.plan.rows_of(task)
        record = work.read_record(task)
        assert record is not None
        for name, (begin, size, _) in record.written.items():
            content = np.frombuffer(files[name].read_bytes(), np.uint8)
            outside = np.ones(len(content), bool)
            outside[begin : begin + size] = False
            assert (content[outside] == 0xA5).all()
            seen[name][begin : begin + size] += 1
    assert all((counts == 1).all() for counts in seen.values())


@pytest.mark.parametrize("in_place", [False, True])
def test_a_task_may_be_done_twice(
    parent: Path, tmp_path: Path, settings: Settings, in_place: bool
) -> None:
    work = WorkDir(tmp_path / "work")
    job = job_of(parent, work, CLIP, in_place=in_place)
    for task in (0, 3, 0, 1, 3):
        job(task)
    assert work.sound(job.plan.count, in_place=in_place) == [0, 1, 3]
    record = work.read_record(3)
    assert record is not None
    first, stop = (int(job.plan.groups[group]) for group in job.plan.tasks[3:5])
    assert record.columns["length",].tolist() == LENGTHS[first:stop]
    assert record.columns["start",][0] == 0
    assert record.counts["counts"]["transitions"] == sum(LENGTHS[first:stop])
    assert record.counts["audit"] == [sum(LENGTHS[first:stop]), stop - first]


def test_a_lost_write_is_noticed(
    parent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(parent, WorkDir(tmp_path / "work"), CLIP)
    append = RangeWriter.append

    def losing(self: RangeWriter, name: str, data: Any) -> None:
        append(self, name, data * 0 if name.startswith("observations") else data)

    monkeypatch.setattr(RangeWriter, "append", losing)
    with pytest.raises(AuditError, match="differs"):
        job(0)
    assert job.work.finished(job.plan.count) == []


@dataclass(frozen=True)
class Strange(Step):
    """Does what no step may do, from some episode on."""

    name: ClassVar[str] = "strange"

    what: str
    told: bool = field(default=False, metadata={"state": True})

    def state(self) -> dict[str, Any]:
        return {"told": self.told}

    def with_state(self, state: Mapping[str, Any]) -> Strange:
        return replace(self, told=state["told"])

    def apply(self, piece: Piece) -> Piece:
        if piece.episodes.tolist() != [4]:
            return piece
        if self.what == "revises":
            raise Revised(replace(self, told=True).state(), "found late")
        if self.what == "shortens":
            steps = {key: column[:-1] for key, column in piece.batch.steps.items()}
            observations = {key: column[:-1] for key, column in piece.batch.observations.items()}
            lengths = piece.batch.lengths - 1
            batch = replace(piece.batch, lengths=lengths, steps=steps, observations=observations)
            return replace(piece, batch=batch)
        action = piece.batch.steps["action",]
        return piece.having(steps={**piece.batch.steps, ("action",): np.repeat(action, 2, axis=1)})


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        ("shortens", StepError, "changed lengths of episodes"),
        ("widens", FormatError, r"rows of shape \[2\], expected \[1\]"),
    ],
)
def test_steps_that_break_their_promise(
    parent: Path, tmp_path: Path, what: str, error: type[Exception], text: str
) -> None:
    job = job_of(parent, WorkDir(tmp_path / "work"), Strange(what))
    with pytest.raises(error, match=text):
        list(map(job, range(job.plan.count)))
    assert len(job.work.finished(job.plan.count)) < job.plan.count


def test_a_finding_can_be_sent_to_another_process(parent: Path, tmp_path: Path) -> None:
    job = job_of(parent, WorkDir(tmp_path / "work"), Strange("revises"))
    measuring = partial(measure_task, job.plan, Selection())
    found = []
    for task in range(job.plan.count):
        try:
            job(task)
        except Revised as error:
            found.append((task, pickle.loads(pickle.dumps(error))))  # noqa: S301 - made here
            with pytest.raises(Revised):
                measuring(task)
        else:
            measuring(task)
    ((late, one),) = found
    assert (one.number, one.state, one.reason) == (0, {"told": True}, "found late")
    assert set(range(job.plan.count)).difference(job.work.finished(job.plan.count)) == {late}


def test_a_parent_that_becomes_another_dataset_meanwhile(parent: Path, tmp_path: Path) -> None:
    import shutil

    job = job_of(parent, WorkDir(tmp_path / "work"), CLIP)
    job(0)
    shutil.rmtree(parent)
    write_plain(parent, [*LENGTHS[:-1], 9])
    parent_reader.cache_clear()
    with pytest.raises(IntegrityError, match="was replaced while another one was made of it"):
        job(1)


def test_shards_and_places_hold_the_same_bytes(
    parent: Path, tmp_path: Path, settings: Settings
) -> None:
    in_place, apart = WorkDir(tmp_path / "a"), WorkDir(tmp_path / "b")
    for work, there in ((in_place, True), (apart, False)):
        job = job_of(parent, work, CLIP, in_place=there, layout="ted")
        for task in range(job.plan.count):
            job(task)
    plan: Plan = job.plan
    for name in plan.sizes:
        if name == "ted/episode.memmap":
            continue  # counted in the task there
        parts = [(apart.shard(task) / name).read_bytes() for task in range(plan.count)]
        assert b"".join(parts) == (in_place.dataset / name).read_bytes(), name
    make(parent, [CLIP], tmp_path / "out", settings, layout="ted")
    assert set(digests(tmp_path / "out")) >= set(plan.sizes)


def record(number: int, written: Mapping[str, Range] | None = None) -> Record:
    columns: dict[Key, Any] = {("start",): np.array([0, 3]), ("file",): np.array([number, 7])}
    return Record(columns, {"counts": {"episodes": 2}, "audit": [1, 2]}, written or {})


def test_what_may_not_have_outlived_a_crash_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = WorkDir(tmp_path)
    work.write_record(0, record(0), durable=False)
    work.write_record(1, record(1), durable=True)
    monkeypatch.setattr(module, "boot_id", lambda: "another start")
    assert work.finished(2) == [1]
    monkeypatch.setattr(module, "boot_id", lambda: None)
    work.write_record(0, record(0), durable=False)
    assert work.finished(2) == [1]


@pytest.mark.parametrize("in_place", [False, True])
def test_rows_that_were_lost_are_not_sound(tmp_path: Path, in_place: bool) -> None:
    work = WorkDir(tmp_path)
    for task in range(3):
        folder = work.dataset if in_place else work.shard(task)
        with RangeWriter(folder, {"rows": 10 * task if in_place else 0}) as files:
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


def test_clearing(tmp_path: Path) -> None:
    work = WorkDir(tmp_path / "work")
    work.clear()
    write_checked(work.plan, {"a": 1}, {("x",): np.arange(3)}, durable=True)
    work.write_record(0, record(0), durable=True)
    assert work.read_plan() == {"a": 1}
    work.clear()
    assert work.read_plan() is None
    assert not work.path.exists()


def test_records_that_cannot_be_deleted_do_not_count_for_the_next_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = WorkDir(tmp_path / "work")
    work.write_record(0, record(0), durable=True)
    unlink = os.unlink

    def guarded(path: str, **more: int) -> None:
        if str(path).endswith(work.record(0).name):
            raise PermissionError(13, "not yours", str(path))
        unlink(path, **more)

    monkeypatch.setattr(os, "unlink", guarded)
    with pytest.raises(AccessError, match="not yours"):
        work.clear()


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    rows = np.arange(1, 121, dtype=np.uint32)
    allocate(tmp_path, {"a/rows": rows.nbytes})
    with (
        RangeWriter(tmp_path, {"a/rows": 4 * 50}) as second,
        RangeWriter(tmp_path, {"a/rows": 0}) as first,
    ):
        second.append("a/rows", rows[50:70])
        first.append("a/rows", rows[:30])
        second.append("a/rows", rows[70:])
        first.append("a/rows", rows[30:50])
        first.append("b", b"")
        first.append("b", b"xyz")
    np.testing.assert_array_equal(np.fromfile(tmp_path / "a/rows", np.uint32), rows)
    assert (tmp_path / "b").read_bytes() == b"xyz"
    head, tail = rows[:50].tobytes(), rows[50:].tobytes()
    assert first.written["a/rows"] == (0, 200, zlib.crc32(head))
    assert second.written == {"a/rows": (200, 280, zlib.crc32(tail))}


def test_bytes_that_the_system_takes_piecemeal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: whole(handle, data[:3], at))
    with RangeWriter(tmp_path, {"one": 5}) as files:
        files.append("one", b"0123456789")
        files.append("one", np.array([[1, 2]], np.uint8))
    assert (tmp_path / "one").read_bytes() == bytes(5) + b"0123456789\x01\x02"


def test_files_get_their_sizes_and_keep_what_they_hold(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    (tmp_path / "long").write_bytes(b"abcdef")
    sizes = {"short": 5, "long": 4, "below/new": 6, "empty": 0}
    for _ in range(2):
        allocate(tmp_path, sizes)
        assert {name: (tmp_path / name).stat().st_size for name in sizes} == sizes
    assert (tmp_path / "short").read_bytes() == b"abc\0\0"
    assert (tmp_path / "long").read_bytes() == b"abcd"
    assert (tmp_path / "below/new").stat().st_blocks > 0


def test_what_was_written_is_recognised(tmp_path: Path) -> None:
    with RangeWriter(tmp_path, {"one": 2}) as files:
        files.append("one", b"rows")
        files.append("two", b"")
    assert holds(tmp_path, files.written)
    path = tmp_path / "one"
    for damaged in (b"xxrow", b"xxroWs", b"xxsrow", b""):
        path.write_bytes(damaged)
        assert not holds(tmp_path, files.written)
    path.write_bytes(b"..rows...")
    assert holds(tmp_path, files.written)
    path.unlink()
    assert not holds(tmp_path, files.written)


SPACES = {"observation": {"low": 1}, "action": {"low": 2}, "state": {"low": 3}, "goal": {"low": 4}}


def measured(plan: Plan, step: Any) -> list[Any]:
    job: Any = partial(measure_task, plan, step)
    return [one for task in range(plan.count) for one in job(task)]


@pytest.fixture(params=["compact", "ted"])
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> DatasetReader:
    folder = write_rich(tmp_path / "rich", layout=request.param)
    path = folder / "manifest.json"
    more = {"spaces": SPACES, "notes": ["one"], "licence": "MIT", "citation": "Me"}
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    return open_reader(folder)


def header(reader: DatasetReader, stages: Sequence[str], frames: int | None = None) -> Manifest:
    options = RunOptions(num_frames=frames, layout="compact")
    plan = prepare(reader, recipe_of(stages), options, measured, in_place=True)
    return header_of(
        parse_id("local:new@abc"), plan, reader, "f" * 64, RunOptions(num_frames=frames)
    )


def test_where_an_episode_is_cut(reader: DatasetReader) -> None:
    found = header(reader, ["clip:action,low=1"], 6)
    assert found.notes[-1] == "Episode 2 of local:rich@7 is cut after 2 of 4 steps: truncated there"
    assert found.converter["options"]["num_frames"] == 6
    for whole in (4, 23, 24):
        assert header(reader, ["clip:action,low=1"], whole).notes == ("one",)


def test_what_steps_learnt_is_said_but_for_schemas(reader: DatasetReader) -> None:
    options = RunOptions()
    recipe = recipe_of(["normalize:observation.state"])
    plan = prepare(reader, recipe, options, measured, in_place=True)
    (told,) = recipe_json(plan.recipe)
    assert told["step"] == "normalize"
    assert set(told["leaves"]) == {"observation/state"}
    assert json.loads(json.dumps(told)) == told
