"""Progress on stderr: notes, and in a terminal bars for tasks of more than a second."""

from __future__ import annotations

from typing import Any

from offline_data.base.progress import SILENT, Progress, ProgressBars, SilentProgress
from offline_data_cli.render import Mode, error_console, say, stderr_is_terminal

DELAY = 1.0  # seconds after which a bar is drawn


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


class Bars(ProgressBars):
    """Draws progress bars on stderr, in colour as the user set it, and prints notes there."""

    def __init__(self, delay: float = DELAY) -> None:
        super().__init__(delay)

    def note(self, message: str) -> None:
        """Print it on stderr."""
        say(message)

    def _console(self) -> Any:
        return error_console()
