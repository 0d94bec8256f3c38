"""One task writes its own rows and no other's, reads them back, and records what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from offline_data.config import Settings
from offline_data.errors import AuditError, FormatError, IntegrityError
from offline_data.ids import parse_id
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.header import header_of
from offline_data.preprocess.options import Options
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.placed import PlacedFiles, allocate
from offline_data.preprocess.plan import Plan
from offline_data.preprocess.preparing import prepare
from offline_data.preprocess.recipe import Revised
from offline_data.preprocess.spec import Stage, recipe_of
from offline_data.preprocess.steps.base import Revision, Selection, Step
from offline_data.preprocess.tasks import Finished, MeasureJob, WriteJob, parent_reader
from offline_data.preprocess.work import Work
from offline_data.store.layout import LayoutName
from offline_data.store.reader import open_reader
from tests.preprocess.oracle import digests
from tests.preprocess.runs import LENGTHS, make, small_groups, write_plain

CLIP = "clip:action,low=-5000"


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_groups(monkeypatch, rows=4, width=45)
    return write_plain(tmp_path / "toy")


def job_of(
    parent: Path, work: Work, stage: Stage, *, in_place: bool = True, layout: LayoutName = "compact"
) -> WriteJob:
    reader = open_reader(parent)
    options = Options(layout=layout, chunksize=1)
    plan = prepare(reader, recipe_of([stage]), options, lambda *_: [], in_place=in_place).plan
    assert plan.count > 4
    header = header_of(parse_id("local:new@1"), plan, reader, "", Options())
    if plan.in_place:
        allocate(work.dataset, plan.sizes)
    return WriteJob(plan, work, header, "all", durable=not plan.in_place)


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_rows_of_others_are_left_alone(parent: Path, tmp_path: Path, layout: LayoutName) -> None:
    """Every file is filled with a pattern; after one task the rest of it is as it was."""
    work = Work(tmp_path / "work")
    job = job_of(parent, work, CLIP, layout=layout)
    files = {name: work.dataset / name for name in job.plan.sizes}
    seen = {name: np.zeros(path.stat().st_size, int) for name, path in files.items()}
    for task in range(job.plan.count):
        for path in files.values():
            path.write_bytes(b"\xa5" * path.stat().st_size)
        assert job(task) == Finished(task, job.plan.rows_of(task))
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
    work = Work(tmp_path / "work")
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
    job = job_of(parent, Work(tmp_path / "work"), CLIP)
    append = PlacedFiles.append

    def losing(self: PlacedFiles, name: str, data: Any) -> None:
        append(self, name, data * 0 if name.startswith("observations") else data)

    monkeypatch.setattr(PlacedFiles, "append", losing)
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
            raise Revision(replace(self, told=True), "found late")
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
    job = job_of(parent, Work(tmp_path / "work"), Strange(what))
    with pytest.raises(error, match=text):
        list(map(job, range(job.plan.count)))
    assert len(job.work.finished(job.plan.count)) < job.plan.count


def test_a_finding_is_an_answer_not_an_error(parent: Path, tmp_path: Path) -> None:
    job = job_of(parent, Work(tmp_path / "work"), Strange("revises"))
    answers = [job(task) for task in range(job.plan.count)]
    found = [answer for answer in answers if isinstance(answer, Revised)]
    assert [(one.number, one.state, one.reason) for one in found] == [
        (0, {"told": True}, "found late")
    ]
    assert len(job.work.finished(job.plan.count)) == job.plan.count - 1
    measuring = MeasureJob(job.plan, Selection())
    assert [isinstance(measuring(task), Revised) for task in range(job.plan.count)] == [
        isinstance(answer, Revised) for answer in answers
    ]


def test_a_parent_that_becomes_another_dataset_meanwhile(parent: Path, tmp_path: Path) -> None:
    import shutil

    job = job_of(parent, Work(tmp_path / "work"), CLIP)
    job(0)
    shutil.rmtree(parent)
    write_plain(parent, [*LENGTHS[:-1], 9])
    parent_reader.cache_clear()
    with pytest.raises(IntegrityError, match="was replaced while another one was made of it"):
        job(1)


def test_shards_and_places_hold_the_same_bytes(
    parent: Path, tmp_path: Path, settings: Settings
) -> None:
    in_place, apart = Work(tmp_path / "a"), Work(tmp_path / "b")
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
