"""A command that is ended at any time leaves what `--resume` takes, or nothing; user files stay."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import offline_data
from offline_data.testing.toy import toy_batch, write_toy

PROGRAM = """
import signal, sys
from offline_data.preprocess import plan as planning
planning.GROUP_BYTES = 2000
from offline_data_cli import main
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.default_int_handler)
print("begins", flush=True)
sys.exit(main.main(sys.argv[1:]))
"""

FUNCTION = """
import time
def fn(td):
    time.sleep(0.001)
    td["action"] = td["action"] * 2 if float(td["action"][0]) < 1e9 else td["action"]
    return td
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    write_toy(tmp_path / "toy", [toy_batch([8] * 25)])
    (tmp_path / "fns.py").write_text(FUNCTION)
    return tmp_path / "toy"


def command(toy: Path, *more: str) -> list[str]:
    folder = toy.parent
    return [
        *(sys.executable, "-W", "ignore", "-c", PROGRAM),
        *("preprocess", str(toy), "--fn", f"{folder}/fns.py:fn", "--dest", str(folder / "out")),
        *("--root", str(folder / "root"), "--workers", "1", "--chunk-rows", "8", *more),
    ]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "300"}


def ended(line: list[str], number: int, delay: float) -> tuple[int, str]:
    """Run a command, and send a signal so many seconds after it began."""
    with subprocess.Popen(
        line, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(delay)
        child.send_signal(number)
        _, said = child.communicate(timeout=60)
    return child.returncode, said


def left(folder: Path) -> list[str]:
    known = {"toy", "fns.py", "root", "out", "__pycache__", "notes.txt"}
    return sorted(path.name for path in folder.iterdir() if path.name not in known)


def check_ended(toy: Path, number: int, delay: float) -> bool:
    """End a run; returns whether it was made before the signal came."""
    folder = toy.parent
    code, said = ended(command(toy), number, delay)
    assert "Traceback" not in said, said
    assert "unexpected" not in said, said
    if (folder / "out").exists():
        assert left(folder) == []
        return True
    assert code == 130, (code, said)
    again = "--resume" in said
    assert left(folder) == ([".out.preprocess"] if again else []), said
    more = ("--resume",) if again else ()
    done = subprocess.run(
        command(toy, *more), env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert left(folder) == []
    made = offline_data.open_dataset(folder / "out")[:]
    parent = offline_data.open_dataset(toy)[:]
    assert (made["action"] == 2 * parent["action"]).all()
    return False


@pytest.mark.parametrize(("name", "delay"), [("SIGINT", 2.5), ("SIGTERM", 1.5), ("SIGHUP", 0.2)])
def test_ended(toy: Path, name: str, delay: float) -> None:
    check_ended(toy, getattr(signal, name), delay)


# Between the opening of a file and the block that closes it, an interrupt leaves that to Python.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("replaces", [True, False])
def test_interrupted_at_any_line_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaces: bool
) -> None:
    """With what publishes; every so many lines, from the first to the last."""
    from offline_data.preprocess import plan as planning

    monkeypatch.setattr(planning, "GROUP_BYTES", 400)
    write_toy(tmp_path / "toy", [toy_batch([8] * 3)])
    ds = offline_data.open_dataset(tmp_path / "toy")
    files = tuple(
        f"offline_data/{name}.py"
        for name in ("preprocess/engine", "preprocess/workdir", "preprocess/finish", "preprocess/plan",
                     "store/publish", "store/writer", "store/library")
    )  # fmt: skip
    dest, work = tmp_path / "out", tmp_path / ".out.preprocess"
    dest.mkdir()
    stages = ["clip:action,low=-1"]
    (tmp_path / "root").mkdir()

    def make(**more: Any) -> None:
        ds.preprocess(stages, dest=dest, root=tmp_path / "root", chunksize=8, **more)

    make()
    (dest / "notes.txt").write_text("mine")
    stops = 0
    for target in range(1, 100_000, 61):
        count = 0
        if not replaces:
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
            make(force=replaces)
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
            make(resume=True)
        elif interrupted and not dest.exists():
            assert "run the same command again" in said or not said, target
            make()
        assert not work.exists(), (target, sorted(work.rglob("*")))
        assert offline_data.open_dataset(dest)[:]["action"].min() == -1
    assert stops > 10
