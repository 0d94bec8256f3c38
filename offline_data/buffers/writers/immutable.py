"""The writer of what never changes: it refuses, and says what to do instead."""

from __future__ import annotations

from typing import Any, NoReturn

from offline_data.buffers.writers.base import Writer
from offline_data.errors import ImmutableError


class ImmutableDatasetWriter(Writer):
    """Refuses every change of a dataset.

    Example:
        >>> try:
        ...     ImmutableDatasetWriter().add(1)
        ... except ImmutableError as error:
        ...     print(error.message)
        A dataset is immutable: add would change it
    """

    def add(self, data: Any) -> NoReturn:  # noqa: ARG002 - TorchRL's signature
        """Raise `ImmutableError`."""
        raise immutable("add")

    def extend(self, data: Any) -> NoReturn:  # noqa: ARG002
        """Raise `ImmutableError`."""
        raise immutable("extend")

    def empty(self, empty_write_count: bool = True) -> NoReturn:  # noqa: ARG002
        """Raise `ImmutableError`."""
        raise immutable("empty")

    def __repr__(self) -> str:
        return "ImmutableDatasetWriter()"


def immutable(what: str) -> ImmutableError:
    """Make the error for an attempt to change a dataset by `what`."""
    return ImmutableError(
        f"A dataset is immutable: {what} would change it",
        hint="change batches on the way out with transform=…, or copy rows into memory that is "
        "yours: buffer[:1000].clone()",
    )
