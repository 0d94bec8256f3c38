"""Programs that are killed, interrupted, or two at once."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from offline_data.config import Settings
from offline_data.preprocess.executors.local import InProcess
from offline_data.store.verify import verify
from tests.preprocess.oracle import digests
from tests.preprocess.program import Watched, tasks_marked
from tests.preprocess.runs import make
from tests.preprocess.stopping import (
    GROUP_BYTES,
    ROOT,
    work_of,
    write_parent,
)


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_parent(tmp_path, monkeypatch)


class Program:
    """The program of `program.py`, under way."""

    def __init__(self, parent: Path, tmp_path: Path, *, workers: int = 0, **given: Any) -> None:
        self.marks = tmp_path / "marks"
        self.marks.mkdir(exist_ok=True)
        about = {
            "parent": str(parent),
            "dest": str(tmp_path / "out"),
            "root": str(tmp_path / "root"),
            "marks": str(self.marks),
            "stages": ["clip:action,low=-8000"],
            "seconds": 0.1,
            "workers": workers,
            "shards": False,
            "group_bytes": GROUP_BYTES,
            "options": {},
            **given,
        }
        command = [sys.executable, "-m", "tests.preprocess.program", json.dumps(about)]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, done: int) -> None:
        end = time.monotonic() + 60
        while len(tasks_marked(self.marks, "done")) < done and time.monotonic() < end:
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)

    def ended(self, by: int | None = None) -> tuple[int, str, str]:
        if by is not None:
            self.process.send_signal(by)
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.mark.parametrize(("workers", "shards"), [(0, False), (2, False), (2, True)])
def test_killed(
    parent: Path, tmp_path: Path, settings: Settings, workers: int, shards: bool
) -> None:
    stages = ["clip:action,low=-8000"]
    make(parent, stages, tmp_path / "whole" / "out", settings)
    program = Program(parent, tmp_path, workers=workers, shards=shards)
    program.wait_for(3)
    assert program.ended(signal.SIGKILL)[0] == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    time.sleep(0.3)  # workers notice
    done = tasks_marked(program.marks, "done")
    assert 3 <= len(done) < 15
    again = tmp_path / "again"
    again.mkdir()
    watched = Watched(InProcess(), again, shards=shards)
    make(parent, stages, tmp_path / "out", settings, executor=watched, resume=True)
    ran = tasks_marked(again, "begun")
    assert not set(ran) & set(done)
    assert len(ran) == len(set(ran))
    assert digests(tmp_path / "out") == digests(tmp_path / "whole" / "out")


@pytest.mark.parametrize("workers", [0, 2])
def test_interrupted(parent: Path, tmp_path: Path, settings: Settings, workers: int) -> None:
    program = Program(parent, tmp_path, workers=workers)
    program.wait_for(2)
    code, out, err = program.ended(signal.SIGINT)
    count = work_of(tmp_path).recorded()
    assert (code, out) == (130, "")
    assert err == f"interrupted; {count} finished tasks are kept: add --resume to go on\n"
    assert count >= 2


def test_two_programs_that_want_the_same_do_the_work_once(parent: Path, tmp_path: Path) -> None:
    programs = [Program(parent, tmp_path, seconds=0.02) for _ in range(2)]
    ends = [program.ended() for program in programs]
    assert [code for code, _, _ in ends] == [0, 0], ends
    assert sorted(out for _, out, _ in ends) == ["False\n", "True\n"]
    assert tasks_marked(programs[0].marks, "begun") == list(range(15))
    assert verify(tmp_path / "out") == ()


SLOW = """
import sys, time
from pathlib import Path
import offline_data
from offline_data.preprocess import plan
from offline_data.preprocess.executors.local import LocalProcesses

parent, dest, marks, seconds, resume = sys.argv[1:]

def slow(td):
    import os, time
    from pathlib import Path
    with open(Path(marks) / f"{int(td['index'])}", "a") as file:
        file.write(f"{os.getpid()} ")
    time.sleep(float(seconds))
    td["next", "reward"] = td["next", "reward"] * 2
    return td

ds = offline_data.open_dataset(parent)
way = LocalProcesses(2)
ds.preprocess(slow, dest=dest, vectorize=False, chunksize=4, engine=way, resume=resume == "yes")
"""


@pytest.mark.slow
def test_a_function_that_was_killed(
    parent: Path, tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLINE_DATA_HOME", str(tmp_path / "root"))
    (tmp_path / "slow.py").write_text(SLOW)

    marks = tmp_path / "marks"  # the function refers to it: it must be the same in all runs

    def start(dest: str, resume: str) -> subprocess.Popen[bytes]:
        shutil.rmtree(marks, ignore_errors=True)
        marks.mkdir()
        places = [str(parent), str(tmp_path / dest), str(marks)]
        command = [sys.executable, str(tmp_path / "slow.py"), *places, "0.02", resume]
        return subprocess.Popen(command, cwd=ROOT)

    assert start("whole", "no").wait(120) == 0
    program = start("out", "no")
    while work_of(tmp_path).recorded() < 4:
        assert program.poll() is None
        time.sleep(0.02)
    program.kill()
    program.wait()
    time.sleep(0.5)
    done = work_of(tmp_path).finished(30)
    assert 4 <= len(done) < 30
    again = start("out", "yes")
    assert again.wait(120) == 0
    called = {
        int(path.name)
        for path in marks.iterdir()
        if set(path.read_text().split()) != {str(again.pid)}  # which tries it on some rows
    }
    assert called == set(range(120)) - {4 * task + step for task in done for step in range(4)}
    one, other = digests(tmp_path / "out"), digests(tmp_path / "whole")
    assert {**one, "manifest.json": ""} == {**other, "manifest.json": ""}
