"""Results of commands, which `render.py` prints for people, scripts and pipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from offline_data.base.errors import OfflineDataError
from offline_data.document import blocks as document
from offline_data.document.blocks import Table


class Drawing(NamedTuple):
    """Lines that are drawn for a width."""

    draw: Callable[[int], list[str]]  # takes the width in characters; a pipe has 80


Block: TypeAlias = document.Block | Drawing | str
"""Printed parts of a result."""


@dataclass(frozen=True)
class Result:
    """Outcome of one command."""

    data: Any  # for `--json`: dataclasses, mappings, sequences, paths, arrays and plain values
    blocks: Sequence[Block]  # printed for people
    ids: Sequence[str] = ()  # printed with `--quiet`, one per line
    notes: Sequence[str] = ()  # notes on stderr
    code: int = 0  # exit code if not 0 and not that of a failure
    failures: Sequence[OfflineDataError] = ()  # shown besides; the first sets the exit code


def combine(data: Any, results: Sequence[Result], code: int = 0) -> Result:
    """Combine results; adjacent lines, and tables with the same columns, are merged."""
    blocks: list[Block] = []
    for block in (block for result in results for block in result.blocks):
        last = blocks[-1] if blocks else None
        if isinstance(block, Table) and isinstance(last, Table) and block.columns == last.columns:
            blocks[-1] = Table(last.columns, (*last.rows, *block.rows))
        elif isinstance(block, str) and isinstance(last, str):
            blocks[-1] = f"{last}\n{block}"
        else:
            blocks.append(block)
    ids = [text for result in results for text in result.ids]
    notes = [note for result in results for note in result.notes]
    failures = [error for result in results for error in result.failures]
    return Result(data, blocks, ids, notes, code, failures)
