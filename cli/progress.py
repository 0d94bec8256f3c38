"""Progress on stderr: notes, and in a terminal bars for work that takes over a second."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from offline_data.disk import human_bytes
from offline_data.progress import SILENT, SilentProgress
from offline_data_cli.render import Mode, error_console, say, stderr_is_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.progress import Progress as Live

    from offline_data.progress import Progress, Task

DELAY = 1.0
"""Seconds after which a bar is drawn."""

_LABEL_WIDTH = 26


def progress_for(mode: Mode, *, bars: bool) -> Progress:
    """Return the progress that fits the output: none if quiet, bars only in a terminal."""
    if mode is Mode.QUIET:
        return SILENT
    return Bars() if bars and mode is Mode.HUMAN and stderr_is_terminal() else Notes()


class Notes(SilentProgress):
    """Prints notes and draws nothing."""

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
        """Open a task; its bar is removed when the block ends."""
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
    def live(self, change: int = 0) -> Iterator[Live]:
        """Lock the drawing; it starts with the first bar and stops with the last one.

        Args:
            change: 1 to add a bar, -1 to remove one.
        """
        with self._lock:
            if self._live is None:
                self._live = _live()
            self._drawn += change
            if self._drawn == change == 1:
                self._live.start()
            yield self._live
            if change < 0 and not self._drawn:
                self._live.stop()


class _Bar:
    """One task: counted from its beginning, drawn once it has taken a while."""

    def __init__(self, bars: Bars, label: str, total: int | None, unit: str) -> None:
        self._bars = bars
        half = (_LABEL_WIDTH - 1) // 2
        # both ends of a long label: ids differ there
        self._label = label if len(label) <= _LABEL_WIDTH else f"{label[:half]}…{label[-half:]}"
        self._total, self._unit = total, unit
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
        """Set the total number of units."""
        with self._lock:
            self._total = total
            self._update()

    def draw(self) -> None:
        """Draw the bar, unless the task has ended."""
        with self._lock:
            if self._ended:
                return
            with self._bars.live(1) as live:
                self._row = live.add_task(self._label, total=self._total, amount="")
            self._update()

    def erase(self) -> None:
        """Remove the bar for good."""
        with self._lock:
            self._ended = True
            if self._row is not None:
                with self._bars.live(-1) as live:
                    live.remove_task(self._row)
                self._row = None

    def _update(self) -> None:
        if self._row is None:
            return
        seconds = max(time.monotonic() - self._begin, 1e-9)
        amount = amount_text(self._done, self._total, self._unit, seconds)
        with self._bars.live() as live:
            live.update(self._row, completed=self._done, total=self._total, amount=amount)


def amount_text(done: int, total: int | None, unit: str, seconds: float) -> str:
    """Return the amount that is done and the speed.

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
