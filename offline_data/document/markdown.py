"""Texts from elsewhere in Markdown: escaped, so that they are not markup of the page they stand in."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

from offline_data.base.urls import redact
from offline_data.document.blocks import Block, Fields, Lines
from offline_data.document.values import capitalize, human

LONGEST = 2000  # characters that are shown of a longer text
_MOST_ROWS = 60  # rows of a table that are shown
_MARKUP = re.compile(r"([\\`*_\[\]|~#$!@(){}]|(?<=\w):(?=//)|(?<=www)\.)")
_FIRST = re.compile(r"^(\d*)([-+=.)])(?=[-=\s]|$)")
_ADDRESS = r"https?://[^\s()<>\[\]{}\"'`|\\@]{1,500}"
LINK = re.compile(rf"(?<!!)\[([^\[\]]{{1,300}})\]\(({_ADDRESS})\)|{_ADDRESS}(?<![.,;:!?*_~])")


def escape(text: Any) -> str:
    r"""Return a text on one line as Markdown that shows it verbatim, without passwords in URLs.

    Example:
        >>> escape("a|b <script> [x](http://y) *z*\n# w")
        'a\\|b &lt;script&gt; \\[x\\]\\(http\\://y\\) \\*z\\* \\# w'
    """
    return _FIRST.sub(r"\1\\\2", _escape_line(_cut(text)))


def escape_text(text: Any) -> str:
    r"""Return a text like `escape`, in which links and addresses of the web stay links.

    Example:
        >>> escape_text("*z* of [`DAPG`](https://a.b/c_d), see http://x.y. ![f](ftp://g)")
        '\\*z\\* of [DAPG](https://a.b/c_d), see <http://x.y>. \\!\\[f\\]\\(ftp\\://g\\)'
    """
    line, parts, end = _cut(text), [], 0
    for found in LINK.finditer(line):
        label, address = found[1], found[2]
        shown = f"[{_escape_line(label.strip('`'))}]({address})" if address else f"<{found[0]}>"
        parts += [_escape_line(line[end : found.start()]), shown]
        end = found.end()
    return _FIRST.sub(r"\1\\\2", "".join([*parts, _escape_line(line[end:])]))


def _cut(text: Any) -> str:
    line = one_line(text)
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _escape_line(line: str) -> str:
    return _MARKUP.sub(r"\\\1", html.escape(line, quote=False))


def one_line(text: Any) -> str:
    """Return a text on one line, without passwords in URLs; a character that cannot be shown is U+FFFD."""
    words = " ".join(redact(str(text)).split())
    return "".join(one if one.isprintable() else "\ufffd" for one in words)


def render(block: Block) -> str:
    """Return a block as Markdown: a table, a list with a line for each value, or lines."""
    if isinstance(block, Lines):
        return "  \n".join(escape("".join(part for part, _ in line)) for line in block.lines)
    if isinstance(block, Fields):
        return "\n".join(
            f"- {escape(one.label)}: {escape_text(human(value, one.kind))}"
            for one in block.fields
            for value in one.values()
        )
    filled = list(block.filled())
    columns = [[human(value, one.kind) for value in values] for one, values in filled]
    titles = [capitalize(one.title) for one, _ in filled]
    return table_of(titles, zip(*columns, strict=True))


def table_of(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts, which are escaped; of a long one its first rows."""
    listed = list(rows)
    lines = [
        titles,
        ["---"] * len(titles),
        *([escape(c) for c in row] for row in listed[:_MOST_ROWS]),
    ]
    more = f"\n\nand {len(listed) - _MOST_ROWS:,} more" if len(listed) > _MOST_ROWS else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + more
