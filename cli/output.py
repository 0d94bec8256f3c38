"""The only file that prints: data on stdout, everything else on stderr."""

from __future__ import annotations

import enum
import sys
from typing import TYPE_CHECKING, Any, Literal

from offline_data.errors import UsageError
from offline_data.urls import redact
from offline_data_cli.cells import clean, human, piped
from offline_data_cli.encode import to_json
from offline_data_cli.result import Fields, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from offline_data_cli.result import Block, Column, Field, Result


_GAP = 2
"""Spaces between columns."""
_NARROW = 12
"""Letters on a line that a column of text is worth having with."""


class Mode(enum.Enum):
    """What stdout is for."""

    HUMAN = "human"
    """Tables in a terminal, tab-separated lines in a pipe."""
    JSON = "json"
    """One JSON value."""
    QUIET = "quiet"
    """Ids only, and no notes."""


def show(result: Result, mode: Mode) -> None:
    """Print a result, its failures excepted."""
    for note in result.notes:
        say(note, mode)
    if mode is Mode.JSON:
        _print_json(result.data)
    elif mode is Mode.QUIET:
        _print_lines(sys.stdout, [clean(text) for text in result.ids])
    else:
        _print_blocks(result.blocks, sys.stdout)
    sys.stdout.flush()


def _print_json(value: Any) -> None:
    """Print a value; letters that the stream cannot have are escaped as JSON escapes them."""
    text = to_json(value)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = to_json(value, ascii_only=True)
    print(text)


def show_error(code: str, message: str, hint: str | None, *, as_json: bool) -> None:
    """Print a failure, as JSON on stdout or as a line and a hint on stderr.

    Further lines of a message, the places that were tried for example, are set in.
    """
    lines = [line.rstrip() for line in message.splitlines()]
    if as_json:
        said = " ".join(message.split())
        _print_json({"error": {"code": code, "message": said, "hint": hint}})
        sys.stdout.flush()
        return
    console = error_console()
    for style, word, text in (("bold red", "error", lines), ("cyan", "hint", [hint or ""])):
        if any(text):
            console.print(f"{word}:", style=style, end=" ", markup=False, highlight=False)
            shown = "\n  ".join(clean(line) for line in text if line)
            console.print(shown, markup=False, highlight=False, soft_wrap=True)


def show_traceback(error: BaseException) -> None:
    """Print where an error comes from, for `-v`."""
    import traceback

    for part in traceback.format_exception(error):
        print(redact(part), end="", file=sys.stderr)


def say(note: str, mode: Mode = Mode.HUMAN) -> None:
    """Print a sentence on stderr, unless quiet."""
    if mode is not Mode.QUIET:
        print(redact(clean(note)), file=sys.stderr)


def show_version() -> None:
    """Print name and version."""
    from offline_data.reports.environment import DISTRIBUTION, installed_version

    print(f"offline-data {installed_version(DISTRIBUTION) or 'not installed'}")


def confirm(blocks: Sequence[Block], question: str, *, yes: bool, mode: Mode) -> bool:
    """Show on stderr what is about to happen and ask; `yes` answers it.

    Raises:
        UsageError: There is no terminal to ask in.
    """
    if mode is Mode.HUMAN or not yes:
        _print_blocks(blocks, sys.stderr)
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{question} There is no terminal to ask in", hint="answer beforehand with --yes"
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def error_console() -> Console:
    """Return a console on stderr, without colour where that is no terminal."""
    from rich.console import Console

    return Console(stderr=True, no_color=not stderr_is_terminal() or None)


def stderr_is_terminal() -> bool:
    """Tell whether somebody watches."""
    return sys.stderr.isatty()


def _print_blocks(blocks: Sequence[Block], stream: Any) -> None:
    if stream.isatty():
        _print_rich(blocks, stream)
        return
    for place, block in enumerate(blocks):
        if place:
            print(file=stream)
        _print_lines(stream, _plain_lines(block))


