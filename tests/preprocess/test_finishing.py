"""From finished tasks to a dataset: nothing missing, nothing too long, nothing of an earlier try."""

from __future__ import annotations

from pathlib import Path

import pytest

from offline_data.config import Settings
from offline_data.errors import IntegrityError
from offline_data.ids import parse_id
from offline_data.preprocess.finishing import finish
from offline_data.preprocess.header import header_of
from offline_data.preprocess.options import Options
from offline_data.preprocess.preparing import prepare
from offline_data.preprocess.spec import recipe_of
from offline_data.preprocess.tasks import WriteJob
from offline_data.preprocess.work import Work
from offline_data.store.layout import LayoutName
from offline_data.store.reader import DatasetReader, open_reader
from offline_data.store.verify import verify
from tests.preprocess.oracle import check, episodes_of
from tests.preprocess.runs import small_groups, write_rich

HEADS = "clip:action,low=-100000"


@pytest.fixture(params=["compact", "ted"])
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> DatasetReader:
    small_groups(monkeypatch, rows=4, width=5200)
    return open_reader(write_rich(tmp_path / "rich", layout=request.param))


def done(reader: DatasetReader, tmp_path: Path, layout: LayoutName = "compact") -> WriteJob:
    """Do all tasks, as shards."""
    options = Options(layout=layout, chunksize=1)
    plan = prepare(reader, recipe_of([HEADS]), options, lambda *_: [], in_place=False).plan
    header = header_of(parse_id("local:new@1"), plan, reader, "", Options())
    job = WriteJob(plan, Work(tmp_path / "work"), header, "all", durable=True)
    for task in range(plan.count):
        job(task)
    return job


def finished(job: WriteJob, reader: DatasetReader) -> None:
    finish(job.plan, job.work, job.header, "all", reader)


@pytest.mark.parametrize("layout", ["compact", "ted"])
def test_shards_are_laid_end_to_end(
    reader: DatasetReader, tmp_path: Path, layout: LayoutName
) -> None:
    job = done(reader, tmp_path, layout)
    assert job.plan.count > 4
    for _ in range(2):
        finished(job, reader)
        check(job.work.dataset, episodes_of(reader.path))
        assert verify(job.work.dataset) == ()


def test_a_task_that_is_not_finished(reader: DatasetReader, tmp_path: Path) -> None:
    job = done(reader, tmp_path)
    job.work.record(2).unlink()
    with pytest.raises(IntegrityError, match=rf"Tasks \[2\] of {job.plan.count} are not finished"):
        finished(job, reader)


@pytest.mark.parametrize("more", [-1, 1])
def test_a_shard_of_another_size(reader: DatasetReader, tmp_path: Path, more: int) -> None:
    job = done(reader, tmp_path)
    path = min(job.work.shard(1).rglob("rows.memmap"))
    size = path.stat().st_size // 5
    path.write_bytes(path.read_bytes()[:-size] if more < 0 else path.read_bytes() + bytes(size))
    with pytest.raises(IntegrityError, match=r"has \d+ bytes of new rows"):
        finished(job, reader)
    assert not (job.work.dataset / "manifest.json").exists()


def test_what_an_earlier_try_left(
    reader: DatasetReader, tmp_path: Path, settings: Settings
) -> None:
    job = done(reader, tmp_path)
    for name in ("manifest.json", "steps/meta.json", "episodes/rows.memmap", "steps/old.memmap"):
        (job.work.dataset / name).parent.mkdir(parents=True, exist_ok=True)
        (job.work.dataset / name).write_text("of an earlier try")
    finished(job, reader)
    assert verify(job.work.dataset) == ()
    check(job.work.dataset, episodes_of(reader.path))
