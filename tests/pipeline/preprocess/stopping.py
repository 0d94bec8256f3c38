"""Runs that were stopped, for tests that go on with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offline_data.base.config import Settings
from offline_data.pipeline.jobs.workdir import WorkDir
from offline_data.pipeline.preprocess import plan as planning
from tests.pipeline.preprocess.oracle import digests
from tests.pipeline.preprocess.runs import Shuffled, Stopping, make, small_groups, write_plain

ROOT = Path(__file__).resolve().parents[3]


STAGES = ["clip:action,low=-8000", "normalize:observation.state"]


OTHER = ["clip:action,low=-7000"]


LENGTHS = [4] * 30


GROUP_BYTES = 350


def write_parent(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Write thirty episodes, which make fifteen tasks."""
    small_groups(patch, rows=1, width=GROUP_BYTES)
    patch.setattr(planning, "TASK_BYTES", GROUP_BYTES)
    return write_plain(folder / "toy", LENGTHS)


def whole(folder: Path) -> dict[str, str]:
    """Return the digests of what a run makes that is not stopped."""
    settings = Settings(folder / "root", offline=True, workers=1, minari_path=folder)
    with pytest.MonkeyPatch.context() as patch:
        parent = write_parent(folder, patch)
        make(parent, STAGES, folder / "out", settings, executor=Shuffled())
    return digests(folder / "out")


def work_of(tmp_path: Path) -> WorkDir:
    return WorkDir(tmp_path / ".out.preprocess")


def stopped(
    parent: Path, tmp_path: Path, settings: Settings, after: int = 5, *, shards: bool = False
) -> Stopping:
    """Leave a run behind that was interrupted after so many tasks, its first pass not counted."""
    measures = 15
    executor = Stopping(measures + after, shards=shards)
    with pytest.raises(KeyboardInterrupt):
        make(parent, STAGES, tmp_path / "out", settings, executor=executor)
    assert len(work_of(tmp_path).numbers()) == after
    return executor


def goes_on(
    parent: Path, tmp_path: Path, settings: Settings, *, shards: bool = False, **more: Any
) -> list[int]:
    """Go on; returns the tasks that were run."""
    executor = Shuffled(shards=shards)
    make(parent, STAGES, tmp_path / "out", settings, executor=executor, resume=True, **more)
    assert not work_of(tmp_path).path.exists()
    return sorted(executor.ran)
