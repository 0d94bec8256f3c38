"""Counts in sentences."""

from __future__ import annotations

from typing import SupportsInt


def plural(count: SupportsInt, singular: str, plural: str | None = None) -> str:
    """Return a count with its noun, and its verb if there is one.

    Args:
        count: A whole number.
        singular: Words after 1.
        plural: Words after any other number; None appends an s to `singular`.

    Example:
        >>> plural(1, "row"), plural(2000, "row"), plural(0, "row has", "rows have")
        ('1 row', '2,000 rows', '0 rows have')
    """
    number = int(count)
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"
