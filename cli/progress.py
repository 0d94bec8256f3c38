"""Progress on stderr: bars for work that takes over a second, in a terminal; sentences always."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from offline_data.disk import human_bytes
from offline_data.progress import SILENT, SilentProgress
from offline_data_cli.output import Mode, error_console, say, stderr_is_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress as Live

    from offline_data.progress import Progress, Task

DELAY = 1.0
"""Seconds that work takes before it is drawn."""

_LABEL_WIDTH = 26


def progress_for(mode: Mode, *, bars: bool) -> Progress:
    """Return what fits the output: nothing when quiet, bars only in a terminal."""
    if mode is Mode.QUIET:
        return SILENT
    if mode is Mode.JSON or not bars or not stderr_is_terminal():
        return Notes()
    return Bars()


class Notes(SilentProgress):
    """Passes sentences on and draws nothing."""

    def note(self, message: str) -> None:
        """Print it on stderr."""
        say(message)


class Bars(Notes):
    """Draws a bar for each task that is older than `delay` seconds; threads may share it."""

    def __init__(self, delay: float = DELAY) -> None:
        self._delay = delay
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._drawn = 0

    @contextmanager
    def task(self, label: str, total: int | None, unit: str) -> Iterator[Task]:
        """Open a task; it is taken off the terminal when the block ends."""
        bar = _Bar(self, label, total, unit)
        timer = threading.Timer(self._delay, bar.draw)
        timer.daemon = True
        timer.start()
        try:
            yield bar
        finally:
            timer.cancel()
            bar.erase()

    @contextmanager
    def drawing(self) -> Iterator[Live]:
        """Hold the drawing, made on first use, for a change to it."""
        with self._lock:
            if self._live is None:
                self._live = _live()
            yield self._live

    def opened(self) -> None:
        """Count a bar that is drawn from now on."""
        with self.drawing() as live:
            self._drawn += 1
            if self._drawn == 1:
                live.start()

    def closed(self) -> None:
        """Count a bar that is gone; the drawing ends with the last one."""
        with self.drawing() as live:
            self._drawn -= 1
            if self._drawn == 0:
                live.stop()


class _Bar:
    """One task: counts from its beginning, drawn from some time on."""

    def __init__(self, bars: Bars, label: str, total: int | None, unit: str) -> None:
        self._bars = bars
        self._label, self._total, self._unit = label, total, unit
        self._done = 0
        self._begin = time.monotonic()
        self._row: Any = None
        self._ended = False
        self._lock = threading.RLock()

    def advance(self, amount: int = 1) -> None:
        """Count `amount` more units."""
        with self._lock:
            self._done += amount
            self._update()

    def resize(self, total: int) -> None:
        """Set the number of units in all."""
        with self._lock:
            self._total = total
            self._update()

    def draw(self) -> None:
        """Put the bar on the terminal, unless the task has ended."""
        with self._lock:
            if self._ended:
                return
            self._bars.opened()
            with self._bars.drawing() as live:
                self._row = live.add_task(_shorten(self._label), total=self._total, amount="")
            self._update()

    def erase(self) -> None:
        """Take the bar off the terminal for good."""
        with self._lock:
            self._ended = True
            if self._row is None:
                return
            with self._bars.drawing() as live:
                live.remove_task(self._row)
            self._row = None
            self._bars.closed()

    def _update(self) -> None:
        if self._row is None:
            return
        seconds = max(time.monotonic() - self._begin, 1e-9)
        amount = amount_text(self._done, self._total, self._unit, seconds)
        with self._bars.drawing() as live:
            live.update(self._row, completed=self._done, total=self._total, amount=amount)


def amount_text(done: int, total: int | None, unit: str, seconds: float) -> str:
    """Say how much is done and how fast.

    Example:
        >>> amount_text(3 << 20, 6 << 20, "B", 1.5)
        '3.0 MiB/6.0 MiB 2.0 MiB/s'
        >>> amount_text(20, None, "episodes", 2)
        '20 episodes 10/s'
    """
    if unit == "B":
        of = "" if total is None else f"/{human_bytes(total)}"
        return f"{human_bytes(done)}{of} {human_bytes(done / seconds)}/s"
    of = "" if total is None else f"/{total:,}"
    return f"{done:,}{of} {unit} {done / seconds:,.0f}/s"


def _shorten(label: str) -> str:
    """Keep both ends of a long label: ids tell most there."""
    if len(label) <= _LABEL_WIDTH:
        return label
    half = (_LABEL_WIDTH - 1) // 2
    return f"{label[:half]}…{label[-half:]}"


def _live() -> Live:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeRemainingColumn(compact=True),
        console=error_console(),
        transient=True,
        expand=True,
        redirect_stdout=False,
    )
