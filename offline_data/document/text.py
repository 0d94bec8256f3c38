"""Blocks as plain text, for `repr`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from offline_data.document.blocks import WORDS, Block, Fields, Line, Lines, Table
from offline_data.document.values import human


def render(blocks: Iterable[Block]) -> str:
    """Return blocks as lines: labels and values in columns, numbers right-aligned."""
    return "\n\n".join(map(_render, blocks))


def lines_of(block: Table | Lines) -> Iterator[Line]:
    """Yield the lines of a listed table: its title, then indented rows without a header."""
    if isinstance(block, Lines):
        yield from map(list, block.lines)
        return
    if block.title:
        yield [(block.title, "id")]
    cells = [
        [human(value, column.kind) for value, column in zip(row, block.columns, strict=True)]
        for row in block.rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        aligned = [(cell.ljust(width), cell) for cell, width in zip(row, widths, strict=True)]
        yield [("  ", ""), *_spaced(aligned[:-1]), (row[-1], "")]


def _spaced(parts: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for part in parts:
        yield from (part, (" ", ""))


def _render(block: Block) -> str:
    if isinstance(block, Lines) or (isinstance(block, Table) and block.listed):
        return "\n".join("".join(part for part, _ in line) for line in lines_of(block))
    heading = [block.title] if block.title else []
    if isinstance(block, Fields):
        rows = [
            ["" if place else one.label, human(value, one.kind)]
            for one in block.fields
            for place, value in enumerate(one.values())
        ]
        return "\n".join([*heading, *_aligned(rows, [True, True])])
    filled = list(block.filled())
    columns = [
        [one.title.upper(), *(human(value, one.kind) for value in values)] for one, values in filled
    ]
    rows = list(map(list, zip(*columns, strict=True)))
    more = [f"and {block.more:,} more"] if block.more else []
    return "\n".join([*heading, *_aligned(rows, [one.kind in WORDS for one, _ in filled]), *more])


def _aligned(rows: list[list[str]], left: list[bool]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if so else cell.rjust(width)
            for cell, width, so in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in rows
    ]
