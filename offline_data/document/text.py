"""Blocks as plain text, for `repr`."""

from __future__ import annotations

from collections.abc import Iterable

from offline_data.document.blocks import WORDS, Block, Fields
from offline_data.document.values import human


def render(blocks: Iterable[Block]) -> str:
    """Return blocks as lines: labels and values in columns, numbers right-aligned."""
    return "\n\n".join(map(_render, blocks))


def _render(block: Block) -> str:
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
    return "\n".join([*heading, *_aligned(rows, [one.kind in WORDS for one, _ in filled])])


def _aligned(rows: list[list[str]], left: list[bool]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if so else cell.rjust(width)
            for cell, width, so in zip(row, widths, left, strict=True)
        ).rstrip()
        for row in rows
    ]
