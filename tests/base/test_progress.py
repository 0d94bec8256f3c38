"""Bars of Python: after two seconds, in a terminal or a notebook, and nowhere else; notes are logged."""

from __future__ import annotations

import inspect
import io
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import offline_data
from offline_data.base import progress
from offline_data.base.progress import LoggedNotes, ProgressBars, SilentProgress, progress_of
from offline_data.pipeline.jobs.executors import InProcess, run_tasks
from offline_data.testing.toy import toy_batch, write_toy


class Screen(ProgressBars):
    """Bars on a terminal of 80 columns, or on what is none."""

    def __init__(self, delay: float = 0, **kind: Any) -> None:
        super().__init__(delay)
        self.written = io.StringIO()
        self.asked = 0
        self._kind = kind

    def _console(self) -> Any:
        self.asked += 1
        return Console(file=self.written, width=80, **self._kind)


def test_a_bar_is_drawn_in_a_terminal_and_removed() -> None:
    screen = Screen(force_terminal=True)
    with screen.task("convert", 4, "episodes") as task:
        task.advance(2)
        screen._live.refresh()
    assert "2/4 episodes" in screen.written.getvalue()
    before = screen.written.getvalue()
    with screen.task("verify", 4, "B"):
        pass
    assert "verify" in screen.written.getvalue()[len(before) :]


def test_quick_work_draws_nothing_and_asks_for_no_console() -> None:
    screen = Screen(30, force_terminal=True)
    threads = threading.active_count()
    with screen.task("convert", 4, "episodes") as task:
        task.advance(2)
    assert screen.asked == 0
    for timer in threading.enumerate():
        if isinstance(timer, threading.Timer):
            timer.join(10)
    assert threading.active_count() <= threads


def test_nothing_is_drawn_elsewhere() -> None:
    screen = Screen(force_terminal=False)
    with screen.task("convert", 4, "episodes") as task:
        task.advance(2)
    assert (screen.asked, screen.written.getvalue()) == (1, "")


@pytest.mark.parametrize("everywhere", [False, True])
def test_a_notebook_without_widgets_has_a_line_that_is_written_over(
    everywhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda _: None)
    monkeypatch.setattr(progress, "_INTERVAL", 0)
    screen = Screen(force_jupyter=True)
    screen._everywhere = everywhere
    with screen.task("convert", 4, "episodes") as task:
        task.advance(2)
        with screen.task("audit", 9, "rows") as inner:
            inner.advance(3)
            task.advance(1)  # an older one is not written
        task.advance(1)
    written = screen.written.getvalue().split("\r")
    lines = [re.sub(r"(episodes|rows) .*", r"\1", line).rstrip() for line in written]
    newest = [
        "",
        "convert 0/4 episodes",
        "convert 2/4 episodes",
        "audit 0/9 rows",
        "audit 3/9 rows",
    ]
    assert lines[:5] == newest
    if everywhere:
        assert written[-1].endswith("\n")
        assert len(lines) == 6
    else:
        assert lines[5:] == ["convert 4/4 episodes", "", ""]
        widths = [*map(len, written[1:-1])]
        assert widths == sorted(widths)  # each erases the one before, whatever rates they show
        assert widths[-1] > 20


def test_a_line_is_written_five_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now, screen = [0.0], Screen(force_jupyter=True)
    monkeypatch.setattr(progress, "find_spec", lambda _: None)
    monkeypatch.setattr("offline_data.base.progress.time.monotonic", lambda: now[0])
    with screen.task("convert", 128, "episodes") as task:
        for step in range(128):
            now[0] = (step + 1) / 128
            task.advance()
    counts = re.findall(r"convert (\d+)/128 episodes", screen.written.getvalue())
    assert counts == ["0", "26", "52", "78", "104"]


def test_a_notebook_with_widgets_has_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[bool] = []

    def draw(console: Any, *, transient: bool) -> Any:
        drawn.append(transient)
        return progress._TextLine(console, transient=True)

    monkeypatch.setattr(progress, "find_spec", lambda _: True)
    monkeypatch.setattr(progress, "_new_drawing", draw)
    with Screen(force_jupyter=True).task("convert", 4, "episodes"):
        assert drawn == [True]


