"""Sentences about a conversion, which batches, shards and parts of datasets join."""

from __future__ import annotations

import re
from collections.abc import Iterable

from offline_data.plurals import plural

_COUNTED = re.compile(r"In ([\d,]+) rows? ")


def count_rows(rows: int, problem: str) -> str:
    """Return a sentence on some rows; `join_notes` adds the numbers of equal ones.

    Example:
        >>> count_rows(1200, "the reward is NaN.")
        'In 1,200 rows the reward is NaN.'
    """
    return f"In {plural(rows, 'row')} {problem}"


def join_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """Return each sentence once, in order, with the sum of the numbers of `count_rows`.

    Example:
        >>> join_notes(["In 2 rows x.", "No licence.", "In 3 rows x.", "No licence."])
        ('In 5 rows x.', 'No licence.')
    """
    counts: dict[tuple[bool, str], int] = {}
    for note in notes:
        found = _COUNTED.match(note)
        key = (found is not None, note[found.end() :] if found else note)
        rows = int(found[1].replace(",", "")) if found else 0
        counts[key] = counts.get(key, 0) + rows
    return tuple(
        count_rows(rows, text) if counted else text for (counted, text), rows in counts.items()
    )
