"""The `Progress` protocol: how long work tells of itself; silent by default."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


class Task(Protocol):
    """One piece of work under way."""

    def advance(self, amount: int = 1) -> None:
        """Say that `amount` more units are done (may be negative when a try starts over)."""

    def skip(self, amount: int) -> None:
        """Say that `amount` more units need no work, for they were done before; not for speed."""

    def resize(self, total: int) -> None:
        """Say how many units there are in all, once that is known."""


class Progress(Protocol):
    """Receives what long work has to tell; the command line draws it, a library user may too."""

    def task(self, label: str, total: int | None, unit: str) -> AbstractContextManager[Task]:
        """Open a piece of work of `total` units (`"B"`, `"episodes"`, …; None: unknown)."""

    def note(self, message: str) -> None:
        """Pass on a sentence that the user should read once."""


class SilentProgress:
    """The default: says nothing; its tasks are itself.

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