def _print_lines(stream: Any, lines: Sequence[str]) -> None:
    for line in lines:
        print(line, file=stream)


def _plain_lines(block: Block) -> list[str]:
    """Lay a block out for a pipe: a heading, then cells separated by tabs."""
    if isinstance(block, str):
        return [clean(block)]
    heading = [block.title] if block.title else []
    if isinstance(block, Table):
        titles = "\t".join(column.title for column in block.columns)
        return [*heading, titles, *("\t".join(map(piped, row)) for row in block.rows)]
    return heading + [f"{f.label}\t{piped(v)}" for f in block.fields for v in _values(f)]


def _values(field: Field) -> list[Any]:
    """Return the lines a field takes: none where there is nothing to say."""
    values = field.value if isinstance(field.value, (list, tuple)) else [field.value]
    return [value for value in values if value is not None and value != ""]


def _print_rich(blocks: Sequence[Block], stream: Any) -> None:
    from rich.console import Console

    console = Console(file=stream, highlight=False, markup=False)
    for place, block in enumerate(blocks):
        if place:
            console.print()
        if isinstance(block, str):
            console.print(clean(block))
            continue
        if block.title:
            console.print(block.title, style="bold")
        rich = (
            _rich_table(block, console.width) if isinstance(block, Table) else _rich_fields(block)
        )
        console.print(rich)


def _rich_table(block: Table, width: int) -> Any:
    """Lay a table out: numbers right, unknown columns left out, the first column whole."""
    from rich.cells import cell_len
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    columns = _known_columns(block)
    widths = column_widths(
        [(column, max(map(cell_len, (column.title, *values)))) for column, values in columns],
        width,
    )
    table = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    shown = []
    for (column, values), wide in zip(columns, widths, strict=True):
        if wide:
            justify: Literal["left", "right"] = "left" if column.kind == "text" else "right"
            overflow: Literal["ellipsis", "fold"] = "ellipsis" if column.clip else "fold"
            table.add_column(
                column.title, justify=justify, overflow=overflow, no_wrap=column.clip, width=wide
            )
            shown.append(values)
    for row in zip(*shown, strict=True):
        table.add_row(*map(Text, row))
    gone = [column.title for (column, _), wide in zip(columns, widths, strict=True) if not wide]
    note = f"no room for {', '.join(gone)}: widen the terminal, or see --json"
    return Group(table, Text(note, style="dim")) if gone else table


def column_widths(columns: Sequence[tuple[Column, int]], width: int) -> list[int]:
    """Share the width of a terminal among columns, of which each has its longest cell's length.

    The first column, which says what a row is about, is as wide as its longest cell, or folded
    where the terminal is narrower than that. Of the others, those that are to be kept come first; one that
    does not fit is left out: 0. Texts get what they need last, evenly.
    """
    widths = [0] * len(columns)
    order = sorted(range(len(columns)), key=lambda place: (place > 0, not columns[place][0].keep))
    left = width + _GAP
    for place in order:
        column, longest = columns[place]
        least = min(longest, max(_NARROW, len(column.title)))
        if place == 0:
            needed = longest if longest <= width else width // 2
        else:
            needed = least if column.kind == "text" else longest
        if needed + _GAP <= left:
            widths[place] = needed
            left -= needed + _GAP
    while growing := [i for i, (_, most) in enumerate(columns) if 0 < widths[i] < most][:left]:
        for place in growing:
            widths[place] += 1
        left -= len(growing)
    return widths


def _known_columns(block: Table) -> list[tuple[Column, list[str]]]:
    """Return the columns that know anything, with their cells as text."""
    columns = zip(block.columns, zip(*block.rows, strict=True), strict=True)
    return [
        (column, [human(value, column.kind) for value in values])
        for column, values in columns
        if any(value not in {None, ""} for value in values)
    ]


def _rich_fields(block: Fields) -> Any:
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for field in block.fields:
        for place, value in enumerate(_values(field)):
            label = "" if place else field.label
            table.add_row(label, Text(human(value, field.kind)))
    return table
