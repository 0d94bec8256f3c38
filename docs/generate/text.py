"""Markdown of tables and paragraphs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NUMBERS = {"steps", "episodes", "download", "datasets", "default"}
"""Columns of numbers."""


def plain(text: object) -> str:
    """Escape text for a paragraph or a cell of a table; spans in backquotes stay as they are."""
    parts = re.split(r"(`[^`]+`)", str(text).replace("|", "&#124;"))
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(
            r"([*_\[\]])", r"\\\1", parts[place].replace("<", "&lt;").replace(">", "&gt;")
        )
    return "".join(parts)


def code(text: object) -> str:
    """Return text as an inline span of code, also within a table."""
    escaped = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f"<code>{escaped.replace('|', '&#124;')}</code>"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; cells are Markdown, numbers are at the right."""
    lines = [head, ["---:" if name in NUMBERS else "---" for name in head], *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def bullets(items: Iterable[object]) -> str:
    """Return a list; items are Markdown."""
    return "\n".join(f"- {item}" for item in items)


def page(*parts: str) -> str:
    """Join the blocks of a page; empty ones are left out."""
    return "\n\n".join(filter(None, parts)) + "\n"


def links(addresses: Iterable[str]) -> str:
    """Return links, those to issues by repository and number: `[rl 7](…)`."""
    issue = re.compile(r"https://github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+)")
    return ", ".join(
        f"[{found[1]} {found[2]}]({one})" if (found := issue.fullmatch(one)) else f"<{one}>"
        for one in addresses
    )