def test_what_a_caller_may_give(caplog: pytest.LogCaptureFixture) -> None:
    assert type(progress_of(True)) is ProgressBars
    assert progress_of(True)._delay == 2  # type: ignore[attr-defined]
    assert type(progress_of(False)) is LoggedNotes
    own = SilentProgress()
    assert progress_of(own) is own
    with caplog.at_level(logging.WARNING, "offline_data"):
        for given in (True, False, own):
            progress_of(given).note(f"a note of {given}: 100 %s")
    assert [one.getMessage() for one in caplog.records] == [
        "a note of True: 100 %s",
        "a note of False: 100 %s",
    ]
    assert {one.name for one in caplog.records} == {"offline_data"}


@pytest.mark.parametrize(
    "name",
    [
        *("download", "convert", "verify", "stats", "load_arrays", "load_dataset"),
        "Dataset.preprocess",
    ],
)
def test_functions_show_it_by_default(name: str) -> None:
    function = attrgetter(name)(offline_data)
    assert inspect.signature(function).parameters["progress"].default is True


class Counts(SilentProgress):
    """Tasks as they are begun, and steps as they are done."""

    def __init__(self) -> None:
        self.counted: list[Any] = []

    def task(self, label: str, total: int | None, unit: str) -> Any:
        self.counted.append((label, total, unit))
        return super().task(label, total, unit)

    def advance(self, amount: int = 1) -> None:
        self.counted.append(amount)


def test_loading_and_preprocessing_too(tmp_path: Path) -> None:
    write_toy(tmp_path / "local" / "toy" / "1", [toy_batch([3, 2])])
    seen = Counts()
    ds = offline_data.load_dataset("local:toy", root=tmp_path, layout="ted", progress=seen)
    assert ds.manifest.layout == "ted"
    assert [one[0] for one in seen.counted if isinstance(one, tuple)] == ["convert toy"]
    seen = Counts()
    ds.preprocess("clip:action,low=-1", dest=tmp_path / "out", progress=seen)
    assert seen.counted == [("preprocess out", 5, "steps"), 5]


@pytest.mark.parametrize(
    ("told", "sizes", "counted"),
    [
        (("convert toy", "shards"), None, [("convert toy", 2, "shards"), 1, 1]),
        (("make toy", "transitions"), [30, 5], [("make toy", 35, "transitions"), 30, 5]),
    ],
)
def test_the_tasks_of_a_job_are_counted_one_by_one(told: Any, sizes: Any, counted: Any) -> None:
    progress = Counts()
    with run_tasks(InProcess(), str, [1, 2], progress, told, sizes) as answers:
        assert list(answers) == [(1, "1"), (2, "2")]
    assert progress.counted == counted


CODE = """
import sys, offline_data
from offline_data.base.progress import ProgressBars
given = {"bars": ProgressBars(0), "off": False, "on": True}[sys.argv[2]]
assert offline_data.verify(sys.argv[1], progress=given)
assert "torch" not in sys.modules
print("verified")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize(
    ("given", "terminal"), [("bars", True), ("off", True), ("on", True), ("bars", False)]
)
def test_stderr_is_a_terminal_or_not(toys: Callable[..., Path], given: str, terminal: bool) -> None:
    run = [sys.executable, "-c", CODE, str(toys([3, 2])), given]
    plain = {name: os.environ[name] for name in os.environ if name not in _FORCING}
    reading, writing = os.openpty() if terminal else os.pipe()
    with subprocess.Popen(
        run, stdout=subprocess.PIPE, stderr=writing, text=True, env={**plain, "TERM": "xterm"}
    ) as started:
        os.close(writing)
        told = b""
        while block := _read(reading):
            told += block
        assert started.stdout is not None
        assert started.stdout.read() == "verified\n"
    os.close(reading)
    assert started.returncode == 0
    assert (b"verify" in told) is (given == "bars" and terminal)
    if given != "bars" or not terminal:
        assert told == b""


_FORCING = {"FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"}
"""Variables with which rich takes anything for a terminal."""


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # a terminal whose other side is closed
        return b""
