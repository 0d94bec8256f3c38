"""Output of results as text, JSON or ids; the only file that prints, data to stdout, rest to stderr.

Texts come from downloads. All text leaves through `_print` or `console_on`, which replace control
characters, or as JSON, which escapes them.
"""

from __future__ import annotations

import enum
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, TextIO

from offline_data.base.errors import UsageError
from offline_data.base.urls import redact
from offline_data.document.blocks import WORDS, Fields, Lines, Table, TableColumn
from offline_data.document.text import lines_of
from offline_data.document.values import format_nested, human
from offline_data_cli.result import Block, Drawing, Result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment


_GAP = 2  # spaces between columns
_NARROW = 12  # minimum width of a truncated text column
_NAME = 24  # minimum width of a name that is folded so that other columns fit

_PIPE = 80  # width of a drawing in a pipe
_UNLIMITED = 1 << 16  # width of a table that is not truncated
_STYLES = {  # styles by name of a column or field, or by value
    "id": "cyan",
    "path": "blue",
    "destination": "blue",
    "file": "blue",
    "root": "blue",
    "problem": "red",
    "OK": "green",
    "damaged": "bold red",
    "missing": "bold red",
    "installed": "green",
    "error": "bold red",
    "warning": "yellow",
    "info": "blue",
    "hint": "cyan",
}

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Mode(enum.Enum):
    """Format of stdout."""

    HUMAN = "human"  # tables in a terminal, tab-separated lines in a pipe
    JSON = "json"  # one JSON value
    QUIET = "quiet"  # ids or paths only, and no notes


def show(result: Result, mode: Mode) -> None:
    """Print a result except its failures."""
    for note in result.notes:
        say(note, mode)
    if mode is Mode.JSON:
        _print_json(result.data)
    elif mode is Mode.QUIET:
        for text in result.ids:
            _print(text)
    else:
        _print_blocks(result.blocks, sys.stdout)
    sys.stdout.flush()


def show_error(code: str, message: str, hint: str | None, *, as_json: bool) -> None:
    """Print a failure: as JSON on stdout, or as lines on stderr, all but the first indented."""
    if as_json:
        message = " ".join(message.split())
        _print_json({"error": {"code": code, "message": message, "hint": hint}})
        sys.stdout.flush()
        return
    _print_labelled("error", message)
    _print_labelled("hint", hint or "")


def show_warning(message: str) -> None:
    """Print a warning as one line on stderr."""
    _print_labelled("warning", redact(" ".join(message.split())))


def _print_labelled(word: str, text: str) -> None:
    """Print a text on stderr after a word in its colour, unless it is empty."""
    from rich.text import Text

    lines = [line.rstrip() for line in text.splitlines()]
    if any(lines):
        shown = Text("\n  ".join(filter(None, lines)))
        error_console().print(
            Text.assemble((f"{word}:", _STYLES[word]), " ", shown), soft_wrap=True
        )


def show_traceback(error: BaseException) -> None:
    """Print the traceback of an error, for `-v`."""
    import traceback

    for part in traceback.format_exception(error):
        _print(redact(part), sys.stderr, end="")


def say(note: str, mode: Mode = Mode.HUMAN) -> None:
    """Print a sentence on stderr, unless quiet."""
    if mode is not Mode.QUIET:
        _print(redact(note), sys.stderr)


def show_blocks(blocks: Sequence[Block]) -> None:
    """Print blocks on stderr, before a question about them."""
    _print_blocks(blocks, sys.stderr)


def confirm(blocks: Sequence[Block], question: str, *, yes: bool, mode: Mode) -> bool:
    """Show planned changes on stderr, and ask unless `yes`; raises `UsageError` if it cannot."""
    if mode is Mode.HUMAN or not yes:
        _print_blocks(blocks, sys.stderr)
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{question} Cannot ask for confirmation without a terminal",
            hint="use --yes to skip the question",
        )
    _print(f"{question} [y/N] ", sys.stderr, end="")
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def can_ask(mode: Mode) -> bool:
    """Return True if all streams are terminals and the output is for people."""
    return mode is Mode.HUMAN and all(
        stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)
    )


def choose(
    question: str, options: Sequence[str], hint: str, *, yes: bool, default: str | None = None
) -> str:
    """Ask the user to choose an option by number; raises `UsageError` without a terminal.

    An empty answer is the default, and an error without one.
    """
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(question, hint=hint)
    number = "" if default is None else str(options.index(default) + 1)
    (chosen,) = _read_numbers(question, options, hint, number)[:1]
    return chosen


def choose_several(question: str, options: Sequence[str]) -> list[str]:
    """Ask the user to choose options by their numbers."""
    return _read_numbers(question, options, "", None)


