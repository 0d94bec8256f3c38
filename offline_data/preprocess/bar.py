"""A progress bar for scripts and notebooks that ask for one."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from offline_data.progress import Task


class RichProgress:
    """Draws a bar on stderr for each task, one after the other; sentences stand above it."""

    @contextmanager
    def task(self, label: str, total: int | None, unit: str) -> Iterator[Task]:  # noqa: ARG002
        """Open a bar; it stays when it has ended."""
        from rich.progress import Progress

        with Progress(console=_console()) as live:
            yield _Bar(live, live.add_task(label, total=total))

    def note(self, message: str) -> None:
        """Write a sentence."""
        _console().print(message, markup=False, highlight=False)


class _Bar:
    def __init__(self, live: Any, row: Any) -> None:
        self._live, self._row = live, row

    def advance(self, amount: int = 1) -> None:
        """Move on."""
        self._live.advance(self._row, amount)

    def resize(self, total: int) -> None:
        """Set the length."""
        self._live.update(self._row, total=total)


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True)
