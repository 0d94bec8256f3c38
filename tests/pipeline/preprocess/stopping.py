"""Runs that were stopped, for tests that go on with them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from offline_data.base.config import Settings
from offline_data.pipeline.jobs.workdir import WorkDir
from offline_data.pipeline.preprocess import plan as planning
from offline_data.store.library import Stored
from tests.pipeline.preprocess.oracle import digests
from tests.pipeline.preprocess.runs import Shuffled, Stopping, make, small_groups, write_plain

STAGES = ["clip:action,low=-8000", "normalize:observation.state"]
OTHER = ["clip:action,low=-7000"]
TASKS = 15


@dataclass(frozen=True)
class Scene:
    """A dataset of thirty episodes, which make fifteen tasks, and the folder that it lies in."""

    folder: Path
    settings: Settings

    @classmethod
    def of(cls, folder: Path, settings: Settings, patch: pytest.MonkeyPatch) -> Scene:
        small_groups(patch, rows=1, width=350)
        patch.setattr(planning, "TASK_BYTES", 350)
        write_plain(folder / "toy", [4] * 2 * TASKS)
        return cls(folder, settings)

    @property
    def parent(self) -> Path:
        return self.folder / "toy"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def work(self) -> WorkDir:
        return WorkDir(self.folder / ".out.preprocess")

    def make(self, stages: Any = STAGES, dest: str = "out", **options: Any) -> Stored:
        return make(self.parent, stages, self.folder / dest, self.settings, **options)

    def whole(self, stages: Any = STAGES, **options: Any) -> dict[str, str]:
        """Return the digests of what a run makes that is not stopped."""
        return digests(self.make(stages, "whole/out", executor=Shuffled(), **options).path)

    def stop(self, after: int = 5, *, shards: bool = False) -> list[int]:
        """Leave a run behind that was interrupted after so many tasks, not counting its first pass.

        Returns these tasks.
        """
        executor = Stopping(TASKS + after, shards=shards)
        with pytest.raises(KeyboardInterrupt):
            self.make(executor=executor)
        assert len(self.work.numbers()) == after
        return executor.ran[-after:]

    def go_on(self, *, shards: bool = False, **more: Any) -> list[int]:
        """Go on; returns the tasks that were run."""
        executor = Shuffled(shards=shards)
        self.make(executor=executor, resume=True, **more)
        assert not self.work.path.exists()
        return executor.ran