def _read_numbers(
    question: str, options: Sequence[str], hint: str, default: str | None
) -> list[str]:
    """Ask for the number of an option, or for several; `default` is None if there may be several."""
    _print(f"{question}.", sys.stderr)
    for number, option in enumerate(options, 1):
        _print(f"{number:3}  {option}", sys.stderr)
    what = "Numbers, such as 1,2" if default is None else "Number"
    shown = f" (default: {default})" if default else ""
    answer = ask(f"{what} [1-{len(options)}]{shown}", default or "")
    numbers = re.split(r"[,\s]+", answer) if default is None else [answer]
    for one in numbers:
        if not one.isdecimal() or not 1 <= int(one) <= len(options):
            raise UsageError(f"{one!r} is not a number from 1 to {len(options)}", hint=hint)
    return [options[int(one) - 1] for one in numbers]


def ask(question: str, default: str) -> str:
    """Ask the user for a line; an empty one is the default."""
    _print(f"{question}: ", sys.stderr, end="")
    return sys.stdin.readline().strip() or default


@dataclass(frozen=True)
class Display:
    """Display settings of this process."""

    layout: Literal["table", "tsv"] | None = None  # None: a table, or tab-separated in a pipe
    color: Literal["always", "never"] | None = None  # None: in a terminal, unless `NO_COLOR` is set
    truncate: bool = True  # whether tables are truncated to the width of the terminal


_display = Display()


def draw_as(display: Display) -> None:
    """Set the display settings of this process."""
    global _display
    _display = display


def console_on(stream: Any) -> Console:
    """Return a console with the user's colour setting; it replaces control characters of texts."""
    from rich.console import Console

    class CleanConsole(Console):
        def render(self, *arguments: Any) -> Iterator[Segment]:
            for part in super().render(*arguments):
                yield part if part.control else part._replace(text=clean(part.text))

    always = _display.color == "always"
    colored = always or (_display.color is None and stream.isatty())
    return CleanConsole(
        file=stream,
        highlight=False,
        emoji=False,
        markup=False,
        no_color=None if colored and not always else not colored,
        force_terminal=True if always else None,
        width=None if _display.truncate else _UNLIMITED,
    )


def error_console() -> Console:
    """Return a console on stderr, without colour unless it is a terminal."""
    return console_on(sys.stderr)


def stderr_is_terminal() -> bool:
    """Return True if stderr is a terminal."""
    return sys.stderr.isatty()


def format_for_pipe(value: Any) -> str:
    r"""Format a value for another program: unrounded, one cell on one line."""
    if isinstance(value, bool):
        return format_nested(value)
    return "" if value is None else re.sub(r"[\t\n]", " ", str(value))


def clean(text: str) -> str:
    """Replace characters that control a terminal or reorder its text."""
    return _CONTROL.sub("\ufffd", text)


