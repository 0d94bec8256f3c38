"""A plan that was saved is the plan that is loaded; one that cannot be trusted is refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offline_data.errors import ManifestError, NoSpaceError
from offline_data.preprocess import saved
from offline_data.preprocess.options import Options
from offline_data.preprocess.plan import Plan
from offline_data.preprocess.preparing import prepare
from offline_data.preprocess.saved import load_plan, save_plan
from offline_data.preprocess.spec import recipe_of
from offline_data.preprocess.tasks import MeasureJob
from offline_data.preprocess.work import Work
from offline_data.store.reader import DatasetReader, open_reader
from tests.preprocess.runs import small_groups, write_rich

STAGES = ["subsample:every=2", "normalize:observation.state", "clip:action,low=-5000"]


def measured(plan: Plan, step: Any) -> list[Any]:
    job: Any = MeasureJob(plan, step)
    return [one for task in range(plan.count) for one in job(task)]


@pytest.fixture
def reader(tmp_path: Path) -> DatasetReader:
    return open_reader(write_rich(tmp_path / "rich"))


def plan_of(reader: DatasetReader) -> Plan:
    options = Options(num_frames=17, layout="ted")
    return prepare(reader, recipe_of(STAGES), options, measured, in_place=True).plan


def test_a_plan_comes_back(
    reader: DatasetReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_groups(monkeypatch, rows=3, width=5200)
    plan, work = plan_of(reader), Work(tmp_path / "work")
    assert plan.count > 1
    save_plan(work, plan, "f" * 64, {"more": 5})
    found = load_plan(work, recipe_of(STAGES), reader)
    for name in ("groups", "tasks"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plan, name))
    for name in ("episodes", "lengths"):
        np.testing.assert_array_equal(getattr(found.chosen, name), getattr(plan.chosen, name))
    for name in ("parent", "identity", "recipe", "layout", "schema", "in_place"):
        assert getattr(found, name) == getattr(plan, name), name
    assert dict(found.words) == dict(plan.words)
    assert (work.read_plan() or {})["fingerprint"] == "f" * 64
    assert (work.read_plan() or {})["more"] == 5


def test_damaged_plans_are_refused(reader: DatasetReader, tmp_path: Path) -> None:
    work = Work(tmp_path / "work")
    save_plan(work, plan_of(reader), "f" * 64)
    whole = work.plan.read_bytes()
    for at in range(0, len(whole), 97):
        work.plan.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ManifestError, match="its plan is damaged"):
            load_plan(work, recipe_of(STAGES), reader)
    work.plan.unlink()
    with pytest.raises(ManifestError, match="damaged"):
        load_plan(work, recipe_of(STAGES), reader)


def test_plans_of_another_version_are_refused(
    reader: DatasetReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path / "work")
    save_plan(work, plan_of(reader), "f" * 64)
    monkeypatch.setattr(saved, "package_version", lambda: "99.9")
    with pytest.raises(ManifestError, match=r"offline-data \S+ made it, not 99\.9"):
        load_plan(work, recipe_of(STAGES), reader)


def test_where_a_plan_cannot_be_saved_nothing_is_left(
    reader: DatasetReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work(tmp_path / "work")
    (work.dataset / "steps").mkdir(parents=True)
    (work.dataset / "steps" / "rows").write_bytes(b"room that was taken")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpaceError):
        save_plan(work, plan_of(reader), "f" * 64)
    assert not work.path.exists()
