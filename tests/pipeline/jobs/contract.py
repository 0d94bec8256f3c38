"""What every job keeps, whoever runs its tasks: the same bytes, and nothing else is left."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.jobs.cases import Ended, JobCase, Order, Started, Way, run
from tests.pipeline.jobs.faults import Kind
from tests.pipeline.jobs.processes.waiting import wait_until

FAULTS: tuple[Kind, ...] = ("killed", "power cut", "interrupted", "disk full")


@dataclass(frozen=True)
class Whole:
    """What a run makes that nothing disturbs."""

    ended: Ended
    content: dict[str, Any]
    files: set[str]

    @classmethod
    def of(cls, case: JobCase) -> Whole:
        ended = run(case)
        assert (ended.code, ended.existed) == (0, False), ended
        made = cls(ended, case.content(), case.files())
        remove(case)
        return made

    def check(self, case: JobCase, ended: Ended, place: object = "") -> None:
        """Compare with what a case has made."""
        assert ended.code == 0, (place, ended)
        assert case.content() == self.content, place
        assert case.files() == self.files, (place, case.files() ^ self.files)


_WHOLE: dict[tuple[type[JobCase], Way], Whole] = {}


class JobContract:
    """Tests of one job, run in one way."""

    @pytest.fixture
    def case(self, tmp_path: Path) -> JobCase:
        """Return the case, in `tmp_path / "case"`."""
        raise NotImplementedError

    @pytest.fixture
    def whole(self, case: JobCase) -> Whole:
        """Return what the case makes undisturbed, in any folder."""
        kind = type(case), case.way
        if kind not in _WHOLE:
            _WHOLE[kind] = Whole.of(case)
        return _WHOLE[kind]

    def test_operations_that_fail(self, case: JobCase, whole: Whole) -> None:
        for turn, at in enumerate(sample(whole, case.points)):
            check_fault(case, whole, FAULTS[turn % len(FAULTS)], at)
        check_fault(case, whole, "killed", whole.ended.operations - 1)

    @pytest.mark.slow
    @pytest.mark.parametrize("kind", FAULTS)
    def test_every_operation_that_fails(self, case: JobCase, whole: Whole, kind: Kind) -> None:
        for at in every(case, whole, FAULTS.index(kind)):
            check_fault(case, whole, kind, at)

    def test_another_at_the_same_time(self, case: JobCase, whole: Whole) -> None:
        (at,) = sample(whole, 1)
        check_overtaken(case, whole, at)

    @pytest.mark.slow
    def test_another_at_every_operation(self, case: JobCase, whole: Whole) -> None:
        for at in every(case, whole):
            check_overtaken(case, whole, at)


class ResumeContract(JobContract):
    """Tests of a job that goes on with finished tasks."""

    def test_damage_is_never_taken_for_data(self, case: JobCase, whole: Whole) -> None:
        check_damage(case, whole, most=4)

    @pytest.mark.slow
    def test_all_damage(self, case: JobCase, whole: Whole) -> None:
        check_damage(case, whole)


class ExecutorContract(ResumeContract):
    """Tests of a job whose tasks an executor runs."""

    def test_tasks_that_run_several_times(self, case: JobCase, whole: Whole) -> None:
        whole.check(case, run(case, times=3))

    @pytest.mark.slow
    @pytest.mark.parametrize("at", range(1, 20, 3))
    def test_a_process_that_is_killed_in_a_task(self, case: JobCase, whole: Whole, at: int) -> None:
        ended = run(case, dies=at)
        whole.check(case, ended)
        assert ended.notes[-1].endswith("running it again"), ended


class PlanContract(ResumeContract):
    """Tests of a job whose tasks are run by the ranks of a plan."""

    def test_a_newer_plan_while_one_works_at_the_old_one(self, case: JobCase, whole: Whole) -> None:
        check_newer(case, whole, sample(whole, 2))

    @pytest.mark.slow
    def test_a_newer_plan_at_every_operation(self, case: JobCase, whole: Whole) -> None:
        check_newer(case, whole, every(case, whole))


def sample(whole: Whole, count: int) -> Iterator[int]:
    """Yield numbers of operations, spread over a run."""
    for turn in range(count):
        yield 1 + (2 * turn + 1) * whole.ended.operations // (2 * count)


def every(case: JobCase, whole: Whole, turn: int = 0) -> range:
    """Return the operations of a slow test: one of each `case.stride`, another one in each turn."""
    first = 1 + turn * case.stride // len(FAULTS)
    return range(first, whole.ended.operations + 1, case.stride)


def check_fault(case: JobCase, whole: Whole, kind: Kind, at: int) -> None:
    """Let an operation fail, then run the job again."""
    place = kind, at, whole.ended.operations
    ended = run(case, fault=kind, at=at)
    expected = {"interrupted": {130, 0}, "disk full": {1, 0}}.get(kind, {-9, 0})
    assert ended.code in expected, (place, ended)
    if case.dataset().exists():
        assert case.content() == whole.content, place
    whole.check(case, run(case), place)
    remove(case)


def check_overtaken(case: JobCase, whole: Whole, at: int) -> None:
    """Let another process do the same while one is in the middle of an operation."""
    first = start_paused(case, at)
    second = run(case, plans=False)
    case.folder.with_name("go").touch()
    ends = [first.wait(), second]
    assert sorted(ended.existed is True for ended in ends) == [False, True], (at, ends)
    for ended in ends:
        whole.check(case, ended, at)
    remove(case)


def start_paused(case: JobCase, at: int) -> Started:
    """Start a process that waits in the middle of an operation, after it has been planned."""
    if case.way == "ranks":
        run(case, works=False)
    first = Started(Order(case, "paused", at, plans=False))
    wait_until(lambda: case.folder.with_name("paused").exists() or not first.runs)
    return first


def check_newer(case: JobCase, whole: Whole, places: Iterable[int]) -> None:
    """Replace the plan while a rank works at it; the newer one is what is made."""
    newer = replace(case, variant=1)
    wanted = Whole.of(newer)
    assert wanted.content != whole.content
    for at in places:
        first = start_paused(case, at)
        second = run(newer)
        case.folder.with_name("go").touch()
        ended = first.wait()
        last = run(newer, plans=False)
        assert (ended.code, second.code, last.code) == (0, 0, 0), (at, ended, second, last)
        assert case.content() == wanted.content, at
        remove(case)


def check_damage(case: JobCase, whole: Whole, most: int | None = None) -> None:
    """Damage the files of a half finished run, one at a time (`most` of them), and finish it."""
    ended = run(case, rank=1, world=2) if case.way == "ranks" else run(case, stop=case.half)
    assert (ended.code, ended.existed) == (0 if case.way == "ranks" else 130, None), ended
    saved = case.folder.with_name("saved")
    shutil.copytree(case.folder, saved)
    parts = [path for path in case.parts() if path.stat().st_size]
    damages = [(path, damage) for path in parts for damage in DAMAGES]
    assert len(damages) > 10
    for path, damage in damages[:: 1 if most is None else len(damages) // most]:
        remove(case)
        shutil.copytree(saved, case.folder)
        damage(path)
        ended = run(case)
        if ended.code == 1:
            assert "--force" in ended.error, (path, damage, ended)
            assert not case.dataset().exists(), (path, damage)
        else:
            whole.check(case, ended, (path, damage))


def remove(case: JobCase) -> None:
    """Delete everything that a case has made."""
    shutil.rmtree(case.folder)
    for name in ("paused", "go"):
        case.folder.with_name(name).unlink(missing_ok=True)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGES: tuple[Callable[[Path], None], ...] = (flip, cut, Path.unlink)
