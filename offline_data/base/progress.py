"""The `Progress` protocol, by which long operations report: silently, or with bars on stderr."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from itertools import count
from typing import Any, Protocol

from offline_data.base.errors import UsageError
from offline_data.base.files import human_bytes
from offline_data.base.hints import in_python
from offline_data.base.pickles import pickled_by_name

DELAY = 2.0  # seconds after which a bar is drawn

_LABEL_WIDTH = 26
_INTERVAL = 0.2  # seconds between two texts of a line
_log = logging.getLogger("offline_data")


class Task(Protocol):
    """A task in progress."""

    def advance(self, amount: int = 1) -> None:
        """Add `amount` completed units (may be negative when an attempt restarts)."""

    def skip(self, amount: int) -> None:
        """Add `amount` units that were completed earlier; they do not count for the speed."""

    def resize(self, total: int) -> None:
        """Set the total number of units once it is known."""


class Progress(Protocol):
    """Receives progress of long operations; the command line draws it."""

    def task(self, label: str, total: int | None, unit: str) -> AbstractContextManager[Task]:
        """Start a task of `total` units (`"B"`, `"episodes"`, …; None: unknown)."""

    def note(self, message: str) -> None:
        """Report a sentence that the user should read."""


@pickled_by_name
class SilentProgress:
    """Ignores everything; it is its own task.

    Example:
        >>> with SilentProgress().task("convert", 10, "episodes") as task:
        ...     task.advance(3)
    """

    @contextmanager
    def task(self, label: str, total: int | None, unit: str) -> Iterator[Task]:  # noqa: ARG002
        yield self

    def note(self, message: str) -> None:
        """Ignore it."""

    def advance(self, amount: int = 1) -> None:
        """Ignore it."""

    def skip(self, amount: int) -> None:
        """Ignore it."""

    def resize(self, total: int) -> None:
        """Ignore it."""


SILENT = SilentProgress()


class LoggedNotes(SilentProgress):
    """Passes notes to the logger `offline_data`, as warnings in the words of Python; draws nothing."""

    def note(self, message: str) -> None:
        _log.warning("%s", in_python(message))


class ProgressBars(LoggedNotes):
    """Draws a bar on stderr for each task that is older than `delay` seconds; threads may share it.

    A bar is drawn in a terminal and in a notebook, as a line of text if that lacks ipywidgets, and goes
    when its task ends; with `everywhere` it is also written where stderr is neither, and stays.
    """

    def __init__(self, delay: float = DELAY, *, everywhere: bool = False) -> None:
        self._delay, self._everywhere = delay, everywhere
        self._lock = threading.RLock()
        self._live: Any = None
        self._drawn = 0

    @contextmanager
    def task(self, label: str, total: int | None, unit: str) -> Iterator[Task]:
        bar = _Bar(self._lock, label, total, unit)
        timer = threading.Timer(self._delay, self._draw, [bar])
        timer.daemon = True
        if self._delay > 0:
            timer.start()
        else:
            self._draw(bar)
        try:
            yield bar
        finally:
            timer.cancel()
            with self._lock:
                bar.ended = True
                if bar.live is not None:
                    if not self._everywhere:
                        self._live.remove_task(bar.row)
                    bar.live = None
                    self._drawn -= 1
                    if not self._drawn:
                        self._live.stop()
                        if self._everywhere:  # what stays is not drawn again
                            self._live = None

    def _draw(self, bar: _Bar) -> None:
        with self._lock:
            if bar.ended:
                return
            if self._live is None:
                console = self._console()
                if not (self._everywhere or console.is_jupyter or console.is_terminal):
                    return
                widgets = not console.is_jupyter or find_spec("ipywidgets") is not None
                draw = _new_drawing if widgets else _TextLine
                self._live = draw(console, transient=not self._everywhere)
            if not self._drawn:
                self._live.start()
            self._drawn += 1
            bar.live = self._live
            bar.row = self._live.add_task(bar.label, total=bar.total, bar=bar)
            bar.advance(0)

    def _console(self) -> Any:
        from rich.console import Console

        return Console(stderr=True)


class _Bar:
    """One task: counted from its beginning, drawn once it has taken a while."""

    def __init__(self, lock: threading.RLock, label: str, total: int | None, unit: str) -> None:
        half = (_LABEL_WIDTH - 1) // 2
        # both ends of a long label: ids differ there
        self.label = label if len(label) <= _LABEL_WIDTH else f"{label[:half]}…{label[-half:]}"
        self.total, self.ended = total, False
        self.live: Any = None
        self.row: Any = None
        self._lock, self._unit = lock, unit
        self._done, self._skipped, self._begin = 0, 0, time.monotonic()

    def skip(self, amount: int) -> None:
        """Count `amount` units that were done before: they say nothing about speed."""
        with self._lock:
            self._skipped += amount
            self.advance(amount)

    def advance(self, amount: int = 1) -> None:
        with self._lock:
            self._done += amount
            if self.live is not None:
                self.live.update(self.row, completed=self._done, total=self.total)

    def resize(self, total: int) -> None:
        self.total = total
        self.advance(0)

    def __str__(self) -> str:
        """Write how much is done, how fast, and what is left: `3 MiB/6 MiB 2 MiB/s 0:02`."""
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


class _TextLine:
    """The newest of some bars as a line that is written over, in a notebook without ipywidgets."""

    def __init__(self, console: Any, *, transient: bool) -> None:
        self._console, self._transient, self._rows = console, transient, count()
        self._bars: dict[int, tuple[str, _Bar]] = {}
        self._width = 0

    def add_task(self, label: str, *, bar: _Bar, **_: Any) -> int:
        row = next(self._rows)
        self._bars[row] = label, bar
        return row

    def update(self, row: int, **_: Any) -> None:
        newest = row == max(self._bars)
        if newest and time.monotonic() - self._written >= _INTERVAL:
            self._write(row)

    def remove_task(self, row: int) -> None:
        del self._bars[row]

    def start(self) -> None:
        self._written = -math.inf

    def stop(self) -> None:
        if self._transient:
            self._replace("", "\r")
        else:
            self._write(max(self._bars), "\n")

    def _write(self, row: int, end: str = "") -> None:
        label, bar = self._bars[row]
        self._replace(f"{label} {bar}", end)
        self._written = time.monotonic()

    def _replace(self, line: str, end: str = "") -> None:
        self._width = max(self._width, len(line))
        self._console.file.write(f"\r{line:{self._width}}{end}")
        self._console.file.flush()


def _new_drawing(console: Any, *, transient: bool) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[bar]}", markup=False),
        console=console,
        transient=transient,
        expand=True,
        redirect_stdout=False,
    )


def progress_of(progress: bool | Progress = True) -> Progress:
    """Return the receiver of the progress of a function that a user calls.

    True: bars in a terminal or a notebook, for work of more than two seconds; False: no bars; notes
    go to the logger `offline_data` either way. Or an object of the user's; else `UsageError`.
    """
    if isinstance(progress, bool):
        return ProgressBars() if progress else LoggedNotes()
    if not (hasattr(progress, "task") and hasattr(progress, "note")):
        raise UsageError(
            f"progress is {progress!r}; expected True, False, or an object with task and note"
        )
    return progress
