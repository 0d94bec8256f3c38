"""Whole pages, and the parts that all have."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from offline_data.document.html import Html, element


def section(identity: str, title: str, *content: object) -> Html:
    """Return a section of a page with a heading that links can lead to."""
    return element("section", element("h2", title), *content, id=identity)


def data_uri(kind: str, content: bytes) -> Html:
    """Return an image file as a `data:` address; `kind` is its media type."""
    return Html(f"data:{kind};base64,{base64.b64encode(content).decode()}")


def data_block(value: Any) -> Html:
    r"""Return JSON in an element that is not run, without a character that could end it.

    Raises:
        ValueError: A number is not finite.

    Example:
        >>> data_block(["</script>"])
        '<script type="application/json">["\\u003c/script\\u003e"]</script>'
    """
    written = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        written = written.replace(char, f"\\u{ord(char):04x}")
    return element("script", Html(written), type="application/json")


def page(
    title: str,
    *content: object,
    links: Iterable[tuple[str, str]] = (),
    served: bool = False,
) -> bytes:
    """Return a whole page of text and charts; see `document`.

    `title` is its first heading, too; for `content` see `element`; `links` are addresses and texts in
    the head of the page.
    """
    toggle = element("button", "Theme", id="theme", type="button", title="Light or dark")
    navigation = element("nav", (element("a", name, href=to) for to, name in links))
    return document(
        title,
        element("header", element("h1", title), toggle, navigation),
        element("main", content),
        element("footer", "Made by offline-data"),
        served=served,
    )


def document(
    title: str, *content: object, class_: str | None = None, served: bool = False
) -> bytes:
    """Return an HTML document with its style and script in it, UTF-8.

    It states a content security policy under which a browser loads nothing for it, except from the
    server of a `served` page, which its script may ask for more, and runs no script but the page's
    own.
    """
    policy = Html(security_policy(served))
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        icon(),
        element("style", _style()),
    )
    body = element(
        "body",
        content,
        element("noscript", element("p", "This page needs JavaScript.")),
        element("script", _script()),
        class_=class_,
    )
    whole = element("html", head, body, lang="en")
    return f"<!doctype html>\n{whole}\n".encode("utf-8", "replace")


def icon() -> Html:
    """Return the icon of a page as a link; without one a browser asks the server for it."""
    picture = (
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'>"
        "<path fill='#2f6fd0' d='M0 8V5H2V8ZM3 8V1H5V8ZM6 8V3H8V8Z'/></svg>"
    )
    return element("link", rel="icon", href=data_uri("image/svg+xml", picture.encode()))


@cache
def security_policy(served: bool) -> str:
    """Return the content security policy of pages; see `page`."""
    own = " 'self'" if served else ""
    rules = {
        "default-src": "'none'",
        "img-src": f"data:{own}",
        "style-src": _digest(_style()),
        "script-src": _digest(_script()),
        "media-src": own.strip() or "'none'",
        **({"connect-src": "'self'"} if served else {}),
        "base-uri": "'none'",
        "form-action": own.strip() or "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


@cache
def _style() -> Html:
    return _assets("page.css", "viewer.css")


@cache
def _script() -> Html:
    return _assets("page.js", "list.js", "viewer.js")


def _assets(*names: str) -> Html:
    return Html("".join((files(__package__) / name).read_text(encoding="utf-8") for name in names))


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
