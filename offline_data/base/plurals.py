"""Counts and names in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsInt


def plural(count: SupportsInt, singular: str, plural: str | None = None) -> str:
    """Return a count with the words after 1, or after others: `plural`, by default with an s.

    Example:
        >>> plural(1, "row"), plural(2000, "row"), plural(0, "row has", "rows have")
        ('1 row', '2,000 rows', '0 rows have')
    """
    number = int(count)
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def plural_of(count: int, total: int, noun: str, singular: str, plural_verb: str) -> str:
    """Return the beginning of a sentence on some of all things, with the verb of their number.

    Example:
        >>> plural_of(1, 3, "row", "is", "are"), plural_of(2000, 3000, "row", "is", "are")
        ('1 of 3 rows is', '2,000 of 3,000 rows are')
    """
    return f"{count:,} of {plural(total, noun)} {singular if count == 1 else plural_verb}"


def shorten(name: str, longest: int = 80) -> str:
    """Return a name for a message; of a long one the beginning and the end.

    Example:
        >>> shorten("qpos"), shorten("info/" + "x" * 500 + "/y", 20)
        ('qpos', 'info/xxxxxxxx…xxxx/y')
    """
    tail = longest // 3
    return name if len(name) <= longest else f"{name[: longest - tail - 1]}…{name[-tail:]}"


def join_names(names: Iterable[str], most: int = 10) -> str:
    """Return names for a message, without those after the first `most`.

    Example:
        >>> join_names("abcd", 2)
        'a, b and 2 more'
    """
    listed = [*names]
    more = f" and {len(listed) - most:,} more" if len(listed) > most else ""
    return ", ".join(map(shorten, listed[:most])) + more