def to_json(value: Any, *, ascii_only: bool = False) -> str:
    """Return a value as indented JSON that every parser accepts.

    Dataclasses become objects, arrays and tuples lists, paths strings, and non-finite numbers the
    strings "NaN", "Infinity" and "-Infinity". Control characters in strings are escaped. Raises
    `TypeError` for anything else.
    """
    text = json.dumps(_jsonable(value), indent=1, ensure_ascii=ascii_only, allow_nan=False)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _jsonable(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        from offline_data.base.ids import DatasetId

        if isinstance(value, DatasetId):
            return str(value)
        return {field.name: _jsonable(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_jsonable(item) for item in value]
    if isinstance(value, complex):
        return [_jsonable(value.real), _jsonable(value.imag)]
    if hasattr(value, "tolist"):
        return _jsonable(value.tolist())
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _print_json(value: Any) -> None:
    text = to_json(value)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = to_json(value, ascii_only=True)
    _print(text)


def _print(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    stream = stream or sys.stdout
    print(clean(text), end=end, file=stream, flush=stream is sys.stderr)


def _print_blocks(blocks: Sequence[Block], stream: Any) -> None:
    laid_out = stream.isatty() if _display.layout is None else _display.layout == "table"
    console = console_on(stream) if laid_out else None
    for place, block in enumerate(blocks):
        if place:
            _print("", stream)
        if isinstance(block, Table) and block.listed:
            block = Lines(list(lines_of(block)))
        if console:
            _print_rich(block, console)
        else:
            _print("\n".join(_plain_lines(block)), stream)


def _plain_lines(block: Block) -> list[str]:
    """Return a block as lines for a pipe: a heading, then cells separated by tabs."""
    if isinstance(block, str):
        return [block]
    if isinstance(block, Lines):
        return ["".join(text for text, _ in line) for line in block.lines]
    if isinstance(block, Drawing):
        return block.draw(_PIPE)
    heading = [block.title] if block.title else []
    if isinstance(block, Table):
        titles = "\t".join(column.title.upper() for column in block.columns)
        return [*heading, titles, *("\t".join(map(format_for_pipe, row)) for row in block.rows)]
    return heading + [
        f"{format_for_pipe(f.label)}\t{format_for_pipe(v)}"
        for f in block.fields
        for v in f.values()
    ]


def _print_rich(block: Block, console: Console) -> None:
    """Print a block in a terminal: numbers right-aligned, unknown columns omitted, the first whole."""
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    if isinstance(block, str):
        text = Text(block)
        for word in ("OK", "damaged"):
            text.highlight_regex(rf"\b{word}\b", _STYLES[word])
        console.print(text, soft_wrap=not _display.truncate)
        return
    if isinstance(block, Lines):
        for line in block.lines:
            _print_line(line, console, wrap=block.wrap and _display.truncate)
        return
    if isinstance(block, Drawing):
        for drawn in block.draw(console.width if _display.truncate else _PIPE):
            text = Text(drawn, no_wrap=True)
            text.highlight_regex("[▁-█▏-▓]+", "cyan")
            console.print(text, overflow="ellipsis")
        return
    if block.title:
        console.print(block.title, style="bold")
    grid = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    if isinstance(block, Fields):
        grid.show_header = False
        grid.add_column(no_wrap=True, style="bold")
        grid.add_column(overflow="fold")
        for field in block.fields:
            for place, value in enumerate(field.values()):
                text = Text(human(value, field.kind), style=_style(field.label, value))
                grid.add_row("" if place else field.label, text)
        console.print(grid)
        return
    columns = [
        (
            column,
            [
                Text(human(value, column.kind), style=_style(column.title, value))
                for value in values
            ],
        )
        for column, values in block.filled()
    ]
    longest = [
        (column, max(cell_len(column.title), *(cell.cell_len for cell in cells)))
        for column, cells in columns
    ]
    shown, gone = [], []
    for (column, cells), width in zip(columns, column_widths(longest, console.width), strict=True):
        if not width:
            gone.append(column.title.upper())
            continue
        shown.append(cells)
        grid.add_column(
            column.title.upper(),
            justify="left" if column.kind in WORDS else "right",
            overflow="ellipsis" if column.clip else "fold",
            no_wrap=column.clip,
            width=width,
        )
    for row in zip(*shown, strict=True):
        grid.add_row(*row)
    console.print(grid)
    if gone:
        note = f"{', '.join(gone)} not shown: widen the terminal, or use --no-truncate"
        console.print(note, style="dim")


def _print_line(line: Sequence[tuple[str, str]], console: Console, *, wrap: bool) -> None:
    """Print a line; the rest of a wrapped one is indented, unless it is a paragraph."""
    from rich.text import Text

    text = Text.assemble(*((part, _STYLES.get(role, "")) for part, role in line))
    if not wrap or text.cell_len <= console.width:
        console.print(text, soft_wrap=True)
        return
    indented = len(text.plain) - len(text.plain.lstrip())
    hang = " " * (indented + 4) if indented or len(line) > 1 else ""
    for number, part in enumerate(text.wrap(console, max(20, console.width - len(hang)))):
        part.rstrip()
        console.print(Text(hang if number else "").append_text(part), soft_wrap=True)


def _style(label: str, value: Any) -> str:
    return _STYLES.get(str(value), "") or _STYLES.get(label.casefold(), "")


def column_widths(columns: Sequence[tuple[TableColumn, int]], width: int) -> list[int]:
    """Return column widths for a terminal, given the length of each column's longest cell.

    The first column, which names the row, gets its full length, or is folded if the terminal is
    narrower, or so that the others fit, if one of them is marked `keep` and there is room. Of the
    others, those marked `keep` come first; a column that does not fit gets width 0. Text columns
    share the remaining width evenly.
    """
    widths = [0] * len(columns)

    def least(column: TableColumn, longest: int) -> int:
        """Return the minimum width of a column but the first."""
        return min(longest, max(_NARROW, len(column.title))) if column.kind in WORDS else longest

    whole, folded = width, width // 2
    if any(column.keep for column, _ in columns[1:]):
        room = width - sum(least(*column) + _GAP for column in columns[1:])
        if room >= _NAME:
            whole = folded = room
    order = sorted(range(len(columns)), key=lambda place: (place > 0, not columns[place][0].keep))
    left = width + _GAP
    for place in order:
        column, longest = columns[place]
        name = longest if longest <= whole else folded
        needed = least(column, longest) if place else name
        if needed + _GAP <= left:
            widths[place] = needed
            left -= needed + _GAP
    while growing := [i for i, (_, most) in enumerate(columns) if 0 < widths[i] < most][:left]:
        for place in growing:
            widths[place] += 1
        left -= len(growing)
    return widths
