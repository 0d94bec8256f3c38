"""Runs that were interrupted, killed, damaged or out of disk, and resumed."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import offline_data
from offline_data.base.config import Settings
from offline_data.base.errors import ManifestError, NoSpaceError, StepError, UsageError
from offline_data.pipeline.jobs.executors import InProcess
from offline_data.pipeline.preprocess import plan as planning
from offline_data.pipeline.preprocess.steps.base import Revision, Step
from offline_data.store.chunk import EpisodeChunk
from offline_data.store.manifest import read_manifest
from offline_data.store.reader import open_reader
from offline_data.store.verify import verify
from offline_data.testing.toy import toy_batch, write_toy
from tests.pipeline.preprocess.oracle import digests
from tests.pipeline.preprocess.runs import Notes, Shuffled, Stopping, make, write_plain
from tests.pipeline.preprocess.stopping import OTHER, TASKS, Scene
from tests.syncs import Syncs, files_in


@pytest.fixture
def scene(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene.of(tmp_path, settings, monkeypatch)


@pytest.mark.parametrize(("shards", "more"), [(False, {"num_chunks": 1}), (True, {})])
def test_going_on(scene: Scene, shards: bool, more: dict[str, Any]) -> None:
    done = scene.stop(shards=shards)
    assert not scene.out.exists()
    assert sorted([*scene.go_on(shards=shards, **more), *done]) == list(range(TASKS))
    assert digests(scene.out) == scene.whole()
    assert verify(scene.out) == ()


def test_a_stopped_run_that_is_started_over(scene: Scene) -> None:
    scene.stop()
    executor = Shuffled()
    scene.make(executor=executor, force=True)
    assert sorted(executor.ran) == sorted([*range(TASKS), *range(TASKS)])
    assert digests(scene.out) == scene.whole()


def test_another_recipe_begins_anew(scene: Scene) -> None:
    scene.stop()
    scene.make(OTHER)
    assert digests(scene.out) == scene.whole(OTHER)


def test_other_data_under_the_same_path(scene: Scene) -> None:
    scene.stop()
    shutil.rmtree(scene.parent)
    write_plain(scene.parent, [4] * 29 + [5])
    with pytest.raises(UsageError, match="or of other data"):
        scene.make(resume=True)
    assert scene.make().manifest.counts["transitions"] == 121


@dataclass(frozen=True)
class Doubling(Step):
    """Doubles rewards, once it has seen how; fails on an episode while a file is there."""

    name: ClassVar[str] = "doubling"

    trap: Path
    seen: bool = field(default=False, metadata={"state": True})

    def describe(self) -> dict[str, Any]:
        return {"step": self.name}

    def apply(self, chunk: EpisodeChunk) -> EpisodeChunk:
        if 20 in chunk.episodes and len(chunk.batch.lengths) == 2 and self.trap.exists():
            raise StepError("The function failed on row 80")
        if 29 in chunk.episodes and 28 in chunk.episodes and not self.seen:
            raise Revision(replace(self, seen=True).state(), "the last episode is different")
        factor = 2 if self.seen else 5
        reward = chunk.batch.steps["next", "reward"] * factor
        return chunk.having(steps={**chunk.batch.steps, ("next", "reward"): reward})

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def with_state(self, state: Mapping[str, Any]) -> Doubling:
        return replace(self, seen=state["seen"])


@pytest.mark.parametrize("shards", [False, True])
def test_finished_tasks_are_kept_when_a_step_fails_and_when_it_is_revised(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, shards: bool
) -> None:
    step, notes = Doubling(scene.folder / "trap"), Notes()
    with monkeypatch.context() as patch:
        syncs = Syncs(patch)
        whole = scene.make([step], "whole/out", executor=Shuffled(shards=shards)).path
    assert syncs.lacks(files_in(whole)) == []
    step.trap.touch()
    in_order = InProcess()
    in_order.shards = shards
    with pytest.raises(StepError, match="row 80"):
        scene.make([step], executor=in_order, progress=notes)
    assert notes.notes == ["10 finished tasks are kept: add --resume to continue"]
    step.trap.unlink()
    found = Shuffled(shards=shards)
    scene.make([step], executor=found, resume=True, progress=notes)
    assert notes.notes[1:] == [
        "resuming: 10 of 15 tasks done",
        "starting over: the last episode is different",
    ]
    assert sorted(found.ran) == sorted([14, *range(15)])
    assert digests(scene.out) == digests(whole)


def test_a_plan_that_is_refused_says_what_to_do(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.stop()
    monkeypatch.setattr("offline_data.pipeline.preprocess.plan.__version__", "99")
    with pytest.raises(ManifestError, match="made it, not 99") as caught:
        scene.make(resume=True)
    assert caught.value.shell_hint == "use --force to start over"
    scene.make(force=True)


@pytest.mark.parametrize("stop", [False, True])
def test_a_disk_that_is_hardly_larger_than_the_dataset(
    stop: bool, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 MB of rows where 13.4 MB are free, and nothing needs more than that meanwhile."""
    parent = write_plain(tmp_path / "plain", [100] * 142, width=200)
    size, disk = read_manifest(parent).bytes, 13_400_000
    assert size > 12_000_000

    def used() -> int:
        files = [file for file in settings.root.rglob("*") if file.is_file()]
        return sum(file.stat().st_blocks * 512 for file in files)

    peak: list[int] = []

    def free(_folder: Path) -> int:
        peak.append(used())
        return disk - peak[-1]

    monkeypatch.setattr("offline_data.base.files.free_bytes", free)
    job = ["clip:action,low=-1500,high=1500"], settings.root / "out", settings
    if stop:
        with pytest.raises(KeyboardInterrupt):
            make(parent, *job, executor=Stopping(2), chunksize=1000)
    make(parent, *job, executor=Shuffled(), chunksize=1000, resume=stop)
    assert max(*peak, used()) < disk
    before, after = (open_reader(path) for path in (parent, settings.root / "out"))
    actions = np.clip(before.step(("action",)), -1500, 1500)
    np.testing.assert_array_equal(after.step(("action",)), actions)
    seen = before.leaf("observations", ("observation", "state"))
    np.testing.assert_array_equal(after.leaf("observations", ("observation", "state")), seen)


