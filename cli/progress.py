"""Progress on stderr: notes, and in a terminal bars for tasks of more than a second."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from offline_data.files import human_bytes
from offline_data.progress import SILENT, SilentProgress
from offline_data_cli.render import Mode, error_console, say, stderr_is_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offline_data.progress import Progress, Task

DELAY = 1.0
"""Seconds after which a bar is drawn."""

_LABEL_WIDTH = 26


def progress_for(mode: Mode, *, bars: bool) -> Progress:
    """Return the progress reporter for the output: silent if quiet, bars only in a terminal."""
    if mode is Mode.QUIET:
        return SILENT
    return Bars() if bars and mode is Mode.HUMAN and stderr_is_terminal() else Notes()


class Notes(SilentProgress):
    """Prints notes without bars."""

    def note(self, message: str) -> None:
        """Print a note on stderr."""
        say(message)


class Bars(Notes):
    """Draws a bar for each task that takes longer than `delay` seconds; thread-safe."""

    def __init__(self, delay: float = DELAY) -> None:
        self._delay = delay
        self._lock = threading.RLock()
        self._live: Any = None
        self._drawn = 0

    @contextmanager
    def task(self, label: str, total: int | None, unit: str) -> Iterator[Task]:
        """Start a task; its bar is removed when the block ends."""
        bar = _Bar(self._lock, label, total, unit)
        timer = threading.Timer(self._delay, self._draw, [bar])
        timer.daemon = True
        timer.start()
        try:
            yield bar
        finally:
            timer.cancel()
            with self._lock:
                bar.ended = True
                if bar.live is not None:
                    self._live.remove_task(bar.row)
                    bar.live = None
                    self._drawn -= 1
                    if not self._drawn:
                        self._live.stop()

    def _draw(self, bar: _Bar) -> None:
        with self._lock:
            if bar.ended:
                return
            if self._live is None:
                self._live = _new_drawing()
            if not self._drawn:
                self._live.start()
            self._drawn += 1
            bar.live = self._live
            bar.row = self._live.add_task(bar.label, total=bar.total, bar=bar)
            bar.advance(0)


class _Bar:
    """One task, counted from its start and drawn after a delay."""

    def __init__(self, lock: threading.RLock, label: str, total: int | None, unit: str) -> None:
        half = (_LABEL_WIDTH - 1) // 2
        # keep both ends of a long label, where ids differ
        self.label = label if len(label) <= _LABEL_WIDTH else f"{label[:half]}…{label[-half:]}"
        self.total, self.ended = total, False
        self.live: Any = None
        self.row: Any = None
        self._lock, self._unit = lock, unit
        self._done, self._skipped, self._begin = 0, 0, time.monotonic()

    def skip(self, amount: int) -> None:
        """Count `amount` units done earlier, excluded from the speed."""
        with self._lock:
            self._skipped += amount
            self.advance(amount)

    def advance(self, amount: int = 1) -> None:
        """Count `amount` more units."""
        with self._lock:
            self._done += amount
            if self.live is not None:
                self.live.update(self.row, completed=self._done, total=self.total)

    def resize(self, total: int) -> None:
        """Set the total number of units."""
        self.total = total
        self.advance(0)

    def __str__(self) -> str:
        """Return progress, speed and remaining time: `3 MiB/6 MiB 2 MiB/s 0:02`."""
        seconds = max(time.monotonic() - self._begin, 1e-9)
        speed = max(self._done - self._skipped, 0) / seconds
        left = ""
        if self.total is not None and speed > 0:
            whole = round(max(self.total - self._done, 0) / speed)
            hours, minutes = divmod(whole // 60, 60)
            left = (
                f" {hours}:{minutes:02}:{whole % 60:02}" if hours else f" {minutes}:{whole % 60:02}"
            )
        if self._unit == "B":
            of = "/size unknown" if self.total is None else f"/{human_bytes(self.total)}"
            return f"{human_bytes(self._done)}{of} {human_bytes(speed)}/s{left}"
        of = "" if self.total is None else f"/{self.total:,}"
        return f"{self._done:,}{of} {self._unit} {speed:,.0f}/s{left}"


def _new_drawing() -> Any:
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[bar]}", markup=False),
        console=error_console(),
        transient=True,
        expand=True,
        redirect_stdout=False,
    )
