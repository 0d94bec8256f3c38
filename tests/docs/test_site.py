"""The built site: strict, its links and anchors lead somewhere, and nothing is fetched from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.reports.pages.test_browser import Browser, chromium

__all__ = ["chromium"]

ROOT = Path(__file__).parents[2]
LARGEST = 1_000_000
"""Bytes of a page."""
TALLEST = 6000
"""Pixels of a page of the reference of Python, 1,280 wide."""

PAGES = (
    "", "sources/d4rl/", "sources/openx-datasets/", "commands/download/", "rules/", "rules/RL004/",
    "python/Dataset/", "python/check/", "how-fast/", "on-disk-layout/", "recipes/iql/",
)  # fmt: skip
"""A page of each type."""

pytestmark = pytest.mark.slow


class Parser(HTMLParser):
    """Collects what a page links to, what it fetches, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors = {""}
        self.classes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        self.classes |= set(found.get("class", "").split())
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in {"canonical", "next", "prev"}:
            self.fetched.append(found["href"])
        self.fetched += [
            found[name] for name in ("src", "srcset", "poster", "data") if name in found
        ]
        self.fetched += re.findall(r"url\(([^)]*)\)", found.get("style", ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "built"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def parsed(site: Path) -> dict[Path, Parser]:
    reports = set(site.glob("gallery/*.html"))  # if `make gallery` ran: pages of their own
    return {path: Parser(path.read_text("utf-8")) for path in {*site.rglob("*.html")} - reports}


def test_links_and_anchors(site: Path, parsed: dict[Path, Parser]) -> None:
    assert len(parsed) > 150
    broken = []
    for path, page in parsed.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                broken.append(f"{path.relative_to(site)}: {link}")
            elif target in parsed and unquote(parts.fragment) not in parsed[target].anchors:
                broken.append(f"{path.relative_to(site)}: no such anchor: {link}")
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(site: Path, parsed: dict[Path, Parser]) -> None:
    assert {
        path: page.fetched for path, page in parsed.items() if any(map(is_remote, page.fetched))
    } == {}
    # Theirs are the only addresses in the theme's script that it fetches: diagrams, and stars of a repository.
    assert not any("mermaid" in page.classes for page in parsed.values())
    assert not any('data-md-component="source"' in path.read_text("utf-8") for path in parsed)
    for style in site.rglob("*.css"):
        found = re.findall(r"url\(([^)]*)\)|@import\s+([^;]*)", style.read_text("utf-8"))
        assert not any(map(is_remote, ("".join(one).strip("\"' ") for one in found))), style


def is_remote(address: str) -> bool:
    return bool(re.match(r"\s*(https?:)?//", address))


def test_pages_are_not_huge(parsed: dict[Path, Parser]) -> None:
    assert [path for path in parsed if path.stat().st_size > LARGEST] == []


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and prints nothing."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_in_a_browser(chromium: Any, address: str, page: str, width: int, theme: str) -> None:
    shown = Browser(chromium, address + page, width=width, theme=theme)
    assert shown("document.documentElement.scrollWidth <= innerWidth")
    assert (
        shown("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[theme]
    )
    assert {urlsplit(url).hostname for url in shown.requests} == {"127.0.0.1"}


def test_the_search_has_guides_before_catalogues(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    below = [one for one in entries if re.match("sources/[a-z0-9_]+-datasets/", one["location"])]
    assert len(below) > 1000
    assert {one.get("boost", 1) for one in below} == {0.2}
    assert {one.get("boost", 1) for one in entries if one not in below} == {1}


def test_pages_of_python_are_short(chromium: Any, address: str, site: Path) -> None:
    names = sorted(path.parent.name for path in site.glob("python/*/index.html"))
    assert len(names) > 60
    heights = {}
    for name in names:
        shown = Browser(chromium, f"{address}python/{name}/", width=1280, theme="light")
        heights[name] = shown("document.querySelector('.md-content').offsetHeight")
    tall = {name: height for name, height in heights.items() if height > TALLEST}
    assert tall == {}, (
        "divide groups of docs/generate/reference.yml, or name methods of a class there"
    )


def test_a_command_is_copied_without_its_prompt(chromium: Any, address: str) -> None:
    shown = Browser(chromium, address + "commands/download/", width=1280, theme="light")
    text, copied = shown("""
        const code = document.querySelector(".highlight code:has(.gp)");
        code.setAttribute("data-md-copying", "");  // as the theme's button does before it reads
        return [code.textContent, code.innerText];
    """)
    assert text.startswith("$ offline-data download ")
    assert copied.startswith("offline-data download ")


def test_the_search_finds_datasets_and_rules(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text("utf-8")
    for word in ("hopper-medium-v2", "RL014", "offline-data download", "return_to_go"):
        assert word in index