@pytest.mark.parametrize("shards", [False, True])
def test_a_disk_that_is_too_small(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, shards: bool
) -> None:
    usage = type("Usage", (), {"free": (1 << 20) + 1000})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(NoSpaceError, match=r"has 1\.0 MiB free"):
        scene.make(executor=Shuffled(shards=shards))
    assert not scene.work.path.exists()


def test_room_that_cannot_be_taken(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [0]

    def full(*_: int) -> None:
        taken[0] += 1
        if taken[0] == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NoSpaceError):
        scene.make()
    assert not [path for path in scene.work.path.rglob("*") if path.is_file()]


# Between the opening of a file and the block that closes it, an interrupt leaves that to Python.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_at_any_line_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what publishes; every so many lines, from the first to the last.

    In turns, a dataset is replaced and made anew.
    """
    monkeypatch.setattr(planning, "GROUP_BYTES", 400)
    write_toy(tmp_path / "toy", [toy_batch([8] * 3)])
    ds = offline_data.open_dataset(tmp_path / "toy")
    files = tuple(
        f"offline_data/{name}.py"
        for name in ("pipeline/preprocess/engine", "pipeline/jobs/executors", "pipeline/jobs/workdir",
                     "pipeline/preprocess/finish", "pipeline/preprocess/plan",
                     "store/publish", "store/writer", "store/library")
    )  # fmt: skip
    dest, work = tmp_path / "out", tmp_path / ".out.preprocess"
    dest.mkdir()
    (tmp_path / "root").mkdir()

    def run(**more: Any) -> None:
        ds.preprocess("clip:action,low=-1", dest=dest, root=tmp_path / "root", chunksize=8, **more)

    run()
    stops = 0
    for target in range(1, 100_000, 113):
        count, replaces = 0, stops % 2 == 0
        if replaces:
            (dest / "notes.txt").write_text("mine")
        else:
            shutil.rmtree(dest)

        def trace(frame: object, event: str, _: object) -> object:
            nonlocal count
            if not frame.f_code.co_filename.endswith(files):  # type: ignore[attr-defined]
                return None
            if event == "line":
                count += 1
                if count == target:  # noqa: B023 - called while it has this value
                    sys.settrace(None)
                    signal.raise_signal(signal.SIGINT)
            return trace

        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            run(force=replaces)
            interrupted = False
        except KeyboardInterrupt as error:
            interrupted, said = True, str(error)
        finally:
            sys.settrace(None)
        if count < target:
            break
        stops += 1
        assert not replaces or (dest / "notes.txt").read_text() == "mine", target
        if interrupted and work.exists():
            assert "--resume" in said, target
            run(resume=True)
        elif interrupted and not dest.exists():
            assert "run the same command again" in said or not said, target
            run()
        assert not work.exists(), (target, sorted(work.rglob("*")))
        assert offline_data.open_dataset(dest)[:]["action"].min() == -1
    assert stops > 10
