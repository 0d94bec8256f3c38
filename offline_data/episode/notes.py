"""Sentences about a conversion, which batches, shards and parts of datasets join."""

from __future__ import annotations

import re
from collections.abc import Iterable

from offline_data.base.plurals import plural

_COUNTED = re.compile(r"In ([\d,]+) (row|episode)s? ")


def count_rows(rows: int, problem: str) -> str:
    """Return a sentence on some rows; `join_notes` adds the numbers of equal ones.

    Example:
        >>> count_rows(1200, "the reward is NaN.")
        'In 1,200 rows the reward is NaN.'
    """
    return f"In {plural(rows, 'row')} {problem}"


def count_episodes(episodes: int, problem: str) -> str:
    """Return a sentence on some episodes; see `count_rows`.

    Example:
        >>> count_episodes(1, "no end flag is set.")
        'In 1 episode no end flag is set.'
    """
    return f"In {plural(episodes, 'episode')} {problem}"


def join_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """Return each sentence once, in order, with the sum of the numbers of counted ones.

    Example:
        >>> join_notes(["In 2 rows x.", "No licence.", "In 3 rows x.", "No licence."])
        ('In 5 rows x.', 'No licence.')
    """
    counts: dict[tuple[str, str], int] = {}
    for note in notes:
        found = _COUNTED.match(note)
        key = (found[2], note[found.end() :]) if found else ("", note)
        number = int(found[1].replace(",", "")) if found else 0
        counts[key] = counts.get(key, 0) + number
    return tuple(
        f"In {plural(number, unit)} {text}" if unit else text
        for (unit, text), number in counts.items()
    )
