"""A safe subset of Markdown, for the descriptions that sources give."""

from __future__ import annotations

import re
from collections.abc import Iterator

from offline_data.document.html import Html, as_html, element
from offline_data.document.markdown import LINK

_LONGEST = 10_000
_DEEPEST = 4
_INLINE = re.compile(
    rf"`(?P<code>[^`\n]{{1,200}})`|(?P<link>{LINK.pattern})"
    r"|\*\*(?P<b>[^\s*][^*\n]{0,300})\*\*"
    r"|(?<![\w*])\*(?P<em>[^\s*][^*\n]{0,300})\*(?!\w)"
)
_ITEM = re.compile(r"\s{0,3}[-*+]\s+")
_HEADING = re.compile(r"#{1,6}\s+")


def render(source: str) -> Html:
    r"""Return paragraphs, lists, emphasis, code, and links to `http` and `https`; all else is text.

    Example:
        >>> render("*See* [it](https://a.b) <b>\n- [x](javascript:y)")
        '<p><em>See</em> <a href="https://a.b" rel="noopener nofollow">it</a> &lt;b&gt;</p><ul><li>[x](javascript:y)</li></ul>'
    """
    return as_html(_blocks(source[:_LONGEST].splitlines()))


def _blocks(lines: list[str]) -> Iterator[Html]:
    paragraph, items = list[str](), list[str]()
    for line in [*lines, ""]:
        item, heading = _ITEM.match(line), _HEADING.match(line)
        if (item or heading or not line.strip()) and paragraph:
            yield element("p", _inline(" ".join(paragraph)))
            paragraph = []
        if not item and items and (heading or not line.startswith("  ")):
            yield element("ul", (element("li", _inline(one)) for one in items))
            items = []
        if item:
            items.append(line[item.end() :])
        elif heading:
            yield element("p", element("b", _inline(line[heading.end() :])))
        elif items:
            items[-1] += f" {line.strip()}"
        elif line.strip():
            paragraph.append(line.strip())


def _inline(line: str, depth: int = 0) -> Iterator[object]:
    end = 0
    for found in _INLINE.finditer(line) if depth < _DEEPEST else ():
        yield line[end : found.start()]
        end = found.end()
        if found["code"]:
            yield element("code", found["code"])
        elif found["link"]:
            target = LINK.fullmatch(found["link"])
            label, address = (target[1], target[2]) if target else (None, None)
            shown = label.strip("`") if label else found[0]
            yield element("a", shown, href=address or found[0], rel="noopener nofollow")
        else:
            name = "b" if found["b"] else "em"
            yield element(name, _inline(found[name], depth + 1))
    yield line[end:]
