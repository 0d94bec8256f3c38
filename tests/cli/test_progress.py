"""Bars: late, transient, on stderr, and only where somebody watches."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

import pytest

from offline_data.progress import SILENT
from offline_data_cli.progress import Bars, Notes, progress_for
from offline_data_cli.render import Mode

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from tests.cli.conftest import Terminal

    SitDown: TypeAlias = Callable[..., Terminal]


def _until(true: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while not true():
        assert time.monotonic() - begin < 10
        time.sleep(0.01)


def test_without_a_terminal_only_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    progress = progress_for(Mode.HUMAN, bars=True)
    assert type(progress) is Notes
    progress.note("seen once")
    with progress.task("convert", 3, "episodes") as task:
        task.advance(3)
    assert capsys.readouterr() == ("", "seen once\n")


def test_who_gets_what(terminal: SitDown) -> None:
    terminal()
    assert type(progress_for(Mode.HUMAN, bars=True)) is Bars
    assert type(progress_for(Mode.HUMAN, bars=False)) is Notes
    assert type(progress_for(Mode.JSON, bars=True)) is Notes
    assert progress_for(Mode.QUIET, bars=True) is SILENT


def test_quick_work_is_not_drawn(terminal: SitDown) -> None:
    screen = terminal()
    with Bars(delay=30).task("convert", 3, "episodes") as task:
        task.advance(3)
    assert screen.err.getvalue() == ""


def test_long_work_is_drawn_with_what_was_done_before(terminal: SitDown) -> None:
    screen, bars = terminal(), Bars(delay=0.05)
    with bars.task("d4rl:a-very-long-name-of-a-dataset-v2", None, "B") as task:
        task.advance(3 << 20)
        task.resize(6 << 20)
        _until(lambda: bars._drawn == 1)
        task.advance(1 << 20)
        assert bars._live is not None
        bars._live.refresh()
        said = screen.err.text
    assert "d4rl:a-very-…a-dataset-v2" in said
    assert "4.0 MiB/6.0 MiB" in said
    assert "MiB/s" in said
    assert max(map(len, re.split(r"[\r\n]", said))) <= 80
    assert bars._drawn == 0
    assert not bars._live.live.is_started
    assert screen.out.getvalue() == ""


def test_a_sentence_while_a_bar_is_drawn(terminal: SitDown) -> None:
    screen, bars = terminal(), Bars(delay=0)
    with bars.task("part", 2, "files"):
        _until(lambda: bars._drawn == 1)
        bars.note("seen once")
    assert screen.err.text.count("seen once") == 1


def test_an_error_takes_the_bars_off(terminal: SitDown) -> None:
    terminal()
    bars = Bars(delay=0)
    with pytest.raises(ValueError, match="broken"), bars.task("a", 2, "files"):  # noqa: PT012
        _until(lambda: bars._drawn == 1)
        raise ValueError("broken")
    assert bars._drawn == 0


def test_threads_share_one_drawing(terminal: SitDown) -> None:
    terminal()
    bars = Bars(delay=0)
    ready = threading.Barrier(5)

    def work() -> None:
        with bars.task("part", 100, "files") as task:
            ready.wait(10)
            for _ in range(100):
                task.advance()
            ready.wait(10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait(10)
    _until(lambda: bars._drawn == 4)
    live = bars._live
    assert live is not None
    _until(lambda: [task.completed for task in live.tasks] == [100] * 4)
    ready.wait(10)
    for thread in threads:
        thread.join(10)
    assert bars._drawn == 0
    assert live.tasks == []
