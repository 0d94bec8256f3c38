"""Pages as Python's own parser of HTML sees them."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np
from PIL import Image

VOID = {"br", "img", "input", "link", "meta"}


@dataclass
class Element:
    name: str
    attributes: dict[str, str | None]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(one if isinstance(one, str) else one.text for one in self.children)

    def all(self, name: str, **attributes: str) -> list[Element]:
        """Return the elements of that name in it, in order; `class_` is `class`."""
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        found = []
        for one in self.children:
            if isinstance(one, Element):
                if name in ("*", one.name) and wanted.items() <= one.attributes.items():
                    found.append(one)
                found += one.all(name, **attributes)
        return found


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        made = Element(tag, dict(attrs))
        assert len(made.attributes) == len(attrs)
        self.open[-1].children.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().name == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse(content: bytes | str) -> Element:
    """Return a page or a part of one; fails unless each element is closed where it must be."""
    parser = _Parser()
    parser.feed(content if isinstance(content, str) else content.decode())
    parser.close()
    assert len(parser.open) == 1
    return parser.open[0]


def _refuse(constant: str) -> None:
    raise AssertionError(constant)


def data_of(page: Element) -> dict[str, Any]:
    """Return the JSON from which a viewer draws; fails on NaN, which is not JSON."""
    (block,) = page.all("div", id="data")[0].all("script", type="application/json")
    found: dict[str, Any] = json.loads(block.text, parse_constant=_refuse)
    return found


def charts(page: Element) -> dict[str, Any]:
    """Return what each chart of a page draws, by title, the first of each."""
    blocks = page.all("script", type="application/json")
    found = [json.loads(block.text, parse_constant=_refuse) for block in blocks]
    return {one["title"]: one for one in reversed(found) if "title" in one}


def levels(camera: dict[str, Any]) -> list[int]:
    """Return the mean grey level of each picture of a camera, as Pillow decodes it."""
    files = [base64.b64decode(file) for file in camera["files"]]
    return [round(np.asarray(Image.open(io.BytesIO(file))).mean()) for file in files]
