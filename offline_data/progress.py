"""The `Progress` protocol, by which long operations report; silent by default."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


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


class SilentProgress:
    """The default: ignores everything; it is its own task.

    Example:
        >>> with SilentProgress().task("convert", 10, "episodes") as task:
        ...     task.advance(3)
    """

    @contextmanager
    def task(self, label: str, total: int | None, unit: str) -> Iterator[Task]:  # noqa: ARG002
        """Open a task that ignores everything."""
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
