"""HTML elements. Texts come from downloads: all text is escaped on insertion."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from offline_data.base.plurals import shorten
from offline_data.base.urls import redact
from offline_data.document import text as plain
from offline_data.document.blocks import WORDS, Block, Fields, Kind, Lines, Table
from offline_data.document.values import capitalize, human

_VOID = frozenset({"br", "img", "input", "link", "meta"})  # elements without an end tag

_LONGEST = 10_000  # maximum length of a text in characters
_CLIPPED = 80  # characters of a clipped text in a notebook; its `title` has ten times as many
_MOST_ROWS = 60  # rows of a table in a notebook

# Control characters, bidirectional overrides and lone surrogates.
_INVISIBLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Html(str):
    """Markup. Every other string is text, which `element` escapes."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return a value as escaped text, cut after 10,000 characters, without passwords in URLs.

    Example:
        >>> text("<b> & 'c'")
        '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    shown = redact(str(value))
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
    return Html(escape(_INVISIBLE.sub("\ufffd", shown)))


def element(name: str, /, *content: object, **attributes: object) -> Html:
    """Return an element with its content and attributes, escaped unless they are `Html`.

    Content that is None is omitted; lists and other iterables are inserted in order.
    Attributes that are None or False are omitted; `class_` is `class`, `data_x` is `data-x`.

    Example:
        >>> element("p", "1 < 2", element("br"), class_="note", hidden=True)
        '<p class="note" hidden>1 &lt; 2<br></p>'
    """
    given = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{as_html(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(
        f"<{name}{given}>" if name in _VOID else f"<{name}{given}>{as_html(content)}</{name}>"
    )


def as_html(content: object) -> Html:
    """Return content as markup; see `element`."""
    if content is None:
        return Html()
    if isinstance(content, Html):
        return content
    if isinstance(content, Iterable) and not isinstance(content, str):
        return Html("".join(map(as_html, content)))
    return text(content)


def table_of(
    titles: Sequence[object], rows: Iterable[Sequence[object]], numbers: Sequence[bool] | int = 0
) -> Html:
    """Return a table that scrolls sideways if it is too wide.

    `numbers`: which columns are numbers, or how many of the last ones.
    """
    if isinstance(numbers, int):
        numbers = [place >= len(titles) - numbers for place in range(len(titles))]

    def cells(name: str, row: Sequence[object]) -> Html:
        scope = "col" if name == "th" else None
        return as_html(
            element(name, cell, class_="number" if numbers[place] else None, scope=scope)
            for place, cell in enumerate(row)
        )

    head = element("thead", element("tr", cells("th", titles)))
    body = element("tbody", (element("tr", cells("td", row)) for row in rows))
    return element("div", element("table", head, body), class_="scroll", tabindex=0)


def facts(values: Mapping[str, object]) -> Html:
    """Return names and values as a description list; those that are None or empty are omitted."""
    return element(
        "dl",
        (
            (element("dt", name), element("dd", value))
            for name, value in values.items()
            if value is not None and value not in ("", [], (), {})
        ),
    )


def render(*blocks: Block, clip: bool = False) -> Html:
    """Return blocks as markup: a table that scrolls sideways, a description list, or lines.

    `clip`: whether long texts of columns that may be clipped are shortened, and `title` has more.
    """
    return as_html(_render(block, clip) for block in blocks)


def _render(block: Block, clip: bool) -> Html:
    if isinstance(block, Lines):
        return as_html(element("p", "".join(part for part, _ in line)) for line in block.lines)
    heading = element("h3", block.title) if block.title else None
    if isinstance(block, Fields):
        each = {capitalize(one.label): _values(one.values(), one.kind) for one in block.fields}
        return as_html((heading, facts(each)))
    filled = list(block.filled())
    cells = [
        [(_clipped if clip and one.clip else _cell)(value, one.kind) for value in values]
        for one, values in filled
    ]
    rows = zip(*cells, strict=True)
    numbers = [one.kind not in WORDS for one, _ in filled]
    shown = table_of([capitalize(one.title) for one, _ in filled], rows, numbers)
    return as_html(
        (heading, shown, element("p", f"and {block.more:,} more") if block.more else None)
    )


def _clipped(value: object, kind: Kind) -> object:
    """Return a cell of a notebook: a long text is shortened, with more of it as its `title`."""
    if kind != "text" or not isinstance(value, str) or len(value) <= _CLIPPED:
        return _cell(value, kind)
    return element("span", shorten(value, _CLIPPED), title=shorten(value, 10 * _CLIPPED))


def _cell(value: object, kind: Kind) -> object:
    if value is None or value == "" or isinstance(value, Html):
        return value
    if kind == "code":
        return element("code", value)
    return element("pre", value, tabindex=0) if kind == "verbatim" else human(value, kind)


def _values(values: Sequence[object], kind: Kind) -> object:
    cells = [_cell(value, kind) for value in values]
    return element("ul", (element("li", one) for one in cells)) if len(cells) > 1 else cells


class Document(ABC):
    """A result that is shown as its blocks: tables in a notebook, text in `repr`; of long tables the first rows."""

    @abstractmethod
    def blocks(self) -> Sequence[Block]:
        """Return what is shown of it."""

    def _shown(self) -> Iterator[Block]:
        for block in self.blocks():
            yield block.first(_MOST_ROWS) if isinstance(block, Table) else block

    def _repr_html_(self) -> str:
        return render(*self._shown(), clip=True)

    def __repr__(self) -> str:
        return plain.render(self._shown())
