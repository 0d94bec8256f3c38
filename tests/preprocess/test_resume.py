"""A run that was stopped goes on where it was, and ends in the same bytes; it is never guessed."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from offline_data.config import Settings
from offline_data.errors import ManifestError, UsageError
from offline_data.preprocess import work as working
from offline_data.preprocess.errors import StepError
from offline_data.preprocess.executors.local import InProcess
from offline_data.preprocess.piece import Piece
from offline_data.preprocess.steps.base import Revision, Step
from offline_data.store.verify import verify
from tests.preprocess.oracle import digests
from tests.preprocess.program import Watched
from tests.preprocess.runs import Notes, Shuffled, Stopping, make, write_plain
from tests.preprocess.stopping import (
    OTHER,
    STAGES,
    goes_on,
    stopped,
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


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("more", [{}, {"chunksize": 50}, {"num_chunks": 1}, {"workers": 3}])
def test_going_on(
    parent: Path,
    wanted: dict[str, str],
    tmp_path: Path,
    settings: Settings,
    shards: bool,
    more: dict[str, Any],
) -> None:
    before = stopped(parent, tmp_path, settings, shards=shards)
    done = before.ran[-5:]
    assert not (tmp_path / "out").exists()
    ran = goes_on(parent, tmp_path, settings, shards=shards, **more)
    assert sorted([*ran, *done]) == list(range(15))
    assert digests(tmp_path / "out") == wanted
    assert verify(tmp_path / "out") == ()


def test_stopped_again_and_again(
    parent: Path, wanted: dict[str, str], tmp_path: Path, settings: Settings
) -> None:
    stopped(parent, tmp_path, settings, after=2)
    ran = []
    for _ in range(5):
        executor = Stopping(2)
        with pytest.raises(KeyboardInterrupt):
            make(parent, STAGES, tmp_path / "out", settings, executor=executor, resume=True)
        ran += executor.ran
    ran += goes_on(parent, tmp_path, settings)
    assert len(ran) == len(set(ran)) == 13
    assert digests(tmp_path / "out") == wanted


def test_it_must_be_said_what_becomes_of_a_stopped_run(
    parent: Path, wanted: dict[str, str], tmp_path: Path, settings: Settings
) -> None:
    stopped(parent, tmp_path, settings)
    with pytest.raises(UsageError, match="This recipe was interrupted before") as caught:
        make(parent, STAGES, tmp_path / "out", settings)
    assert caught.value.hint == "use --resume to continue or --force to start over"
    with pytest.raises(UsageError, match="by another recipe, or of other data"):
        make(parent, OTHER, tmp_path / "out", settings, resume=True)
    with pytest.raises(UsageError, match="another recipe"):
        make(parent, STAGES, tmp_path / "out", settings, resume=True, num_frames=50)
    with pytest.raises(UsageError, match="writes layout 'compact', not 'ted'"):
        make(parent, STAGES, tmp_path / "out", settings, resume=True, layout="ted")
    with pytest.raises(UsageError, match="cannot go on on several"):
        make(
            parent, STAGES, tmp_path / "out", settings, resume=True, executor=Shuffled(shards=True)
        )
    assert work_of(tmp_path).recorded() == 5
    executor = Shuffled()
    make(parent, STAGES, tmp_path / "out", settings, executor=executor, force=True)
    assert sorted(executor.ran) == sorted([*range(15), *range(15)])
    assert digests(tmp_path / "out") == wanted


def test_another_recipe_begins_anew(parent: Path, tmp_path: Path, settings: Settings) -> None:
    stopped(parent, tmp_path, settings)
    make(parent, OTHER, tmp_path / "clean" / "out", settings)
    make(parent, OTHER, tmp_path / "out", settings)
    assert digests(tmp_path / "out") == digests(tmp_path / "clean" / "out")


def test_nothing_to_go_on_with(
    parent: Path, wanted: dict[str, str], tmp_path: Path, settings: Settings
) -> None:
    assert len(goes_on(parent, tmp_path, settings)) == 30
    assert digests(tmp_path / "out") == wanted
    assert make(parent, STAGES, tmp_path / "out", settings, resume=True).existed


def test_other_data_under_the_same_path(parent: Path, tmp_path: Path, settings: Settings) -> None:
    stopped(parent, tmp_path, settings)
    shutil.rmtree(parent)
    write_plain(parent, [4] * 29 + [5])
    with pytest.raises(UsageError, match="or of other data"):
        make(parent, STAGES, tmp_path / "out", settings, resume=True)
    found = make(parent, STAGES, tmp_path / "out", settings)
    assert found.manifest.counts["transitions"] == 121


@pytest.mark.parametrize("shards", [False, True])
def test_after_the_machine_has_stopped(
    parent: Path,
    wanted: dict[str, str],
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    shards: bool,
) -> None:
    """Rows that were only in memory count for nothing then; shards were forced to the disk."""
    stopped(parent, tmp_path, settings, shards=shards)
    monkeypatch.setattr(working, "boot_id", lambda: "another start")
    assert len(goes_on(parent, tmp_path, settings, shards=shards)) == (10 if shards else 15)
    assert digests(tmp_path / "out") == wanted


@dataclass(frozen=True)
class Doubling(Step):
    """Doubles rewards, once it has seen how; fails on an episode while a file is there."""

    name: ClassVar[str] = "doubling"

    trap: Path
    seen: bool = field(default=False, metadata={"state": True})

    def describe(self) -> dict[str, Any]:
        return {"step": self.name}

    def apply(self, piece: Piece) -> Piece:
        if 20 in piece.episodes and len(piece.batch.lengths) == 2 and self.trap.exists():
            raise StepError("The function failed on row 80")
        if 29 in piece.episodes and 28 in piece.episodes and not self.seen:
            raise Revision(replace(self, seen=True), "the last episode is different")
        factor = 2 if self.seen else 5
        reward = piece.batch.steps["next", "reward"] * factor
        return piece.having(steps={**piece.batch.steps, ("next", "reward"): reward})

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def with_state(self, state: Mapping[str, Any]) -> Doubling:
        return replace(self, seen=state["seen"])


@pytest.mark.parametrize("shards", [False, True])
def test_finished_tasks_are_kept_when_a_step_fails_and_when_it_is_revised(
    parent: Path, tmp_path: Path, settings: Settings, shards: bool
) -> None:
    step, notes = Doubling(tmp_path / "trap"), Notes()
    make(parent, [step], tmp_path / "whole" / "out", settings, executor=Shuffled(shards=shards))
    step.trap.touch()
    order = InProcess()
    watched = Watched(order, tmp_path / "marks", shards=shards)
    (tmp_path / "marks").mkdir()
    with pytest.raises(StepError, match="row 80"):
        make(parent, [step], tmp_path / "out", settings, executor=watched, progress=notes)
    assert notes.notes == ["10 finished tasks are kept: add --resume to go on"]
    step.trap.unlink()
    found = Shuffled(shards=shards)
    make(parent, [step], tmp_path / "out", settings, executor=found, resume=True, progress=notes)
    assert notes.notes[1:] == [
        "10 of 15 tasks are finished; going on",
        "starting over: the last episode is different",
    ]
    assert sorted(found.ran) == sorted([14, *range(15)])
    assert digests(tmp_path / "out") == digests(tmp_path / "whole" / "out")


def test_a_plan_that_is_refused_says_what_to_do(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(parent, tmp_path, settings)
    monkeypatch.setattr("offline_data.preprocess.saved.package_version", lambda: "99")
    with pytest.raises(ManifestError, match="made it, not 99") as caught:
        make(parent, STAGES, tmp_path / "out", settings, resume=True)
    assert caught.value.hint == "--force begins anew"
    make(parent, STAGES, tmp_path / "out", settings, force=True)
